"""Makes of the module's actions what the environment takes."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.spaces import clip_action, get_base_struct_from_space, unsquash_action
from epibatch.core.structs import flatten

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["NormalizeAndClipActions"]


class NormalizeAndClipActions(ColumnarPiece):
    """Adds `actions_for_env`; the module's own actions stay in `actions`.

    Normalising takes a module's actions to lie in [-1, 1] and stretches them to the bounds of a
    fully bounded float Box, clipping what lies outside. Clipping alone cuts actions to the Box.
    Where neither changes anything (Discrete actions), both columns share one array.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        normalize_actions: Whether to stretch; goes before clipping.
        clip_actions: Whether to clip.
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
        normalize_actions: bool = True,
        clip_actions: bool = False,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.normalize_actions = normalize_actions
        self.clip_actions = clip_actions
        self._changes: tuple[Any, bool] | None = None

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Add the column."""
        if Columns.ACTIONS_FOR_ENV in batch or not batch:
            return batch
        actions = self.need(batch, Columns.ACTIONS, "put GetActions in front")
        space = self.input_action_space
        if not isinstance(actions, EpisodeColumn) or not self._has_boxes(space):
            batch[Columns.ACTIONS_FOR_ENV] = actions
            return batch
        if self.normalize_actions:
            data = unsquash_action(actions.data, get_base_struct_from_space(space))
        elif self.clip_actions:
            data = clip_action(actions.data, get_base_struct_from_space(space))
        else:
            data = actions.data
        batch[Columns.ACTIONS_FOR_ENV] = EpisodeColumn(data, actions.counts)
        return batch

    def _has_boxes(self, space: Any) -> bool:
        if self._changes is None or self._changes[0] is not space:
            leaves = [] if space is None else flatten(get_base_struct_from_space(space))[0]
            self._changes = (space, any(isinstance(leaf, gym.spaces.Box) for leaf in leaves))
        return self._changes[1]
