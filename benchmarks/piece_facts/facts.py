"""What is known about a piece beside its code: its counterparts elsewhere, and the bare expression it stands for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

COLUMNS = ("obs", "actions", "rewards", "action_logp", "action_dist_inputs", "vf_preds")
"""Columns that a sample of steps has; the piece finds those that its expression names in the batch."""
OTHERS = ("counts", "episodes", "newest", "terminateds")
"""What an expression may name besides: rows of each episode, the episodes' own columns (`benchmarks.columns.Episode`),
the newest observation of each of N running episodes, and whether a step is the last one of a terminated episode."""


@dataclass(frozen=True)
class Bare:
    """The NumPy expression that a piece stands for, and how the two are run side by side.

    Args:
        expression: Of columns by their names, rows first: `np.clip(rewards, -1, 1)`. A function serves where one
            line does not; its parameters are the names, and the first line of its docstring stands in the table.
        keywords: What the piece is built with.
        gives: The column, or columns, that both give; empty: the first that the expression names.
        close: The largest difference that is allowed between the two.
        drawn: Whether values are random, so that only shapes and types are compared.
        observations: "vector" (float32 [16]), "image" (uint8 [16, 16, 3]), "frame" (uint8 [16, 16, 1]), or "dict" (the
            first two, as `position` and `camera`).
        actions: "choice" (of 2), or "box" (float32 [2], in -1 to 1).
    """

    expression: str | Callable[..., Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    gives: str | tuple[str, ...] = ""
    close: float = 0.0
    drawn: bool = False
    observations: str = "vector"
    actions: str = "choice"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns, and what else the expression names."""
        if callable(self.expression):
            code = self.expression.__code__
            return code.co_varnames[: code.co_argcount]
        found = [node.id for node in ast.walk(ast.parse(self.expression, mode="eval")) if isinstance(node, ast.Name)]
        return tuple(name for name in dict.fromkeys(found) if name in COLUMNS + OTHERS)

    @property
    def acting(self) -> bool:
        """Whether the piece runs about running episodes, in the env-to-module pipeline."""
        return "newest" in self.names

    @property
    def columns(self) -> tuple[str, ...]:
        """What the piece finds in the batch."""
        return tuple(name for name in self.names if name in COLUMNS)

    @property
    def given(self) -> tuple[str, ...]:
        """The columns that are compared."""
        if self.gives:
            return (self.gives,) if isinstance(self.gives, str) else self.gives
        return (next((name for name in self.names if name in COLUMNS), "obs"),)

    @property
    def text(self) -> str:
        """As it stands in the table."""
        if not callable(self.expression):
            return f"`{self.expression}`"
        return (self.expression.__doc__ or "").strip().splitlines()[0].rstrip(".")

    def function(self) -> Callable[..., Any]:
        """The expression as a function of what it names, which gives the columns by name."""
        given = self.given
        if callable(self.expression):
            bare = self.expression
        else:
            bare = eval(f"lambda {', '.join(self.names)}: ({self.expression})", {"np": np})
        if len(given) == 1:
            return lambda **columns: {given[0]: bare(**columns)}
        return lambda **columns: dict(zip(given, bare(**columns), strict=True))


@dataclass(frozen=True)
class Facts:
    """What stands in the table about a piece.

    Args:
        bare: The expression that it stands for; or why there is none.
    """

    bare: Bare | str
