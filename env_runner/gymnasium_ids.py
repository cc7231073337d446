"""Vector environments from Gymnasium ids and import paths, with errors that suggest the right id or keyword."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, UnknownNameError, nearest

from .sync_envs import SyncEnvs

__all__ = ["class_at", "make_from_id", "make_one_from_id"]


def make_from_id(env: str, num_envs: int, mode: str, config: dict[str, Any], **settings: Any) -> Any:
    """Make N environments of a Gymnasium id that step together.

    Args:
        env: The id, or `module:Id-v0`.
        num_envs: N.
        mode: "sync", "async" or "vector_entry_point".
        config: Keywords for the environment.
        **settings: As for `gymnasium.make_vec`: `vector_kwargs`, `wrappers`. For a vector entry point:
            `autoreset_mode`, passed on if its constructor has that parameter.

    Raises:
        UnknownNameError: an id that Gymnasium does not know.
        ConfigError: keywords that the environment does not take, or no vector entry point.
    """
    wanted = settings.pop("autoreset_mode", None)
    with _explained(env, config):
        if mode == "vector_entry_point":
            config = {**config, **_mode_keyword(_vector_creator(env), wanted)}
        if mode == "sync":
            return _one_after_the_other(env, num_envs, config, **settings)
        return gym.make_vec(env, num_envs=num_envs, vectorization_mode=mode, **settings, **config)


def make_one_from_id(env: str, config: dict[str, Any]) -> Any:
    """Make one environment of a Gymnasium id, without Gymnasium's own checks, which are for one agent.

    Args:
        env: The id, or `module:Id-v0`.
        config: Keywords for the environment.

    Raises:
        UnknownNameError: an id that Gymnasium does not know.
        ConfigError: keywords that the environment does not take.
    """
    with _explained(env, config):
        return gym.make(env, disable_env_checker=True, **config)


@contextmanager
def _explained(env: str, config: dict[str, Any]) -> Iterator[None]:
    """Suggest the right id or keyword if Gymnasium refuses one."""
    try:
        yield
    except gym.error.NamespaceNotFound as error:
        raise _unknown_namespace(env) from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise _wrong_env_config(env, config, error) from error
    except (gym.error.NameNotFound, gym.error.VersionNotFound) as error:
        raise _unknown_id(env) from error


def _one_after_the_other(
    env: str, num_envs: int, config: dict[str, Any], vector_kwargs: dict[str, Any], wrappers: Sequence[Any]
) -> SyncEnvs:
    """Make the environments of `gymnasium.make_vec` in mode "sync", but with this package's class."""

    def make() -> Any:
        made: Any = gym.make(env, **config)
        for wrapper in wrappers:
            made = wrapper(made)
        return made

    envs = SyncEnvs([make] * num_envs, **vector_kwargs)
    envs.spec = envs.envs[0].unwrapped.spec
    return envs


def class_at(env: str) -> type[Any] | None:
    """Return the environment class that `module:Class` names; None for other texts, such as an id of Gymnasium.

    The module is imported. An id that it registers under this name has precedence.

    Args:
        env: The config's environment.

    Example:
        >>> class_at("gymnasium.envs.classic_control:CartPoleEnv").__name__
        'CartPoleEnv'
    """
    module, _, name = env.rpartition(":")
    if not module:
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None  # Gymnasium says so
    return found if name not in gym.registry and _is_environment(found) else None


def _is_environment(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, (gym.Env, gym.vector.VectorEnv))


def _unknown_id(env: str) -> UnknownNameError:
    module, _, name = env.rpartition(":")
    close = difflib.get_close_matches(name, gym.registry, n=1, cutoff=0.75)
    suggested = ":".join([*([module] if module else []), *close])
    do = f"did you mean {suggested!r}?" if close else "check the spelling"
    expected, found = "a Gymnasium id", repr(env)
    if module:
        stem = re.sub(r"-v\d+$", "", name)
        expected = "a Gymnasium id that the module registers, or an environment class in it"
        found = f"module {module} was imported and registers no {name!r}"
        inside = getattr(importlib.import_module(module), stem, None)
        register = f'gym.register("{stem}-v0", entry_point="{module}:{stem}")'
        if _is_environment(inside):
            found += f", but has the class {stem}"
            do = f"name the class, {module}:{stem}; or add the line {register} to the module, for {module}:{stem}-v0"
        elif inside is not None:
            found += f", and its {stem} is no class of gymnasium.Env"
        elif not close:
            do = f"check the spelling, or add the line {register} to the module"
    elif not close:
        do = "check the spelling; an environment of a module of yours is 'module:Id-v0' or 'module:Class'"
    return UnknownNameError("environment", expected=expected, found=found, do=do)


def _vector_creator(env: str) -> Callable[..., Any]:
    """Return the class or function that makes an id's own vector version."""
    module, _, name = env.rpartition(":")
    if module:
        importlib.import_module(module)
    entry = gym.spec(name).vector_entry_point
    if entry is None:
        own = [id_ for id_, spec in gym.registry.items() if spec.vector_entry_point is not None]
        raise ConfigError(
            "gym_env_vectorize_mode",
            expected="an id with a vector version of its own",
            found=f"'vector_entry_point' for {env!r}, which was registered without vector_entry_point",
            do=f"take 'sync' or 'async'. Ids with one: {', '.join(sorted(own)[:10])}",
        )
    return gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry


def _mode_keyword(creator: Callable[..., Any], wanted: Any) -> dict[str, Any]:
    takes_it = wanted is not None and "autoreset_mode" in inspect.signature(creator).parameters
    return {"autoreset_mode": wanted} if takes_it else {}


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
        "environment",
        expected="a Gymnasium id",
        found=f"{env!r}, and no imported package has registered the namespace {namespace!r}",
        do=do,
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
    return ConfigError("environment.env_config", expected=f"keywords that {env!r} takes", found=message, do=do)
