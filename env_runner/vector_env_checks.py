"""Checks of environments and vector environments before the first step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.spaces import encoding_advice, get_base_struct_from_space
from epibatch.core.structs import flatten

from .autoreset import autoreset_mode
from .env_creators import several_agents

__all__ = ["check_env", "check_space", "check_vector_env"]

_ATTRIBUTES = ("num_envs", "single_observation_space", "single_action_space", "observation_space", "action_space")


def check_env(env: Any, maker: Any) -> Any:
    """Check a single environment, and return it unchanged.

    Args:
        env: What was made.
        maker: The class or function that made it, for messages.

    Raises:
        ConfigError: it is no `gymnasium.Env`, or has no spaces.
    """
    maker_name = getattr(maker, "__name__", None) or type(maker).__name__
    where = f"environment made by {maker_name}"
    if isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            where,
            expected="a single environment, several of which are put together",
            found=f"the vector environment {type(env).__name__}",
            do="set gym_env_vectorize_mode='vector_entry_point' to use it as it is",
        )
    if not isinstance(env, gym.Env):
        raise ConfigError(
            where, expected="a gymnasium.Env", found=_found(env), do="return the environment that was made"
        )
    if hasattr(env.unwrapped, "get_observation_space"):
        raise several_agents(maker_name, type(env.unwrapped).__name__)
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            raise ConfigError(
                where, expected=f"a gymnasium Space as {name}", found=_found(space), do=f"set self.{name}"
            )
    return env


def check_vector_env(env: Any, num_envs: int, wanted: Any = None) -> Any:
    """Check a vector environment, and return it unchanged; close it if it is refused.

    Args:
        env: What was made.
        num_envs: How many environments it must have.
        wanted: The requested `gymnasium.vector.AutoresetMode`; None: any.

    Raises:
        ConfigError: it is no vector environment, or another one than requested.
        SpaceError: its observations cannot be stored as arrays.
    """
    if not isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            "gym_env_vectorize_mode='vector_entry_point'",
            expected="a gymnasium.vector.VectorEnv",
            found=_found(env),
            do="return the vector environment, or take 'sync' if single environments are made",
        )
    try:
        _check_made(env, num_envs, wanted)
    except (ConfigError, SpaceError):
        env.close()
        raise
    return env


def _check_made(env: Any, num_envs: int, wanted: Any) -> None:
    where = f"vector environment {type(env.unwrapped).__name__}"
    missing = [name for name in _ATTRIBUTES if getattr(env, name, None) is None]
    if missing:
        raise ConfigError(where, expected=", ".join(_ATTRIBUTES), found=f"no {', '.join(missing)}", do="set them")
    if env.num_envs != num_envs:
        raise ConfigError(
            where,
            expected=f"{num_envs} environments, as num_envs_per_env_runner says",
            found=f"num_envs = {env.num_envs}",
            do="let what makes it take num_envs, or set num_envs_per_env_runner to what it has",
        )
    mode = autoreset_mode(env)
    if wanted is not None and mode != wanted.name.lower():
        raise ConfigError(
            where,
            expected=f"autoreset mode {wanted.name.lower()!r}, as gym_env_autoreset_mode says",
            found=f"{mode!r}: it resets in its own way",
            do="leave gym_env_autoreset_mode out, or let what makes it take autoreset_mode and heed it",
        )
    check_space(env.single_observation_space, f"{where}, observation space")
    if not flatten(get_base_struct_from_space(env.single_observation_space))[0]:
        raise SpaceError(
            f"{where}, observation space",
            expected="at least one part that is an array",
            found=f"{env.single_observation_space}",
            do="give it one, a constant if there is nothing to see: Box(0, 1, (1,))",
        )


def check_space(space: Any, where: str) -> None:
    """Raise if the values of a space are not arrays of one shape.

    Raises:
        SpaceError: it is such a space, or has such a part.
    """
    if isinstance(space, gym.spaces.Dict):
        for key, sub in space.spaces.items():
            check_space(sub, f"{where}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            check_space(sub, f"{where}[{i}]")
    elif space.shape is None or space.dtype is None:
        raise SpaceError(
            where,
            expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these: values of one shape",
            found=f"{space}",
            do=encoding_advice(space),
        )


def _found(value: Any) -> str:
    return "None: does the function return it?" if value is None else f"{type(value).__name__} {value!r}"
