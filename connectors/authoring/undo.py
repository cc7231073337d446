"""Maps the module's actions back through the piece that changed the action space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import PieceError, PieceOutputError
from epibatch.core.piece_specs import build_piece, piece_to_dict
from epibatch.core.structs import map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import ColumnarPiece
from ..connector_v2 import ConnectorV2
from .column_transform import ColumnTransform

__all__ = ["Undo", "acted_at_random", "actions_for_env", "undo_actions", "undoable"]


class Undo(ColumnarPiece):
    """Adds `actions_for_env`: the module's actions, mapped back by the inverse of a transform of `actions`.

    The transform stands in the env-to-module pipeline, where it changes the space that the module acts in; what
    the module gave stays in `actions`, and is what episodes record. Several of them are undone last first. What comes
    out has the type of the environment's action space and, in a Box, is clipped to it; nothing is stretched behind it.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: The environment's action space.
        of: The transform: the piece itself, whose parameters and state are then shared, or a piece spec.

    Raises:
        PieceError: `of` is no transform of `actions` with an inverse.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = (Columns.ACTIONS,)
    writes: ClassVar[tuple[str, ...]] = (Columns.ACTIONS_FOR_ENV,)

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        of: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.of: Any = of if isinstance(of, ConnectorV2) else build_piece(of)
        if not undoable(self.of):
            raise PieceError(
                "Undo.of",
                expected="a ColumnTransform of 'actions' that writes inverse(self, y)",
                found=repr(self.of),
                do='write columns = "actions" and an inverse in its class',
            )

    def to_dict(self) -> dict[str, Any]:
        """The transform as data."""
        return {"of": piece_to_dict(self.of)}

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column, or map back what a later transform's Undo left there."""
        if not columns or not len(group.episodes):
            return columns
        source = columns.get(Columns.ACTIONS_FOR_ENV)
        if source is None:
            source = self.need(columns, Columns.ACTIONS, "put GetActions in front")
        if self.of.input_action_space is None:  # no env-to-module pipeline has told it
            self.of.input_action_space = self.input_action_space
        of_rows = [self._of(episode) for episode in group.episodes] if self.of.spaces_by_agent else [self.of]
        parts: list[Any] = []
        order: list[Any] = []
        for transform in {id(piece): piece for piece in of_rows}.values():
            rows = np.flatnonzero([one is transform for one in of_rows]) if len(of_rows) > 1 else slice(None)
            mine = map_struct(lambda leaf, rows=rows: leaf[rows], source.data)
            parts.append(_undone(transform, mine))
            order.append(rows)
        data = parts[0]
        if len(parts) > 1:  # agents of one module whose spaces differ
            back = np.argsort(np.concatenate(order))
            data = map_struct(lambda *leaves: np.concatenate(leaves)[back], *parts)
        columns[Columns.ACTIONS_FOR_ENV] = EpisodeColumn(data, source.counts)
        return columns

    def _of(self, episode: Any) -> Any:
        return self.of.parts.of(episode.agent_id)


def acted_at_random(env_to_module: Any, actions: Any, agent_id: Any = None) -> tuple[Any, Any]:
    """Actions that were drawn from the environment's space, as a module would have given them, and what they then are
    there.

    Args:
        env_to_module: The pipeline whose pieces may transform actions.
        actions: One action of an agent, or a batch of them where there is one agent only.
        agent_id: The agent; None: there is one only.

    Returns:
        The actions to store, and those for the environment.
    """
    transforms = _transforms(env_to_module, agent_id)
    if not transforms:
        return actions, actions
    if agent_id is not None:
        actions = map_struct(lambda leaf: np.asarray(leaf)[None], actions)
    for transform in transforms:
        for path in transform.paths:
            if path.column == Columns.ACTIONS:
                actions = transform.changed(path, actions, transform.transform)
    for_env = _all_undone(transforms, actions)
    if agent_id is None:
        return actions, for_env
    return map_struct(lambda leaf: leaf[0], actions), map_struct(lambda leaf: leaf[0], for_env)


def actions_for_env(env_to_module: Any, actions: Any, agent_id: Any = None) -> Any:
    """What actions of the module's space are in the environment's.

    Args:
        env_to_module: The pipeline whose pieces may transform actions.
        actions: A batch of them.
        agent_id: The agent whose they are; None: there is one only.
    """
    return _all_undone(_transforms(env_to_module, agent_id), actions)


def _transforms(env_to_module: Any, agent_id: Any) -> list[Any]:
    found = [piece for piece in env_to_module.pieces() if _changes_actions(piece)]
    return found if agent_id is None else [piece.parts.of(agent_id) for piece in found]


def _all_undone(transforms: Sequence[Any], actions: Any) -> Any:
    for transform in reversed(transforms):
        actions = _undone(transform, actions)
    return actions


def _undone(transform: Any, actions: Any) -> Any:
    for path in reversed(transform.paths):
        if path.column == Columns.ACTIONS:
            actions = transform.changed(path, actions, lambda y, to=transform: _env_rows(to, y))
    return actions


def _env_rows(transform: Any, y: Any) -> Any:
    """What the inverse makes of rows, if it is as many rows of the space that `transform` takes."""
    space, rows = transform.row_space, transform.inverse(y)
    shape = getattr(rows, "shape", None)
    own = getattr(space, "shape", None)
    as_many = shape is not None and shape[:1] == y.shape[:1] and (own is None or shape[1:] == own)
    if not as_many or (own is not None and rows.dtype.kind not in "biuf"):
        raise PieceOutputError(
            f"{type(transform).__name__}.inverse",
            expected=f"{len(y)} rows" + ("" if own is None else f" of shape {own}, numbers of {space}"),
            found=f"{type(rows).__name__} {rows!r}" if shape is None else f"{rows.dtype} of shape {tuple(shape)}",
            do="return, for each row that transform gives, the row that it was given",
        )
    if _has_nan(rows) and not _has_nan(y):
        raise PieceOutputError(
            f"{type(transform).__name__}.inverse",
            expected=f"actions of {space}",
            found="NaN, of actions without one",
            do="bring y to where the inverse is known, with np.clip, say: modules act outside of bounds too",
        )
    return _typed(rows, space)


def _has_nan(rows: Any) -> bool:
    return bool(rows.dtype.kind == "f" and np.isnan(rows).any())


def _typed(actions: Any, space: Any) -> Any:
    """Actions within the bounds of their space, and in its type."""
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return actions
    if actions.dtype.kind == "f" and np.issubdtype(space.dtype, np.integer):
        actions = np.rint(actions)  # an inverse may come out a little below the integer that went in
    if isinstance(space, gym.spaces.Box):
        actions = np.clip(actions, space.low, space.high)
    return actions.astype(space.dtype, copy=False)


def undoable(piece: Any) -> bool:
    """Whether a piece transforms actions and can undo it."""
    return (
        isinstance(piece, ColumnTransform)
        and piece.has_inverse
        and any(path.column == Columns.ACTIONS for path in piece.paths)
    )


def undo_actions(env_to_module: Any, module_to_env: Any) -> None:
    """Let a module-to-env pipeline undo what pieces of an env-to-module pipeline make of the action space.

    An `Undo` of each is put in front of `NormalizeAndClipActions` (or `ListifyDataForVectorEnv`, or at the end), last
    first. Those that are there already are given the pieces themselves, in place of copies that were built from data.

    Args:
        env_to_module: Pipeline whose pieces may transform `actions`.
        module_to_env: The pipeline to mend.

    Raises:
        PieceError: a piece transforms actions and has no inverse.
    """
    transforms = [piece for piece in reversed(env_to_module.pieces()) if _changes_actions(piece)]
    known: Sequence[Any] = [piece for piece in module_to_env.pieces() if isinstance(piece, Undo)]
    for transform in transforms:
        if not transform.has_inverse:
            raise PieceError(
                f"{type(transform).__name__} in {type(env_to_module).__name__}",
                expected="an inverse, by which the environment gets actions of its own space",
                found="a transform of 'actions' without one",
                do="write inverse(self, y) in the class",
            )
        own = next((piece for piece in known if piece.of is transform), None)
        copies = [piece for piece in known if not any(piece.of is one for one in transforms)]
        copied = next((piece for piece in copies if piece.of == transform), None)
        if own is None and copied is not None:
            copied.of = transform
        elif own is None:
            _insert(module_to_env, Undo(of=transform))


def _changes_actions(piece: Any) -> bool:
    return isinstance(piece, ColumnTransform) and any(path.column == Columns.ACTIONS for path in piece.paths)


def _insert(pipeline: Any, undo: Undo) -> None:
    names = pipeline.names
    for name in ("normalize_and_clip_actions", "listify_data_for_vector_env"):
        if name in names:
            pipeline.insert_before(name, undo)
            return
    pipeline.append(undo)
