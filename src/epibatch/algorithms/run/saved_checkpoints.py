"""The checkpoints of a run, numbered by iteration: which there are, which is the newest whole one, which may go."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from epibatch.core.checkpoints import check_state
from epibatch.core.errors import CheckpointError
from epibatch.core.files import read_file, refuse_links, replace_file, storing

CHECKPOINTS = "checkpoints"
"""The folder of a run that holds its checkpoints."""

_NUMBERED = re.compile(r"(?P<name>0\d{5}|[1-9]\d{5,})|\.(?P<replaced>0\d{5}|[1-9]\d{5,})\.previous", re.ASCII)
_OURS = re.compile(
    r"config\.yaml|metrics\.(jsonl|csv)|warnings\.log|learning_curve\.png|tensorboard|videos|(wandb|mlflow)\.id|\.lock|checkpoints(/\.?\d{6,}(\.previous)?(/.*)?)?",
    re.ASCII | re.DOTALL,
)
"""The entries of a run's folder that epibatch opens, writes or removes."""
_BEST = re.compile(r"\.?best(\.json|\.previous)?(/.*)?", re.ASCII | re.DOTALL)
_log = logging.getLogger(__name__)
Content = TypeVar("Content")


class SavedCheckpoints:
    """The folder `checkpoints/` of a run: one checkpoint per saved iteration, named `000012` for iteration 12.

    Args:
        folder: The folder; it need not exist yet.

    Examples:
        >>> SavedCheckpoints(Path("runs/one/checkpoints")).path_of(12).name
        '000012'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, iteration: int) -> Path:
        """Return the path of the checkpoint after this many iterations."""
        return self.folder / f"{iteration:06d}"

    @property
    def best(self) -> Path:
        """The path of the best checkpoint, if the run keeps one.

        Raises:
            CheckpointError: a link is there.
        """
        refuse_links(self.folder, _BEST)
        return self.folder / "best"

    def write_best_score(self, score: float) -> None:
        """Store the score of the best checkpoint, beside it.

        Raises:
            StorageError: the disk is full, say.
        """
        with storing(f"writing {self.folder / 'best.json'}", "free some space, then go on with the run"):
            replace_file(self.folder / "best.json", json.dumps({"score": score}).encode())

    def best_score(self) -> float | None:
        """The stored score, the higher the better; None if there is none that can be read."""
        try:
            score = json.loads(read_file(self.folder / "best.json", 2**10))["score"]
            return float(score)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def iterations(self) -> list[int]:
        """The iterations that were saved, the newest first; their checkpoints may be damaged.

        Folders with other names than a run gives, such as `12` or `000012.copy`, are none of its checkpoints.
        """
        if not self.folder.is_dir():
            return []
        names = [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        found = (_NUMBERED.fullmatch(name) for name in names)
        return sorted({int(match["name"] or match["replaced"]) for match in found if match}, reverse=True)

    def newest(self) -> Path:
        """The newest whole checkpoint, or the best one if it is all that is left.

        Damaged ones are passed over, each with a warning in the log.

        Raises:
            CheckpointError: there is none, or all are damaged; the message says how each of them is.
        """
        faults: list[str] = []
        listed = self.iterations()
        has_best = (self.folder / "best").exists()
        for path in [*map(self.path_of, listed), *([self.best] if has_best else [])]:
            try:
                check_state(path)
            except CheckpointError as error:
                faults.append(str(error))
                continue
            for fault in faults:
                _log.warning("%s\n  instead:  %s is used", fault, path)
            return path
        if self.iterations() != listed:  # a training run has saved and pruned meanwhile
            return self.newest()
        raise CheckpointError(
            f"checkpoints in {self.folder}",
            expected="a whole checkpoint",
            found="".join(f"\n    - {fault}".replace("\n", "\n      ") for fault in faults) or "none",
            do="restore one from a copy" if faults else "let the run come to its first save",
        )

    def prune(self, num_to_keep: int | None) -> None:
        """Remove the oldest checkpoints beyond so many, but no link; None keeps all.

        Raises:
            StorageError: the system does not let them be removed.
        """
        if num_to_keep is None:
            return
        with storing(f"removing old checkpoints in {self.folder}", "see to its permissions"):
            for iteration in self.iterations()[num_to_keep:]:
                path = self.path_of(iteration)
                for folder in (path, path.with_name(f".{path.name}.previous")):
                    if folder.exists() and not folder.is_symlink():
                        shutil.rmtree(folder)

    def discard_later(self, iteration: int, ending: str = "damaged") -> list[Path]:
        """Make room for a run that goes on after an iteration.

        What killed saves left is removed, and checkpoints of later iterations get an ending, under which nothing
        looks for them.

        Returns:
            Where the later ones are now.
        """
        if not self.folder.is_dir():
            return []
        for rest in self.folder.glob(".*.saving-*"):
            shutil.rmtree(rest, ignore_errors=True)
        moved = []
        for later in self.iterations():
            if later > iteration:
                path = self.path_of(later)
                for folder in (path, path.with_name(f".{path.name}.previous")):
                    if folder.exists():
                        moved.append(unused(path.with_name(f"{path.name}.{ending}")))
                        folder.rename(moved[-1])
        return moved


def unused(path: Path) -> Path:
    """The path, or with a number after it one that does not exist yet."""
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number}")
    return free


def newest_checkpoint(path: str | Path) -> Path:
    """The checkpoint that a path means: itself, or the newest whole one of a run.

    Args:
        path: A checkpoint's folder, a run's folder, or the folder `checkpoints` of a run.

    Returns:
        A folder for `Algorithm.from_checkpoint`. Of a run, damaged checkpoints are passed over for the newest
        whole one, with a warning in the log that says which and why; a checkpoint that is named itself is
        used or refused.

    Raises:
        CheckpointError: there is no such folder, no checkpoint in it, or no whole one.

    Examples:
        >>> newest_checkpoint("nowhere")
        Traceback (most recent call last):
            ...
        epibatch.core.errors.CheckpointError: loading ...nowhere
          expected: a complete checkpoint
          found:    no such folder
          do:       check the path; a folder without the file COMPLETE was not written to its end
    """
    path = Path(path)
    if (path / CHECKPOINTS).is_dir() or (path / "config.yaml").is_file():
        refuse_links_in_run(path)
        return SavedCheckpoints(path / CHECKPOINTS).newest()
    if SavedCheckpoints(path).iterations():
        return SavedCheckpoints(path).newest()
    check_state(path)
    return path


def read_newest(path: str | Path, read: Callable[[Path], Content]) -> Content:
    """Read with a function from a path's checkpoint, also while a training run saves and prunes checkpoints there.

    Args:
        path: As `newest_checkpoint` takes it.
        read: Takes the checkpoint's folder.
    """
    chosen = newest_checkpoint(path)
    try:
        return read(chosen)
    except (CheckpointError, OSError):
        if chosen.exists():
            raise
    return read(newest_checkpoint(path))


def refuse_links_in_run(path: Path) -> None:
    """Make sure that what epibatch opens, writes or removes in a run's folder is no link; other links may lie there.

    Raises:
        CheckpointError: a link, a named pipe, a socket or a device is among it.
    """
    refuse_links(path, _OURS)
