"""Makes of the module's actions what the environment takes."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.action_scaling import EnvActions
from epibatch.core.columns import Columns

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["NormalizeAndClipActions"]


class NormalizeAndClipActions(ColumnarPiece):
    """Adds `actions_for_env`, in the types of the action space; the module's own actions stay in `actions`.

    Normalising takes a module's actions to lie in [-1, 1] and stretches them to the bounds of float
    Boxes, clipping what lies outside. Clipping alone cuts actions to the Boxes. Actions of integer Boxes
    count from the lower bound, whether there is normalising or not. Where nothing changes
    (Discrete actions), both columns share one array.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        normalize_actions: Whether to stretch; goes before clipping.
        clip_actions: Whether to clip.

    Raises:
        ColumnError: actions that are nested otherwise than the action space.
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
        self._encode: EnvActions | None = None

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Add the column."""
        if Columns.ACTIONS_FOR_ENV in batch or not batch:
            return batch
        actions = self.need(batch, Columns.ACTIONS, "put GetActions in front")
        space = self.input_action_space
        if not isinstance(actions, EpisodeColumn) or isinstance(actions.data, list) or space is None:
            batch[Columns.ACTIONS_FOR_ENV] = actions
            return batch
        if self._encode is None or self._encode.space is not space:
            self._encode = EnvActions(space, normalize=self.normalize_actions, clip=self.clip_actions)
        data = self._encode(actions.data)
        batch[Columns.ACTIONS_FOR_ENV] = actions if data is actions.data else EpisodeColumn(data, actions.counts)
        return batch
