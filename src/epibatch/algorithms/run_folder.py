"""The folder of one training run: metrics, learning curve, config and checkpoints."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, ConfigError, explain

from .saved_checkpoints import CHECKPOINTS, SavedCheckpoints

__all__ = ["RunFolder", "flat_metrics", "in_reading_order"]


def flat_metrics(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers, strings and booleans of nested results under `a/b/c` keys; numbers that are not finite become None.

    Example:
        >>> flat_metrics({"learners": {"default_policy": {"vf_loss": 0.5}}, "training_iteration": 1})
        {'learners/default_policy/vf_loss': 0.5, 'training_iteration': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in results.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping):
            flat.update(flat_metrics(value, f"{prefix}{key}/"))
        elif isinstance(value, float):
            flat[f"{prefix}{key}"] = value if math.isfinite(value) else None
        elif value is None or isinstance(value, (bool, int, str)):
            flat[f"{prefix}{key}"] = value
    return flat


def in_reading_order(columns: Iterable[str]) -> list[str]:
    """Columns with those first that one looks for first; the others keep their order.

    Example:
        >>> in_reading_order(["timers/sample", "training_iteration"])
        ['training_iteration', 'timers/sample']
    """
    known = list(columns)
    return [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]


class RunFolder:
    """Writes `metrics.jsonl`, `metrics.csv`, `learning_curve.png`, `config.yaml` and `checkpoints/`.

    Both metrics files get one row per iteration as it ends; a new metric adds a column to the CSV.

    Args:
        path: the folder; make it with `create`, or open one with `open_existing`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"
        self.checkpoints = SavedCheckpoints(path / CHECKPOINTS)
        self.jsonl_path = path / "metrics.jsonl"
        self.csv_path = path / "metrics.csv"
        self.curve_path = path / "learning_curve.png"
        self._columns: list[str] = []

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new run folder; an existing one must be empty.

        Raises:
            ConfigError: the folder holds files already, or cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = any(path.iterdir())
        except OSError as error:
            raise ConfigError(
                explain(f"run folder {path}", expected="a folder", found=str(error), do="choose another one")
            ) from error
        if taken:
            raise ConfigError(
                explain(
                    f"run folder {path}",
                    expected="a new or an empty folder",
                    found="files in it, which are never overwritten",
                    do=f"choose another folder, or go on with that run: --resume {path}",
                )
            )
        return cls(path)

    @classmethod
    def open_existing(cls, path: Path) -> RunFolder:
        """Open the folder of a run; it has a config, and a checkpoint unless the run was killed before its first save.

        Raises:
            CheckpointError: the folder has no config.
        """
        run = cls(path)
        if not run.config_path.is_file():
            checkpoint = (path / "COMPLETE").exists()
            raise CheckpointError(
                explain(
                    f"run folder {path}",
                    expected="the folder of a run",
                    found="a checkpoint" if checkpoint else "no config.yaml" if path.is_dir() else "no such folder",
                    do="give the folder that `epibatch train` wrote" + (", one above" if checkpoint else ""),
                )
            )
        return run

    def keep_until(self, training_iteration: int) -> None:
        """Drop the rows of iterations after a checkpoint: a run that goes on from there repeats them."""
        rows = [row for row in self.rows() if row.get("training_iteration", 0) <= training_iteration]
        _replace(self.jsonl_path, "".join(json.dumps(row) + "\n" for row in rows))
        self._columns = in_reading_order(dict.fromkeys(key for row in rows for key in row))
        self._rewrite_csv()

    def log(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Append one iteration's results to both files; returns the row."""
        row = flat_metrics(results)
        with self.jsonl_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        new = [key for key in row if key not in self._columns]
        if new:
            self._columns = in_reading_order([*self._columns, *new])
            self._rewrite_csv()
        else:
            with self.csv_path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        return row

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows logged so far."""
        if not self.jsonl_path.exists():
            return
        with self.jsonl_path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # a killed run may leave half a line
                    yield json.loads(line)

    def last_results(self) -> dict[str, Any] | None:
        """The newest row as nested results; None without one."""
        rows = list(self.rows())
        nested: dict[str, Any] = {}
        for key, value in (rows[-1] if rows else {}).items():
            *path, name = key.split("/")
            place = nested
            for part in path:
                place = place.setdefault(part, {})
            place[name] = value
        return nested or None

    def _rewrite_csv(self) -> None:
        temporary = self.csv_path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self.rows())
        os.replace(temporary, self.csv_path)

    def write_config(self, text: str) -> None:
        """Keep the config as it was run."""
        _replace(self.config_path, text)

    def draw_learning_curve(self, title: str, goal: float | None = None) -> Path:
        """Draw the mean return over env steps, per iteration and smoothed.

        Args:
            title: above the plot.
            goal: the return to reach, drawn as a line.
        """
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        points = [
            (row["num_env_steps_sampled_lifetime"], row.get(f"env_runners/{_RAW}"), row.get(f"env_runners/{_MEAN}"))
            for row in self.rows()
        ]
        figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=144)
        for index, label, color, width in (
            (1, "episodes of one iteration", "#9ecae1", 1.0),
            (2, "last 100 episodes", "#08519c", 2.0),
        ):
            line = [(point[0], point[index]) for point in points if point[index] is not None]
            if line:
                axes.plot(*zip(*line), label=label, color=color, linewidth=width)
        if goal is not None:
            axes.axhline(goal, color="#31a354", linestyle="--", linewidth=1.2, label=f"goal {goal:g}")
        axes.set(title=title, xlabel="environment steps", ylabel="mean return per episode")
        axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="best", frameon=False)
        figure.tight_layout()
        figure.savefig(self.curve_path)
        pyplot.close(figure)
        return self.curve_path


_MEAN = "episode_return_mean"
_RAW = "episode_return_mean_this_iter"
_FIRST = ("training_iteration", "num_env_steps_sampled_lifetime", f"env_runners/{_MEAN}")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
