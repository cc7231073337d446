"""Checkpoints of modules, which hold a spec and a state each: finding a state, and how large networks may be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from epibatch.core.checkpoints import is_checkpoint, load_state
from epibatch.core.errors import CheckpointError, nearest

__all__ = [
    "SPEC",
    "STATE",
    "is_description",
    "part_of",
    "read_states",
    "spend_weights",
    "split_path",
    "weights_at_most",
]

SPEC, STATE = "rl_module", "state"


def read_states(path: str | os.PathLike[str], component: str | None = None) -> dict[str, Any]:
    """The state of a module, or of one of several, in a checkpoint.

    Args:
        path: a folder that `save_to_path` wrote; it may be followed by the id of a module in it, as in
            `"checkpoint/main"`.
        component: the id of a module in it. Of other states than modules' the names of the parts that lead there,
            with `/` between them: `"state/learner/module/main"` in the checkpoint of an Algorithm.

    Raises:
        CheckpointError: there is no such checkpoint or part.
    """
    folder, names = split_path(path, component)
    content = load_state(folder)
    state = content[STATE] if is_description(content) else content
    return part_of(state, names, folder)


def is_description(content: Any) -> bool:
    """True if a checkpoint's content is a module's spec and state, rather than a state alone."""
    if not isinstance(content, Mapping) or content.keys() != {SPEC, STATE}:
        return False
    return isinstance(content[SPEC], Mapping) and {"spec", "not_data"} <= content[SPEC].keys()


def split_path(path: str | os.PathLike[str], component: str | None) -> tuple[Path, str]:
    """Return a checkpoint's folder, and the names after it."""
    folder, names = Path(path), [component] if component else []
    for parent in folder.parents if not folder.exists() else ():
        if is_checkpoint(parent):
            return parent, "/".join([folder.relative_to(parent).as_posix(), *names])
    return folder, "/".join(names)


def part_of(state: Any, names: str, folder: Path) -> dict[str, Any]:
    """Return the part of a state at `names`, with slashes between them; a key may contain slashes itself."""
    while names:
        keys = [key for key in state if isinstance(key, str)] if isinstance(state, Mapping) else []
        fitting = [key for key in keys if names == key or names.startswith(f"{key}/")]
        if not fitting:
            raise CheckpointError(
                f"checkpoint {folder}",
                expected="a module, or another part, that is in it",
                found=repr(names),
                do=nearest(names.partition("/")[0], keys),
            )
        key = max(fitting, key=len)
        state, names = state[key], names[len(key) + 1 :]
    if not isinstance(state, Mapping):
        found = type(state).__name__
        raise CheckpointError(
            f"checkpoint {folder}", expected="the state of a module", found=found, do="name the module"
        )
    return dict(state)


class _Budget:
    """Bytes that weights of built-in modules may still take."""

    def __init__(self, nbytes: int) -> None:
        self.whole = self.left = nbytes

    def spend(self, make: Callable[[], Any]) -> None:
        """Build a module without memory for its weights, to see how much they take.

        Raises:
            CheckpointError: more than is left.
        """
        with torch.device("meta"):
            weights = make().state_dict().values()
        size = sum(weight.numel() * weight.element_size() for weight in weights)
        if size > self.left:
            raise CheckpointError(
                "building the module of a checkpoint",
                expected=f"weights of at most {self.whole:,} bytes, which are as many as the checkpoint has",
                found=f"settings of a network with {size:,}",
                do="restore the files from a copy; a module that is built in Python may have any size",
            )
        self.left -= size


_budget: ContextVar[_Budget | None] = ContextVar("weights_at_most", default=None)


@contextmanager
def weights_at_most(nbytes: int) -> Iterator[None]:
    """Bound the weights of built-in modules that are built inside, all together.

    The settings of a network in a file may ask for any amount of memory; its weights in the file say how much is right.

    Args:
        nbytes: how many bytes they may take.
    """
    token = _budget.set(_Budget(nbytes))
    try:
        yield
    finally:
        _budget.reset(token)


def spend_weights(make: Callable[[], Any]) -> None:
    """Count the weights of a module that is about to be built, if there is a bound.

    Args:
        make: builds it.

    Raises:
        CheckpointError: they are too many.
    """
    budget = _budget.get()
    if budget is not None:
        budget.spend(make)
