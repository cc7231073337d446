"""Which default module fits which spaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.rl_module.default_actor_critic import DefaultActorCritic
from epibatch.core.rl_module.default_lstm_actor_critic import DefaultLSTMActorCritic
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.observation_input import ObservationInput
from epibatch.core.rl_module.rl_module import RLModule
from epibatch.core.rl_module.rl_module_spec import RLModuleSpec

__all__ = ["default_module_spec"]


def default_module_spec(
    observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None, model_config: Any = None
) -> RLModuleSpec:
    """The spec of the default actor-critic for some spaces.

    Args:
        observation_space: what the module sees: Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples.
        action_space: likewise; integer Boxes need bounds.
        model_config: a `DefaultModelConfig`, a dict of its fields, or None; `use_lstm` picks the recurrent module.

    Raises:
        SpaceError: no default module takes the spaces; the message says what to do.
        ConfigError: unknown or wrong options in `model_config`.

    Example:
        >>> spec = default_module_spec(gym.spaces.Discrete(5), gym.spaces.Discrete(2), {"use_lstm": True})
        >>> spec.module_class.__name__
        'DefaultLSTMActorCritic'
    """
    config = DefaultModelConfig.from_dict(model_config)
    ObservationInput(observation_space, config)
    distribution_for(action_space)
    module_class: type[RLModule] = DefaultLSTMActorCritic if config.use_lstm else DefaultActorCritic
    return RLModuleSpec(
        module_class=module_class,
        observation_space=observation_space,
        action_space=action_space,
        model_config=config if model_config is None else model_config,
    )
