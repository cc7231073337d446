"""Several multi-agent environments from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from epibatch.core.errors import ConfigError

from .env_creators import PETTINGZOO, call_creator, creator_of, missing_packages_named
from .env_wrappers import WrapperSpec, wrapper_functions
from .gymnasium_ids import make_one_from_id
from .multi_agent_checks import check_multi_agent_env
from .pettingzoo_env import pettingzoo_creator
from .vector_multi_agent_env import VectorMultiAgentEnv

__all__ = ["make_vector_multi_agent_env"]


def make_vector_multi_agent_env(
    env: Any,
    num_envs: int,
    mode: str = "sync",
    env_config: dict[str, Any] | None = None,
    wrappers: Sequence[WrapperSpec] = (),
    *,
    copy: bool = True,
) -> VectorMultiAgentEnv:
    """Make N multi-agent environments that step together.

    Args:
        env: A `MultiAgentEnv` class or its import path `module:Class`, a name given to `register_env`, a Gymnasium id,
            or a function of the config that makes one environment.
        num_envs: N.
        mode: "sync", or "async" (a process each).
        env_config: Passed to the environment: as keywords for an id; for a class or function as one dict if it has a
            required parameter or one called `config` or `env_config`, else as keywords.
        wrappers: Functions from environment to environment, applied to each single environment, the innermost first.
            Gymnasium's own wrappers are for one agent; only those that read no values work here.
        copy: As for `VectorMultiAgentEnv`.

    Raises:
        ConfigError: no environment, an unknown mode or wrapper, or an object that is no `MultiAgentEnv`.
        UnknownNameError: an id that Gymnasium does not know, an agent without space.
        SpaceError: observations that cannot be stored as arrays, or an agent with several spaces.

    Example:
        >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
        >>> envs = make_vector_multi_agent_env(make_multi_agent("CartPole-v1"), 2, env_config={"num_agents": 3})
        >>> [list(observations) for observations in envs.reset(seed=0)[0]]
        [[0, 1, 2], [0, 1, 2]]
        >>> envs.close()
    """
    config = dict(env_config or {})
    if env is None:
        do = 'call .environment(make_multi_agent("CartPole-v1")), say'
        raise ConfigError("environment", expected="env", found="None", do=do)
    if mode == "vector_entry_point":
        raise ConfigError(
            "gym_env_vectorize_mode",
            expected="'sync' or 'async' for environments of several agents",
            found="'vector_entry_point'",
            do="let env make one environment",
        )
    named = isinstance(env, str) and env.startswith(PETTINGZOO)
    maker = partial(
        _single, env, pettingzoo_creator(env) if named else creator_of(env), config, wrapper_functions(wrappers)
    )
    with missing_packages_named():
        return VectorMultiAgentEnv([maker] * num_envs, mode=mode, copy=copy, name=getattr(env, "__name__", env))


def _single(env: Any, creator: Callable[..., Any] | None, config: dict[str, Any], around: Sequence[Any]) -> Any:
    """Make one environment, with its wrappers."""
    made = make_one_from_id(env, config) if creator is None else call_creator(creator, config)
    check_multi_agent_env(made, creator or env)
    for wrapper in around:
        made = check_multi_agent_env(wrapper(made), wrapper)
    return made
