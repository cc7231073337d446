"""Vector environments from a configuration, whatever way they reset."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, RunnerError, UnknownNameError, explain, nearest
from epibatch.core.registry import env_creator, registered_envs

__all__ = ["autoreset_mode", "make_vector_env", "reset_done"]

_MODES = ("sync", "async", "vector_entry_point")


def make_vector_env(env: Any, num_envs: int, mode: str = "sync", env_config: dict[str, Any] | None = None) -> Any:
    """N environments that step together.

    Args:
        env: A Gymnasium id, a name given to `register_env`, an environment class, or a function of
            the config that makes one environment.
        num_envs: N.
        mode: "sync", "async" (a process each), or "vector_entry_point" (the id's own vector version).
        env_config: Handed to the environment: as keywords for an id; for a class or function as one
            dict if it has a required parameter or one called `config` or `env_config`, else as keywords.

    Returns:
        A `gymnasium.vector.VectorEnv`.

    Raises:
        ConfigError: no environment, or an unknown mode.
        UnknownNameError: an id that Gymnasium does not know.
    """
    config = dict(env_config or {})
    if mode not in _MODES:
        raise ConfigError(
            explain("gym_env_vectorize_mode", expected=f"one of {_MODES}", found=repr(mode), do=nearest(mode, _MODES))
        )
    if env is None:
        raise ConfigError(
            explain("environment", expected="env", found="None", do='call .environment("CartPole-v1"), say')
        )
    creator = _creator(env)
    if creator is None:
        return _from_id(str(env), num_envs, mode, config)
    if mode == "vector_entry_point":
        raise ConfigError(
            explain(
                "gym_env_vectorize_mode",
                expected="'sync' or 'async' for an environment that is no Gymnasium id",
                found=repr(mode),
                do="register the environment with a vector_entry_point, or take 'sync'",
            )
        )
    makers = [partial(_made, creator, config) for _ in range(num_envs)]
    if mode == "async":
        return gym.vector.AsyncVectorEnv(makers)
    return gym.vector.SyncVectorEnv(makers, copy=False)


def _creator(env: Any) -> Callable[..., Any] | None:
    if isinstance(env, str):
        return env_creator(env) if env in registered_envs() else None
    if callable(env):
        return env  # type: ignore[no-any-return]
    raise ConfigError(
        explain(
            "environment",
            expected="a Gymnasium id, a registered name, an environment class or a function",
            found=f"{type(env).__name__}: {env!r}",
            do="pass the class or id; the runner makes as many environments as it needs",
        )
    )


def _from_id(env: str, num_envs: int, mode: str, config: dict[str, Any]) -> Any:
    # The runner copies observations itself, so the vector environment need not.
    extra: dict[str, Any] = {"vector_kwargs": {"copy": False}} if mode == "sync" else {}
    try:
        return gym.make_vec(env, num_envs=num_envs, vectorization_mode=mode, **extra, **config)
    except gym.error.NamespaceNotFound as error:
        raise _unknown_namespace(env) from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise _wrong_env_config(env, config, error) from error
    except (gym.error.NameNotFound, gym.error.VersionNotFound) as error:
        raise UnknownNameError(
            explain("environment", expected="a Gymnasium id", found=repr(env), do=nearest(env, gym.registry))
        ) from error


def _unknown_namespace(env: str) -> UnknownNameError:
    module, _, name = env.rpartition(":")
    namespace = name.partition("/")[0]
    package, own_module = {"ALE": ("ale-py", "ale_py")}.get(namespace, ("THE_PACKAGE", "its_module"))
    known = {spec.namespace for spec in gym.registry.values() if spec.namespace}
    close = {spelled for spelled in known if spelled.lower() == namespace.lower()}
    do = (
        f"did you mean '{min(close)}/{name.partition('/')[2]}'?"
        if close
        else f"install the package that registers it (pip install {package}), then name the module that does so in "
        f"front: '{module or own_module}:{name}' (from a file or the command line: with --allow-imports)"
    )
    return UnknownNameError(
        explain(
            "environment",
            expected="a Gymnasium id",
            found=f"{env!r}, and no imported package has registered the namespace {namespace!r}",
            do=do,
        )
    )


def _wrong_env_config(env: str, config: dict[str, Any], error: TypeError) -> ConfigError:
    message = str(error).partition(" was raised from the environment creator")[0]
    try:
        entry = gym.spec(env).entry_point
        creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        known = [name for name in inspect.signature(creator or dict).parameters if name not in ("self", "kwargs")]
    except (TypeError, ValueError, ImportError, AttributeError, gym.error.Error):
        known = []
    unknown = next((name for name in config if known and name not in known), None)
    do = "correct env_config" + (f": {nearest(unknown, known)}" if unknown else "")
    return ConfigError(explain("environment.env_config", expected=f"keywords that {env!r} takes", found=message, do=do))


def _made(creator: Callable[..., Any], config: dict[str, Any]) -> Any:
    parameters = inspect.signature(creator).parameters.values()
    takes_dict = any(
        parameter.name in ("config", "env_config")
        or (parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )
    return creator(config) if takes_dict else creator(**config)


def autoreset_mode(env: Any) -> str:
    """When a vector environment delivers reset observations: "next_step", "same_step" or "disabled"."""
    mode = env.metadata.get("autoreset_mode", gym.vector.AutoresetMode.NEXT_STEP)
    return str(gym.vector.AutoresetMode(mode).name).lower()


def reset_done(env: Any, done: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Any, dict[str, Any]]:
    """Reset the ended environments of a vector environment that does not do so itself."""
    try:
        observations, infos = env.reset(options={"reset_mask": done})
    except Exception as error:
        raise RunnerError(
            explain(
                "resetting ended environments",
                expected="a vector environment whose reset takes options={'reset_mask': mask}",
                found=f"{type(error).__name__}: {error}",
                do="use autoreset mode NEXT_STEP or SAME_STEP",
            )
        ) from error
    return observations, infos
