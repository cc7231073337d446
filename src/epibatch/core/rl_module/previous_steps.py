"""The action and the reward before each observation, as inputs of a default network."""

from __future__ import annotations

from typing import Any, final

import gymnasium as gym
import torch

from epibatch.core.errors import ColumnError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.observation_input import ObservationInput

__all__ = ["PreviousSteps", "previous_step_views"]

ACTIONS, REWARDS, MASK = "prev_actions", "prev_rewards", "prev_actions_mask"


def previous_step_views(config: DefaultModelConfig) -> dict[str, dict[str, Any]]:
    """The views that a default network asks for, as arguments of `epibatch.connectors.views.View`.

    Example:
        >>> previous_step_views(DefaultModelConfig(use_lstm=True, use_prev_reward=True))
        {'prev_rewards': {'column': 'rewards', 'shift': -1}}
    """
    views: dict[str, dict[str, Any]] = {}
    if config.use_prev_action:
        views[ACTIONS] = {"column": "actions", "shift": -1, "mask": True}
    if config.use_prev_reward:
        views[REWARDS] = {"column": "rewards", "shift": -1}
    return views


@final
class PreviousSteps:
    """Makes vectors of the columns `prev_actions` and `prev_rewards`, as far as a config wants them.

    Actions are encoded like observations of their space (Discrete ones are one-hot); at an episode's start all is 0.

    Args:
        action_space: the space of one action.
        config: `use_prev_action` and `use_prev_reward`.

    Attributes:
        size: length of the vectors.

    Raises:
        SpaceError: actions that have no encoding.
    """

    def __init__(self, action_space: gym.Space[Any] | None, config: DefaultModelConfig) -> None:
        flat = DefaultModelConfig(conv_filters=[])  # actions are no images
        self._actions = ObservationInput(action_space, flat) if config.use_prev_action else None
        self._rewards = config.use_prev_reward
        self.size = (self._actions.size if self._actions is not None else 0) + self._rewards

    def __call__(self, batch: dict[str, Any]) -> torch.Tensor:
        """Vectors [..., size], float32.

        Raises:
            ColumnError: a column is missing.
        """
        parts = []
        if self._actions is not None:
            real = self._column(batch, MASK).unsqueeze(-1)
            parts.append(self._actions(self._column(batch, ACTIONS)) * real)
        if self._rewards:
            parts.append(self._column(batch, REWARDS).to(torch.float32).unsqueeze(-1))
        return torch.cat(parts, -1)

    @staticmethod
    def _column(batch: dict[str, Any], name: str) -> Any:
        if name not in batch:
            raise ColumnError(
                "the default network with use_prev_action or use_prev_reward",
                expected=f"a batch with a column {name!r}",
                found=f"columns {', '.join(sorted(map(str, batch)))}",
                do="put TrajectoryViews(views=type(module).get_view_requirements(module.model_config)) into both "
                "pipelines, as a config does unless its default pieces are off",
            )
        return batch[name]
