"""Which network a config means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import ConfigError, explain, nearest

if TYPE_CHECKING:
    from .settings import Problems

__all__ = ["check_model_config", "check_module", "module_spec_for"]


def module_spec_for(spec: Any, observation_space: Any, action_space: Any, model_config: Mapping[str, Any]) -> Any:
    """The user's spec with what it leaves open filled in, or the spec of the default network.

    Args:
        spec: the user's RLModuleSpec, or None.
        observation_space: what the module sees: the env-to-module pipeline's output.
        action_space: one environment's action space.
        model_config: settings of the network.
    """
    from epibatch.core.rl_module import default_module_spec

    if spec is None:
        return default_module_spec(observation_space, action_space, dict(model_config))
    filled = dataclasses.replace(spec)
    if filled.observation_space is None:
        filled.observation_space = observation_space
    if filled.action_space is None:
        filled.action_space = action_space
    if not filled.model_config:
        filled.model_config = dict(model_config)
    return filled


def check_model_config(model_config: Mapping[str, Any], problems: Problems) -> None:
    """Note unknown settings of the default network, and values that it cannot use."""
    from epibatch.core.rl_module.default_model_config import DefaultModelConfig

    known = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for key in model_config:
        if key not in known:
            problems.add(f"rl_module.model_config.{key}", f"unknown setting; {nearest(str(key), known)}")
    try:
        DefaultModelConfig.from_dict({key: value for key, value in model_config.items() if key in known})
    except ConfigError as error:
        problems.add("rl_module.model_config", str(error))


def check_module(module: Any, normalize_actions: bool) -> None:
    """Check what can be known of a module before it is used.

    Args:
        module: the module.
        normalize_actions: whether its actions are stretched from [-1, 1] to the bounds of the environment's.

    Raises:
        ConfigError: it is recurrent, and neither its model_config nor its class says `max_seq_len`; or it squashes
            its actions into [-1, 1], and nothing stretches them.
    """
    from ..connectors.acting_module import is_stateful, max_seq_len

    if is_stateful(module):
        max_seq_len(module)
    options = module.model_config
    if not normalize_actions and hasattr(options, "get") and options.get("squash_actions", False):
        raise ConfigError(
            explain(
                "rl_module.model_config.squash_actions",
                expected="environment.normalize_actions: true, which stretches [-1, 1] to the bounds of the actions",
                found="false",
                do="leave normalize_actions at true, or squash_actions out",
            )
        )
