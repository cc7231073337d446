"""Running modules in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["evaluation_mode"]


@contextmanager
def evaluation_mode(module: Any) -> Iterator[None]:
    """Run a block with a module in evaluation mode: dropout is off, batch norm applies what it knows.

    Afterwards the parts that were in training mode are so again. Parts that you put into evaluation mode yourself
    stay there. If the module itself is in evaluation mode, or has no modes, nothing is changed.

    Args:
        module: A torch module, or any other one.
    """
    if not getattr(module, "training", False) or not hasattr(module, "modules"):
        yield
        return
    parts = [part for part in module.modules() if part.training]
    _set_training(parts, False)
    try:
        yield
    finally:
        _set_training(parts, True)


def _set_training(parts: list[Any], training: bool) -> None:
    for part in parts:
        if "training" in part.__dict__:  # past torch's __setattr__, which takes ten times as long
            part.__dict__["training"] = training
        else:
            part.training = training
