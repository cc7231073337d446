"""The folder of one training run: metrics, learning curve, config and checkpoints."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.files import LOCK, FolderLock, is_unfinished, open_file, replace_file, storing

from .learning_curves import run_picture
from .results import RETURN_MEAN, nested_metrics
from .saved_checkpoints import CHECKPOINTS, SavedCheckpoints, refuse_links_in_run, unused

_NEEDED = {"training_iteration": (int,), "num_env_steps_sampled_lifetime": (int,), "time_total_s": (int, float)}
_COUNTS = ("training_iteration", "num_env_steps_sampled_lifetime")
_LONGEST_LINE, _MOST_BYTES = 2**20, 2**30
"""Bytes of a line of `metrics.jsonl`, and of the file, at most."""
_log = logging.getLogger(__name__)


class RunFolder:
    """Knows `config.yaml`, `metrics.jsonl`, `metrics.csv`, `learning_curve.png`, `inspect.html` and `checkpoints/`.

    The metrics are written by loggers; the other files here.

    Args:
        path: The folder; make it with `create`, or open one with `open_existing`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"
        self.checkpoints = SavedCheckpoints(path / CHECKPOINTS)
        self.jsonl_path = path / "metrics.jsonl"
        self.csv_path = path / "metrics.csv"
        self.curve_path = path / "learning_curve.png"
        self.warnings_path = path / "warnings.log"
        self.page_path = path / "inspect.html"
        self._lock: FolderLock | None = None

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new run folder; one that exists must be empty, or of a run killed before it had a config.

        Raises:
            ConfigError: the folder holds files already, or cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            cls(path)._refuse_used()
        except OSError as error:
            raise ConfigError(
                f"run folder {path}", expected="a folder", found=str(error), do="choose another one"
            ) from error
        return cls(path)

    def _refuse_used(self) -> None:
        if any(entry.name != LOCK and not is_unfinished(entry) for entry in self.path.iterdir()):
            raise ConfigError(
                f"run folder {self.path}",
                expected="a new or an empty folder",
                found="files in it, which are never overwritten",
                do=f"choose another folder, or go on with that run: --resume {shlex.quote(str(self.path))}",
            )

    @classmethod
    def open_existing(cls, path: Path) -> RunFolder:
        """Open the folder of a run; it has a config, or only metrics if the config has code in it.

        Raises:
            CheckpointError: the folder has neither config nor metrics, or a link in place of a file.
        """
        run = cls(path)
        refuse_links_in_run(path)
        if not run.config_path.is_file() and not run.jsonl_path.is_file():
            checkpoint, lacking = (path / "COMPLETE").exists(), "a file" if path.exists() else "no such folder"
            raise CheckpointError(
                f"run folder {path}",
                expected="the folder of a run",
                found="a checkpoint" if checkpoint else "no config.yaml" if path.is_dir() else lacking,
                do="give the folder that `epibatch train` wrote" + (", two above" if checkpoint else ""),
            )
        return run

    def lock(self, *, new: bool = False) -> None:
        """Hold the folder for this process, until `unlock` or the process's end.

        Args:
            new: Whether the folder has to be empty still.

        Raises:
            StorageError: another process holds it; the message says which.
            ConfigError: another process has used it meanwhile.
        """
        self._lock = FolderLock(self.path)
        try:
            if new:
                self._refuse_used()
            for rest in filter(is_unfinished, self.path.iterdir()):
                rest.unlink()
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`; what is no row, such as the half line that a killed run leaves, is left out.

        Raises:
            CheckpointError: the file cannot be read.
        """
        return self._read_rows()[0]

    def rows_until(self, training_iteration: int) -> list[dict[str, Any]]:
        """The rows up to a checkpoint's iteration; lines in them that cannot be read are named in the log.

        Later rows are about iterations that a run which goes on from there repeats.

        Raises:
            CheckpointError: the file cannot be read.
        """
        rows, damaged = self._read_rows()
        if damaged:
            _log.warning("%s: %d damaged lines are left out, the first is line %d", self.jsonl_path, *damaged)
        if training_iteration and not rows and self.csv_path.is_file():
            kept = unused(self.csv_path.with_name(f"{self.csv_path.name}.kept"))
            self.csv_path.rename(kept)
            text = "%s: no rows of the %d iterations so far; the table that was there is now %s"
            _log.warning(text, self.jsonl_path, training_iteration, kept)
        return [row for row in rows if row["training_iteration"] <= training_iteration]

    def _read_rows(self) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
        """The rows, and the number of damaged lines with that of the first one; half a last line is no damage."""
        rows, damaged = [], []
        try:
            with open_file(self.jsonl_path) as file:
                for number, line in enumerate(_whole_lines(file), 1):
                    row = _row(line)
                    if row is None:
                        damaged.append(number)
                    else:
                        rows.append(row)
        except FileNotFoundError:
            return [], None
        except OSError as error:
            expected, do = "the metrics of a run, in a file", "put it elsewhere; the run goes on without its rows"
            raise CheckpointError(str(self.jsonl_path), expected=expected, found=str(error), do=do) from error
        return rows, (len(damaged), damaged[0]) if damaged else None

    def last_results(self) -> dict[str, Any] | None:
        """The newest row as nested results; None without one."""
        rows = self.rows()
        return nested_metrics(rows[-1]) if rows else None

    def write_config(self, text: str) -> None:
        """Keep the config as it was run.

        Raises:
            StorageError: the disk is full, say.
        """
        with storing(f"writing {self.config_path}", "free some space, or choose another folder"):
            replace_file(self.config_path, text.encode())

    def draw_learning_curve(
        self, title: str, goal: float | None = None, window: int = 100, *, key: str = RETURN_MEAN
    ) -> Path:
        """Draw a result of the run, as `run_picture` does, into `learning_curve.png`.

        Args:
            title: Above the plot.
            goal: The value to reach.
            window: Episodes that the mean return is about.
            key: The result.

        Raises:
            StorageError: the disk is full, say.
            MissingExtraError: matplotlib is not installed.
        """
        picture = run_picture(self.rows(), title, key=key, goal=goal, window=window)
        with storing(f"writing {self.curve_path}", "free some space, then go on with the run"):
            replace_file(self.curve_path, picture)
        return self.curve_path


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines that have an end; those that are too long are empty."""
    size = os.fstat(file.fileno()).st_size
    if size > _MOST_BYTES:
        raise OSError(f"{size:,} bytes, more than {_MOST_BYTES:,}")
    has_end = True
    while piece := file.readline(_LONGEST_LINE):
        before, has_end = has_end, piece.endswith(b"\n")
        if has_end:
            yield piece if before else b""


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as a flat row of numbers in bounds, strings, booleans and None; None if it is something else."""
    try:
        row = json.loads(line)
        usable = (
            all(type(row[key]) in kinds for key, kinds in _NEEDED.items())
            and all(0 <= row[key] < 2**63 for key in _COUNTS)
            and all(isinstance(value, (str, type(None))) or abs(value) <= 1e300 for value in row.values())
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return row if usable else None
