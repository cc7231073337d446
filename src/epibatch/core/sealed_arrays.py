"""Arrays that never change, of which checkpoints share one file."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_NAME = re.compile(r"sealed-[0-9a-f]{16}\.npz")


class SealedFile:
    """The file of arrays that never change.

    Attributes:
        path: Where the arrays were written last; None: nowhere yet.
        description: The file's `name`, and its `bytes` and `sha256` if it was written.
    """

    def __init__(self, description: dict[str, Any] | None = None) -> None:
        self.path: Path | None = None
        self.description = description or {"name": f"sealed-{secrets.token_hex(8)}.npz"}
        if not is_sealed_name(self.name):
            raise ValueError(f"a file named {self.name!r}")

    @property
    def name(self) -> str:
        """The name of the file in each checkpoint."""
        return str(self.description["name"])


class SealedArrays:
    """A part of a state: arrays that never change, and that are made when they are needed.

    A checkpoint writes them into a file of their own. Later checkpoints on the same disk share this file, so that what
    is sealed is written once; when the last of them is removed, so is the file.

    Args:
        make: Returns the arrays.
        file: Their file; states of the same arrays have the same one.

    Examples:
        >>> part = SealedArrays(lambda: [np.arange(3)], SealedFile())
        >>> part.arrays()
        [array([0, 1, 2])]
    """

    def __init__(self, make: Callable[[], Sequence[np.ndarray[Any, Any]]], file: SealedFile) -> None:
        self.make, self.file = make, file
        self._kept: Sequence[np.ndarray[Any, Any]] | None = None

    def arrays(self) -> Sequence[np.ndarray[Any, Any]]:
        """Return the arrays.

        Raises:
            CheckpointError: they are in a checkpoint's file, which is missing or damaged.
        """
        return self.make() if self._kept is None else self._kept

    def keep(self) -> None:
        """Make the arrays now, because what they are made of is about to change."""
        self._kept = self.arrays()

    def __getstate__(self) -> dict[str, Any]:
        self.keep()
        return {"make": None, "file": self.file, "_kept": self._kept}


def is_sealed_name(name: str) -> bool:
    """True if a file of a checkpoint may have this name."""
    return _NAME.fullmatch(name) is not None
