"""Classes and functions that make environments, found by name and called with the config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, nearest
from epibatch.core.registry import env_creator, registered_envs

from .gymnasium_ids import class_at

__all__ = ["CONFIG_NAMES", "PETTINGZOO", "call_creator", "check_keywords", "creator_of", "missing_packages_named"]

CONFIG_NAMES = ("config", "env_config")
PETTINGZOO = "pettingzoo/"
"""The beginning of the names of PettingZoo's environments, which are of several agents."""


@contextmanager
def missing_packages_named() -> Iterator[None]:
    """Raise an error that names the missing packages of an environment or a wrapper.

    Raises:
        ConfigError: packages are missing.
    """
    try:
        yield
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(
            "environment",
            expected="the packages that it and its wrappers need",
            found=str(error),
            do="install them; for drawing and for videos: pip install 'epibatch[video]'",
        ) from error


def creator_of(env: Any) -> Callable[..., Any] | None:
    """Return the class or function that makes an environment; None for a Gymnasium id.

    Args:
        env: The config's environment.

    Raises:
        ConfigError: it is neither a name nor a class or function, or one of PettingZoo's names.
    """
    if isinstance(env, str) and env.startswith(PETTINGZOO):
        raise several_agents(env, "PettingZoo's")
    if isinstance(env, str):
        return env_creator(env) if env in registered_envs() else class_at(env)
    if callable(env):
        return env  # type: ignore[no-any-return]
    raise ConfigError(
        "environment",
        expected="a Gymnasium id, a registered name, an environment class or a function",
        found=f"{type(env).__name__}: {env!r}",
        do="pass the class or id, or a function that returns it; the runner makes what it needs",
    )


def several_agents(maker: str, found: str) -> ConfigError:
    """Return the error about an environment of several agents in place of one agent.

    Args:
        maker: The name of the class or function that made it.
        found: A description of the environment.
    """
    return ConfigError(
        f"environment made by {maker}",
        expected="an environment of one agent",
        found=f"one of several, {found}",
        do="name the modules that decide for them: .multi_agent(policies=[...], policy_mapping_fn=...)",
    )


def call_creator(creator: Callable[..., Any], config: dict[str, Any]) -> Any:
    """Call a class or function with a config.

    Args:
        creator: It is called with the config as one dict if it has a parameter that must be given, or one called
            `config` or `env_config`; else with keywords.
        config: The environment's.

    Raises:
        ConfigError: keywords that it does not take.

    Example:
        >>> call_creator(lambda length=3: length, {"length": 5}), call_creator(lambda config: config, {"length": 5})
        (5, {'length': 5})
    """
    parameters = inspect.signature(creator).parameters
    if any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values()):
        return creator(config)
    named = next((name for name in CONFIG_NAMES if name in parameters), None)
    if named is not None:
        return creator(**{named: config})
    check_keywords(creator, config)
    return creator(**config)


def check_keywords(creator: Callable[..., Any], config: dict[str, Any]) -> None:
    """Raise if a key of the config is not a parameter of the environment's class or function.

    Raises:
        ConfigError: there is such a key.
    """
    parameters = inspect.signature(creator).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = next((name for name in config if name not in parameters), None)
    if unknown is not None:
        maker = getattr(creator, "__name__", type(creator).__name__)
        raise ConfigError(
            "environment.env_config",
            expected=f"keywords that {maker} takes, or a parameter env_config for all of them",
            found=repr(unknown),
            do=nearest(str(unknown), parameters),
        )
