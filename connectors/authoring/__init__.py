"""Shorter ways to write a piece: functions of columns, functions of episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .column_transform import ColumnTransform, Undo, undo_actions
    from .episode_transform import EpisodeTransform
    from .functions import column_function, episode_function
    from .parameters import ParameterPiece


__all__ = [
    "ColumnTransform",
    "EpisodeTransform",
    "ParameterPiece",
    "Undo",
    "column_function",
    "episode_function",
    "undo_actions",
]

__getattr__, __dir__ = lazy_exports(__name__)
