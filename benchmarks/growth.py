"""How time grows with the number of environments and with the length of a train batch, and a picture of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.floors.learner import stateless
from benchmarks.row import FLOOR, OURS, RLLIB, Options, Timed, Workload
from benchmarks.rows import acting, learner
from benchmarks.timing import spread
from benchmarks.workloads import episodes

ENVIRONMENTS = [4**k for k in range(6)]
TIMESTEPS = [4**k for k in range(5, 10)]
STEPS_PER_EPISODE = 205
BLOCK = "epibatch, VectorEpisodes"
SHOWN = {RLLIB: "#d95f02", OURS: "#1f5fbf", BLOCK: "#6fa8ff", FLOOR: "#808080"}


def with_envs(options: Options, size: int) -> Workload:
    """E1, with the runner's episodes as one more side."""
    task = acting.Task(size)
    row = acting.workload(options, task)
    sides = {name: side for name, side in row.sides.items() if name in SHOWN}
    return Workload({**sides, BLOCK: partial(acting.library_side, OURS, task, acting.as_block)}, row.check)


def with_steps(options: Options, size: int) -> Workload:
    """L1 with so many steps."""
    return learner.workload(options, episodes(size, max(1, size // STEPS_PER_EPISODE)), stateless)


PANELS: dict[str, tuple[Callable[..., Workload], str, list[int]]] = {
    "environments": (with_envs, "environments: both acting pipelines, one vector step", ENVIRONMENTS),
    "timesteps": (with_steps, "timesteps in the train batch: the learner pipeline", TIMESTEPS),
}


def measure_growth(options: Options) -> dict[str, Any]:
    """Return median seconds per call, by panel and side.

    Args:
        options: How to measure; quick takes the first three sizes.
    """
    found = {}
    for name, (build, _, sizes) in PANELS.items():
        sizes = sizes[:3] if options.quick else sizes
        measured = [Timed(partial(build, size=size))(options).values for size in sizes]
        series = {side: [float(f"{spread(values[side]).median:.5g}") for values in measured] for side in measured[0]}
        found[name] = {"sizes": sizes, "seconds": series}
    return found


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG.

    Args:
        found: As `measure_growth` gives it.
        path: Where to.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(11, 4.2), layout="constrained")
    for axes, (name, (_, title, _)) in zip(panels, PANELS.items()):
        _panel(axes, found[name], title)
    panels[0].legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _panel(axes: Any, found: Mapping[str, Any], title: str) -> None:
    from matplotlib.ticker import EngFormatter

    sizes = found["sizes"]
    for side, colour in SHOWN.items():
        if side in found["seconds"]:
            axes.plot(sizes, found["seconds"][side], marker="o", markersize=4, linewidth=2, color=colour, label=side)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(title)
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_ylabel("time per call")
    axes.grid(color="#e0e0e0", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
