"""Memory: what a train batch of stacked frames needs beyond its inputs, and whether a long training grows.

    python -m benchmarks.memory                     # both, some minutes; `make bench-memory`
    python -m benchmarks.memory --steps 1_000_000   # a shorter training
    python -m benchmarks.memory --steps 0           # the train batch alone

from the root of the repository. Memory is what the system counts: resident pages, and their peak, which only Linux
lets a process reset (/proc/self/clear_refs). Elsewhere nothing is measured, and it says so.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.libraries import library_names, rllib_is_there
from benchmarks.row import Measured, Options, Row, at_most
from benchmarks.rows.learner import FRAMES, frames, library_side, stack_frames
from benchmarks.timing import in_a_process

MIB = 2**20
OUTPUT = "output"
LOOK_EVERY = 500_000
MOST_PER_MILLION = 1.0


class NoPeakError(RuntimeError):
    """The system does not let a process measure the peak of its memory."""


def status(field: str) -> int:
    """Return the bytes of a field of /proc/self/status, VmRSS or VmHWM.

    Raises:
        NoPeakError: there is no such file.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise NoPeakError(f"no /proc/self/status, which Linux has: {error}") from error
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_of(call: Callable[[], Any]) -> tuple[int, Any]:
    """Return how far resident memory rises above where it was while a call runs, in bytes, and the call's output.

    Raises:
        NoPeakError: the peak cannot be reset here.
    """
    gc.collect()
    before = status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        raise NoPeakError(f"the peak cannot be reset: {error}") from error
    output = call()
    return status("VmHWM") - before, output


def stacked(name: str, steps: int = 4096) -> tuple[float, float]:
    """Return peak above the inputs and size of a train batch with stacked frames of 84 x 84 bytes, in MiB.

    Args:
        name: The library whose learner pipeline makes it.
        steps: Of the episodes.
    """
    side = partial(library_side, name, setup=FRAMES, change=stack_frames)
    side(frames(32, 2)).once()  # loads what there is to load, and leaves little behind
    full = side(frames(steps, max(2, steps // 205)))
    peak, batch = peak_of(partial(full.run, full.given()))
    return peak / MIB, sum(column.nbytes for column in full.show(batch).values()) / MIB


def measure_stacked(options: Options) -> Measured:
    """Measure the peak above the inputs, each library in its own process."""
    values: dict[str, list[float]] = {}
    try:
        for name in library_names(options):
            peak, size = in_a_process(stacked, name, 512 if options.quick else 4096)
            values[name] = [peak]
            values.setdefault(OUTPUT, [size])
    except NoPeakError as error:
        return Measured({}, unit="MiB", note=f"not measured: {error}")
    return Measured(values, unit="MiB", note=f"the train batch has {values[OUTPUT][0]:.0f} MiB")


ROWS = [
    Row(
        "L3/memory",
        "peak of memory above the inputs, frame stack 4, 84x84 bytes, 4,096 steps",
        measure_stacked,
        (at_most(1.1, OUTPUT),),
    )
]


# ------------------------------------------------------------------------------------- a long training

Look = tuple[int, int]
"""Environment steps, and the bytes of resident memory then."""


def per_million(looks: Sequence[Look], warm_up: int) -> float:
    """Return MiB by which memory grows per million steps after the warm-up: the slope of the line of least squares."""
    steps, sizes = np.array([look for look in looks if look[0] >= warm_up], np.float64).T
    return float(np.polyfit(steps / 1e6, sizes / MIB, 1)[0])


def train(steps: int, every: int = LOOK_EVERY, num_envs: int = 256) -> list[Look]:
    """Train PPO on Gymnasium's native vector CartPole with a small network, looking at memory on the way."""
    from epibatch.algorithms.ppo import PPOConfig

    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [16]}).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="vector_entry_point")
    config.training(train_batch_size=num_envs * 64, minibatch_size=num_envs * 16, num_epochs=1, lr=1e-3)
    algorithm = config.build_algo()
    looks: list[Look] = []
    done = 0
    while done < steps:
        results = algorithm.train()
        before, done = done, algorithm.env_runner.num_env_steps_sampled_lifetime
        if before // every != done // every:
            gc.collect()
            looks.append((done, status("VmRSS")))
            returns = results["env_runners"]["episode_return_mean"]
            print(f"{done / 1e6:6.1f} M steps: {looks[-1][1] / MIB:7.2f} MiB, mean return {returns:.0f}", flush=True)
    algorithm.stop()
    return looks


def main(
    steps: Annotated[int, typer.Option(help="Steps of the long training.")] = 10_000_000,
    warm_up: Annotated[int, typer.Option(help="Steps that are not looked at.")] = 2_000_000,
) -> None:
    """Measure both. Exit with 1 if something needs too much."""
    (row,) = ROWS
    measured = row.measure(Options(rllib=rllib_is_there()))
    print(f"train batch of stacked frames: {measured.note}")
    for name, (peak,) in measured.values.items():
        print(f"  {name}: {peak:.1f} MiB" + (" above the inputs" if name != OUTPUT else ""))
    compared = row.targets[0].compared(measured)
    good = compared is None or row.targets[0].met(compared.median)
    if steps:
        slope = per_million(in_a_process(train, steps), warm_up)
        print(f"training: {slope:+.3f} MiB per million steps; to be less than {MOST_PER_MILLION:g}")
        good = good and slope < MOST_PER_MILLION
    print("good" if good else "TOO MUCH")
    raise typer.Exit(not good)


if __name__ == "__main__":
    typer.run(main)
