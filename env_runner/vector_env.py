"""Vector environments from a configuration, in any autoreset mode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, nearest

from .autoreset import gymnasium_mode
from .env_creators import CONFIG_NAMES, call_creator, check_keywords, creator_of, missing_packages_named
from .env_wrappers import WrapperSpec, wrapper_functions
from .gymnasium_ids import make_from_id
from .made_env import FirstCallChecks, TerminalCopies, WorkerChecks
from .sync_envs import SyncEnvs
from .vector_env_checks import check_env, check_vector_env
from .worker_signals import workers_ignore_ctrl_c

__all__ = ["make_vector_env"]

_MODES = ("sync", "async", "vector_entry_point")
SAME_STEP = gym.vector.AutoresetMode.SAME_STEP


def make_vector_env(
    env: Any,
    num_envs: int,
    mode: str = "sync",
    env_config: dict[str, Any] | None = None,
    autoreset: Any = None,
    wrappers: Sequence[WrapperSpec] = (),
) -> Any:
    """Make N environments that step together.

    Args:
        env: A Gymnasium id, a name given to `register_env`, an environment class or its import path
            `module:Class`, or a function of the config that makes one environment. With
            "vector_entry_point" the class or function makes the vector environment: it is called with
            `num_envs=N` if it has that parameter, and the config.
        num_envs: N.
        mode: "sync", "async" (a process each), or "vector_entry_point" (the id's own vector version).
        env_config: Passed to the environment: as keywords for an id; for a class or function as one
            dict if it has a required parameter or one called `config` or `env_config`, else as keywords.
            With "vector_entry_point" only the second counts, as the first may be `num_envs`.
        autoreset: When reset observations come: "next_step", "same_step", "disabled"; None: as the
            vector environment does by itself. A vector entry point gets it as the keyword
            `autoreset_mode` (a `gymnasium.vector.AutoresetMode`) if it has such a parameter.
        wrappers: Gymnasium wrappers around each single environment, the innermost first: names,
            `{"wrapper": name, keyword: value}`, or functions.

    Returns:
        A `gymnasium.vector.VectorEnv`.

    Raises:
        ConfigError: no environment, an unknown mode or wrapper, an object that is no environment,
            or a vector environment of another size or autoreset mode than requested.
        UnknownNameError: an id that Gymnasium does not know.
        SpaceError: observations that cannot be stored as arrays.

    Example:
        >>> env = make_vector_env("CartPole-v1", 3, autoreset="same_step", wrappers=["RecordEpisodeStatistics"])
        >>> env.num_envs, env.metadata["autoreset_mode"].name
        (3, 'SAME_STEP')
        >>> env.close()
    """
    config = dict(env_config or {})
    if mode not in _MODES:
        raise ConfigError(
            "gym_env_vectorize_mode", expected=f"one of {_MODES}", found=repr(mode), do=nearest(mode, _MODES)
        )
    if env is None:
        raise ConfigError("environment", expected="env", found="None", do='call .environment("CartPole-v1"), say')
    with missing_packages_named(), workers_ignore_ctrl_c() if mode == "async" else nullcontext():
        return _made(env, num_envs, mode, config, (autoreset, wrappers))


def _made(env: Any, num_envs: int, mode: str, config: dict[str, Any], ways: tuple[Any, Sequence[WrapperSpec]]) -> Any:
    autoreset, wrappers = ways
    creator = creator_of(env)
    wanted = None if autoreset is None else gymnasium_mode(autoreset)
    if mode == "vector_entry_point":
        _refuse_wrappers(wrappers)
        if creator is None:
            made = make_from_id(env, num_envs, mode, config, autoreset_mode=wanted)
        else:
            made = _vector(creator, config, {"num_envs": num_envs, "autoreset_mode": wanted})
    else:
        copies = [TerminalCopies] if wanted is SAME_STEP else []
        checks = WorkerChecks if mode == "async" else FirstCallChecks
        around: list[Any] = [*wrapper_functions(wrappers), *copies, checks]
        settings: dict[str, Any] = {} if wanted is None else {"autoreset_mode": wanted}
        if creator is None:
            made = make_from_id(env, num_envs, mode, config, vector_kwargs=settings, wrappers=around)
        else:
            makers = [partial(_single, creator, config, around) for _ in range(num_envs)]
            made = {"sync": SyncEnvs, "async": gym.vector.AsyncVectorEnv}[mode](makers, **settings)
    return check_vector_env(made, num_envs, wanted)


def _single(creator: Callable[..., Any], config: dict[str, Any], around: Sequence[Callable[[Any], Any]]) -> Any:
    """Make one environment of a class or function, with its wrappers."""
    env = check_env(call_creator(creator, config), creator)
    for wrapper in around:
        env = check_env(wrapper(env), wrapper)
    return env


def _vector(creator: Callable[..., Any], config: dict[str, Any], offered: dict[str, Any]) -> Any:
    """Make a vector environment with a class or function; it gets those keywords of `offered` that are parameters."""
    parameters = inspect.signature(creator).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    keywords = {name: value for name, value in offered.items() if name in parameters and value is not None}
    if takes_any:
        keywords["num_envs"] = offered["num_envs"]
    whole = next((name for name in CONFIG_NAMES if name in parameters), None)
    if whole is not None:
        return creator(**keywords, **{whole: config})
    check_keywords(creator, config)
    return creator(**{**keywords, **config})


def _refuse_wrappers(wrappers: Sequence[WrapperSpec]) -> None:
    if wrappers:
        raise ConfigError(
            "environment.wrappers",
            expected="none with gym_env_vectorize_mode='vector_entry_point', which has no single environments",
            found=f"{len(wrappers)}",
            do="let a function make the vector environment and put wrappers of gymnasium.wrappers.vector around it",
        )
