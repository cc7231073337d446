"""How time grows with the number of environments and with the length of a train batch, and a picture of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.columns import episodes
from benchmarks.floors import learner as floor
from benchmarks.names import FLOOR, OURS, RLLIB
from benchmarks.row import Options, Workload, timed
from benchmarks.rows.acting import Task, library_side, on_lists, vector_episodes
from benchmarks.rows.learner import workload
from benchmarks.timing import spread

ENVIRONMENTS = [4**k for k in range(6)]
TIMESTEPS = [4**k for k in range(5, 10)]
STEPS_PER_EPISODE = 205
BLOCK = "epibatch, VectorEpisodes"
SHOWN = {RLLIB: "#d95f02", OURS: "#1f5fbf", BLOCK: "#6fa8ff", FLOOR: "#808080"}

Series = dict[str, list[float]]


def acting(options: Options, num_envs: int) -> Workload:
    """E1, with the runner's episodes as one more side."""
    task = Task(num_envs)
    own = on_lists(options, task)
    sides = {name: side for name, side in own.sides.items() if name in SHOWN}
    return Workload({**sides, BLOCK: partial(library_side, OURS, task, vector_episodes)}, own.check)


def learning(options: Options, steps: int) -> Workload:
    """L1 with so many steps."""
    return workload(options, episodes(steps, max(1, steps // STEPS_PER_EPISODE)), floor.stateless)


PANELS: dict[str, tuple[str, Callable[..., Workload], str, list[int]]] = {
    "environments": ("num_envs", acting, "environments: both acting pipelines, one vector step", ENVIRONMENTS),
    "timesteps": ("steps", learning, "timesteps in the train batch: the learner pipeline", TIMESTEPS),
}


def measure_growth(options: Options) -> dict[str, Any]:
    """Median seconds per call, by panel and side.

    Args:
        options: How to measure; quick takes the first three sizes.
    """
    found = {}
    for name, (keyword, build, _, sizes) in PANELS.items():
        sizes = sizes[:3] if options.quick else sizes
        measured = [timed(partial(build, **{keyword: size}))(options).values for size in sizes]
        series = {side: [float(f"{spread(one[side]).median:.5g}") for one in measured] for side in measured[0]}
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
    for axes, (name, (_, _, title, _)) in zip(panels, PANELS.items()):
        _panel(axes, found[name], title)
    panels[0].legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _panel(axes: Any, found: Mapping[str, Any], title: str) -> None:
    sizes = found["sizes"]
    for side, colour in SHOWN.items():
        if side in found["seconds"]:
            axes.plot(sizes, found["seconds"][side], marker="o", markersize=4, linewidth=2, color=colour, label=side)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(_seconds)
    axes.set_xlabel(title)
    axes.set_ylabel("time per call")
    axes.grid(color="#e0e0e0", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _seconds(value: float, _: Any) -> str:
    """A power of ten of seconds in words."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= 0.999 * scale:
            return f"{value / scale:g} {unit}"
    return f"{value / 1e-9:g} ns"
