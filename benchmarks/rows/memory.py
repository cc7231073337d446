"""Memory rows: what is needed beyond the inputs."""

from __future__ import annotations

from benchmarks.libraries import library_names
from benchmarks.memory import MOST_PER_BATCH, STEPS, NoPeakError, in_a_process, stacked
from benchmarks.row import OURS, Measured, Options, Row, at_most

OUTPUT = "output"


def measure_stacked(options: Options) -> Measured:
    """Peak above the inputs, each library in a process of its own."""
    values: dict[str, list[float]] = {}
    try:
        for name in library_names(options):
            peak, size = in_a_process(stacked, name, STEPS // 8 if options.quick else STEPS)
            values[name] = [peak]
            if name == OURS:
                values[OUTPUT] = [size]
    except NoPeakError as error:
        return Measured({}, unit="MiB", note=f"not measured: {error}")
    return Measured(values, unit="MiB", note=f"the train batch has {values[OUTPUT][0]:.0f} MiB")


ROW_MAP = [
    Row(
        "L3/memory",
        "peak of memory above the inputs, frame stack 4, 84x84 bytes, 4,096 steps",
        measure_stacked,
        (at_most(MOST_PER_BATCH, OUTPUT),),
    )
]
