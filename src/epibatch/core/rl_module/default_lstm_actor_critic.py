"""The default networks with an LSTM."""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from epibatch.core.rl_module.default_recurrent_actor_critic import DefaultRecurrentActorCritic, States

__all__ = ["DefaultLSTMActorCritic"]


@final
class DefaultLSTMActorCritic(DefaultRecurrentActorCritic):
    """A `DefaultRecurrentActorCritic` with an LSTM; its state is `{"h": [B, H], "c": [B, H]}`.

    Example:
        >>> import gymnasium as gym
        >>> module = DefaultLSTMActorCritic(
        ...     observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Discrete(2),
        ...     model_config={"lstm_cell_size": 8},
        ... )
        >>> state = {name: leaf.expand(3, -1) for name, leaf in module.get_initial_state().items()}
        >>> out = module.forward_exploration({"obs": torch.zeros(3, 5, 4), "state_in": state})
        >>> out["action_dist_inputs"].shape, out["state_out"]["h"].shape
        (torch.Size([3, 5, 2]), torch.Size([3, 8]))
    """

    layer_class = nn.LSTM
    layer_name = "lstm"
    state_names = ("h", "c")

    def _step(self, x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        return torch.lstm_cell(x, states, *weights)
