"""Pictures of results: the learning curve of one run, and several runs beside each other."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import CheckpointError, ConfigError, nearest
from epibatch.core.files import replace_file, storing
from epibatch.core.imports import import_extra

from ..config.config_io import read_document
from .results import RETURN_MEAN

if TYPE_CHECKING:
    from .run_folder import RunFolder

AXES = {
    "steps": ("num_env_steps_sampled_lifetime", "environment steps"),
    "iterations": ("training_iteration", "iterations"),
    "seconds": ("time_total_s", "seconds of training"),
}
"""Quantity of the horizontal axis -> its result, and the label of the axis."""

Line = tuple[list[float], list[float]]


def run_picture(
    rows: Iterable[Mapping[str, Any]],
    title: str,
    *,
    key: str = RETURN_MEAN,
    goal: float | None = None,
    window: int = 100,
) -> bytes:
    """Draw a result of one run over environment steps, with that of evaluations.

    Args:
        rows: Of the run's metrics.
        title: Above the plot.
        key: The result; of the mean return, also that of each iteration's own episodes.
        goal: The value to reach, drawn as a line.
        window: Episodes that the mean return is about, for the legend.

    Returns:
        A PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    rows = list(rows)
    figure, axes = _empty(title, AXES["steps"][1], key)
    if key == RETURN_MEAN:
        _draw(axes, _line(rows, f"{key}_this_iter"), "episodes of one iteration", color="#9ecae1", linewidth=1.0)
    label = f"last {window} episodes" if key == RETURN_MEAN else key
    _draw(axes, _line(rows, key), label, color="#08519c", linewidth=2.0)
    _draw(axes, _line(rows, f"evaluation/{key}"), "evaluation", color="#d95f0e", linewidth=1.5)
    if goal is not None:
        axes.axhline(goal, color="#31a354", linestyle="--", linewidth=1.2, label=f"goal {goal:g}")
    return _png(figure, axes)


def plot_runs(runs: Sequence[RunFolder], out: Path, *, key: str = RETURN_MEAN, over: str = "steps") -> Path:
    """Draw one result of several runs; runs that differ only in their seed are one line, the mean, in a band from the
    lowest to the highest.

    Args:
        runs: Their folders.
        out: The PNG file to write.
        key: The result, such as `evaluation/env_runners/episode_return_mean`.
        over: One of `AXES`.

    Raises:
        ConfigError: no run has the result, or the file's name does not end in .png.
        CheckpointError: a run's files cannot be read.
        StorageError: the picture cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    if out.suffix.lower() != ".png":
        raise ConfigError("the picture", expected="a file that ends in .png", found=str(out), do="name it curves.png")
    found: dict[str, list[tuple[str, Line]]] = {}
    keys: dict[str, None] = {}
    for run in runs:
        rows = run.rows()
        keys.update(dict.fromkeys(name for row in rows for name in row))
        line = _line(rows, key, AXES[over][0])
        if line[0]:
            found.setdefault(_config_without_seed(run), []).append((run.path.resolve().name, line))
    if not found:
        raise ConfigError(f"result {key!r}", expected="one that a run has", found="none", do=nearest(key, keys))
    figure, axes = _empty("", AXES[over][1], key)
    for index, group in enumerate(found.values()):
        names, lines = zip(*group)
        label = names[0] if len(names) == 1 else f"{_common_prefix(names)} ({len(names)} seeds)"
        _draw_group(axes, lines, label, f"C{index % 10}")
    with storing(f"writing {out}", "choose another file"):
        replace_file(out, _png(figure, axes))
    return out


def _config_without_seed(run: RunFolder) -> str:
    if not run.config_path.is_file():
        return str(run.path)
    data = read_document(run.config_path).data
    if not isinstance(data, dict):
        found, do = type(data).__name__, "give the folder that `epibatch train` wrote"
        raise CheckpointError(str(run.config_path), expected="a config", found=found, do=do)
    debugging = data.get("debugging")
    others = {name: value for name, value in debugging.items() if name != "seed"} if isinstance(debugging, dict) else {}
    return repr({**data, "debugging": others})


def _common_prefix(names: Sequence[str]) -> str:
    """The beginning that names have in common, or the first of them."""
    same = next((i for i, letters in enumerate(zip(*names)) if len(set(letters)) > 1), min(map(len, names)))
    return names[0][:same].rstrip("-_. ") or names[0]


def _line(rows: Iterable[Mapping[str, Any]], key: str, over: str = AXES["steps"][0]) -> Line:
    points = [(row[over], row[key]) for row in rows if isinstance(row.get(key), (int, float))]
    return [point[0] for point in points], [point[1] for point in points]


def _draw_group(axes: Any, lines: Sequence[Line], label: str, color: str) -> None:
    """Draw the mean of some lines where all of them have values, and the range they span."""
    places = np.unique(np.concatenate([line[0] for line in lines]))
    first, last = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    places = places[(places >= first) & (places <= last)]
    values = np.stack([np.interp(places, *line) for line in lines])
    axes.plot(places, values.mean(0), label=label, color=color, linewidth=1.8)
    if len(lines) > 1:
        axes.fill_between(places, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)


def _empty(title: str, x: str, key: str) -> tuple[Any, Any]:
    import_extra("matplotlib", "plot", "a picture of results").use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=144)
    axes.set(title=title, xlabel=x, ylabel="mean return per episode" if key == RETURN_MEAN else key)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(lambda place, _: f"{place:,.10g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw(axes: Any, line: Line, label: str, **style: Any) -> None:
    if line[0]:
        axes.plot(*line, label=label, **style)


def _png(figure: Any, axes: Any) -> bytes:
    from matplotlib import pyplot

    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best", frameon=False)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    pyplot.close(figure)
    return picture.getvalue()
