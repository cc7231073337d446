"""Makes environments from names, classes and functions, with wrappers, and puts several together."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, EnvironmentContractError, EpibatchWarning, UnknownNameError, nearest
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.registered_spaces import register_missing, registered_spaces
from epibatch.core.registry import env_creator, registered_envs

from ..env_context import EnvContext
from ..pettingzoo_env import PETTINGZOO, pettingzoo_creator
from .env_calls import FirstCallChecks, TerminalCopies
from .env_checks import (
    check_multi_agent_env,
    check_single_env,
    check_vector_env,
    gymnasium_mode,
    several_agents_error,
    several_envs_error,
)
from .multi_agent_base import MultiAgentEnv, mark_end
from .ragged_envs import with_ragged_rows, with_ragged_vectors
from .tensor_envs import VectorEnvAdapter
from .vector_envs import AsyncEnvs, SyncEnvs, VectorMultiAgentEnv
from .wrappers import ActionChunks, EpisodicLife, FrameSkip, Horizon, NoopStarts, without_time_limits

WrapperSpec: TypeAlias = "str | Mapping[str, Any] | Callable[[Any], Any]"

_CONFIG_NAMES = ("config", "env_config")
_SAME_STEP = gym.vector.AutoresetMode.SAME_STEP
_MODES = ("sync", "async", "vector_entry_point")
_EPIBATCH_WRAPPERS = {wrapper.__name__: wrapper for wrapper in (ActionChunks, EpisodicLife, FrameSkip, NoopStarts)}


@contextmanager
def _missing_packages_named() -> Iterator[None]:
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


def _creator_of(env: Any) -> Callable[..., Any] | None:
    """Return the class or function that makes an environment; None for a Gymnasium id.

    Args:
        env: The config's environment.

    Raises:
        ConfigError: it is neither a name nor a class or function, or one of PettingZoo's names.
    """
    if isinstance(env, str) and env.startswith(PETTINGZOO):
        raise several_agents_error(env, "PettingZoo's")
    if isinstance(env, str):
        return env_creator(env) if env in registered_envs() else _class_at(env)
    if callable(env):
        return env  # type: ignore[no-any-return]
    raise ConfigError(
        "environment",
        expected="a Gymnasium id, a registered name, an environment class or a function",
        found=f"{type(env).__name__}: {env!r}",
        do="pass the class or id, or a function that returns it; the runner makes what it needs",
    )


def _call_creator(creator: Callable[..., Any], config: dict[str, Any], offered: Mapping[str, Any] | None = None) -> Any:
    """Call a class or function with a config.

    Args:
        creator: It gets keywords. It gets the config as one dict instead if it has a parameter called `config` or
            `env_config`, or a first parameter that must be given and that no key of the config names.
        config: The environment's.
        offered: For what makes a vector environment: keywords that it gets if they are parameters.

    Raises:
        ConfigError: keywords that it does not take, or one that is missing; a function of `num_envs`, which makes a
            vector environment, where single ones are expected.

    Examples:
        >>> _call_creator(lambda length=3: length, {"length": 5}), _call_creator(lambda config: config, {"length": 5})
        (5, {'length': 5})
        >>> _call_creator(lambda length: length, {"length": 5}), _call_creator(lambda context: context, {"length": 5})
        (5, {'length': 5})
    """
    parameters = inspect.signature(creator).parameters
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    keywords = {k: v for k, v in (offered or {}).items() if k in parameters or (takes_any and k == "num_envs")}
    usual = [item for item in parameters.values() if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    needed = [item.name for item in usual if item.default is item.empty and item.name not in keywords]
    maker = getattr(creator, "__name__", type(creator).__name__)
    if offered is None and needed[:1] == ["num_envs"]:
        raise several_envs_error(maker, "a vector environment of num_envs")
    whole = next((name for name in _CONFIG_NAMES if name in parameters), None)
    if needed and (whole is None or needed != [whole]):
        takes_config = needed == [next(iter(parameters))] and needed[0] not in config
        is_keyword = parameters[needed[0]].kind is inspect.Parameter.KEYWORD_ONLY
        whole = needed[0] if takes_config and not is_keyword else None
        _warn_of_shadowed(maker, whole, [name for name in config if name in parameters])
    if whole is not None and parameters[whole].kind is inspect.Parameter.POSITIONAL_ONLY:
        return creator(config, **keywords)
    if whole is not None:
        return creator(**keywords, **{whole: config})
    missing = [name for name in needed if name not in config]
    unknown = [name for name in config if name not in parameters and not takes_any]
    if missing or unknown:
        raise ConfigError(
            "environment.env_config",
            expected=f"keywords that {maker} takes, or a parameter env_config for all of them",
            found=repr(str(unknown[0])) if unknown else f"{dict(config)!r}, without {missing[0]!r}",
            do=nearest(str(unknown[0]), parameters) if unknown else f"give {missing[0]}, or a default for it",
        )
    return creator(**{**keywords, **config})


def _warn_of_shadowed(maker: str, whole: str | None, named: Sequence[str]) -> None:
    """Warn if a parameter gets the whole config, though keys of the config name other parameters."""
    if whole is not None and named:
        warning = EpibatchWarning(
            "environment.env_config",
            expected=f"a value for {whole}, which {maker} needs",
            found=f"{', '.join(named)}: other parameters of {maker}, while {whole} gets the whole dict",
            do=f"give {whole} too; or call the parameter env_config if it is to get the dict",
        )
        warnings.warn(warning, stacklevel=2)


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
    except gym.error.Error as error:
        if "Malformed" not in str(error):
            raise
        raise _unknown_id(env) from error


def _class_at(env: str) -> Callable[..., Any] | None:
    """Return the class or function that `module:name` names; None for other texts, such as an id of Gymnasium.

    The module is imported. An id that it registers under this name has precedence.

    Args:
        env: The config's environment.

    Examples:
        >>> _class_at("gymnasium.envs.classic_control:CartPoleEnv").__name__
        'CartPoleEnv'
    """
    module, _, name = env.rpartition(":")
    if not module:
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        do = f"check the spelling; {error.name} has to be installed, or in the folder that this runs in"
        raise UnknownNameError("environment", expected=f"the module of {env}", found=str(error), do=do) from error
    return found if name not in gym.registry and (_is_environment(found) or inspect.isroutine(found)) else None


def _is_environment(found: Any) -> bool:
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in ("reset", "step"))


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
        ids = [id_ for id_, spec in gym.registry.items() if spec.vector_entry_point is not None]
        raise ConfigError(
            "gym_env_vectorize_mode",
            expected="an id with a vector version of its own",
            found=f"'vector_entry_point' for {env!r}, which was registered without vector_entry_point",
            do=f"take 'sync' or 'async'. Ids with one: {', '.join(sorted(ids)[:10])}",
        )
    return gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry


def _unknown_namespace(env: str) -> UnknownNameError:
    module, _, name = env.rpartition(":")
    namespace = name.partition("/")[0]
    package, own_module = {"ALE": ("ale-py", "ale_py")}.get(namespace, ("THE_PACKAGE", "its_module"))
    namespaces = {spec.namespace for spec in gym.registry.values() if spec.namespace}
    close = {spelled for spelled in namespaces if spelled.lower() == namespace.lower()}
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
        names = [name for name in inspect.signature(creator or dict).parameters if name not in ("self", "kwargs")]
    except (TypeError, ValueError, ImportError, AttributeError, gym.error.Error):
        names = []
    unknown = next((name for name in config if names and name not in names), None)
    do = "correct env_config" + (f": {nearest(unknown, names)}" if unknown else "")
    return ConfigError("environment.env_config", expected=f"keywords that {env!r} takes", found=message, do=do)


def wrapper_names() -> list[str]:
    """Return the names that a config can list: those of `gymnasium.wrappers`, and of the wrappers here."""
    return [*(name for name in gym.wrappers.__all__ if name != "vector"), *_EPIBATCH_WRAPPERS]


def _wrapper_class(name: str) -> Any:
    return _EPIBATCH_WRAPPERS[name] if name in _EPIBATCH_WRAPPERS else getattr(gym.wrappers, name)


def wrapper_problem(spec: Any) -> str | None:
    """Return the problem of a config's wrapper as text; None if it is valid.

    Args:
        spec: The name of a class in `gymnasium.wrappers`, or of a wrapper here; `{"wrapper": name, keyword: value,
            ...}`; or a function (or class) that is called with an environment and returns one.

    Examples:
        >>> wrapper_problem({"wrapper": "TimeLimit", "max_episode_step": 5})
        "TimeLimit has no argument 'max_episode_step'. did you mean 'max_episode_steps'? Known: max_episode_steps"
    """
    if callable(spec):
        return None
    name, keywords = _parts(spec)
    if name is None:
        return f"expected a wrapper's name, {{wrapper: name, ...}} or a function, found {type(spec).__name__} {spec!r}"
    names = wrapper_names()
    if name not in names:
        return f"there is no wrapper {name!r} in gymnasium.wrappers or here. {nearest(name, names)}"
    try:
        parameters = list(inspect.signature(_wrapper_class(name)).parameters.values())[1:]
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        return f"{name} needs a package that is not installed: {error}"
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    required = {parameter.name: parameter.default is parameter.empty for parameter in parameters}
    for key in keywords:
        if key not in required:
            return f"{name} has no argument {key!r}. {nearest(key, required)}"
    missing = next((key for key, needed in required.items() if needed and key not in keywords), None)
    return None if missing is None else f"{name} needs the argument {missing!r}"


def wrappers_of(config: Any, mode: str = "sync") -> list[WrapperSpec]:
    """Return a config's wrappers, and around them what holds its `horizon` and its `random_first_horizon`.

    Args:
        config: Has the settings.
        mode: The `gym_env_vectorize_mode` of the environments.

    Raises:
        ConfigError: a `soft_horizon` without `horizon`; or a vector environment, whose episodes nothing can truncate.
    """
    horizon, first = config.horizon, config.random_first_horizon
    if config.soft_horizon and horizon is None:
        do = "set horizon, the number of steps; or leave soft_horizon out"
        raise ConfigError("env_runners.soft_horizon", expected="a horizon with it", found="horizon=None", do=do)
    hard = None if config.soft_horizon else horizon
    if mode == "vector_entry_point":
        if hard is not None or first is not None:
            setting = "horizon" if hard is not None else "random_first_horizon"
            raise ConfigError(
                f"env_runners.{setting}",
                expected="single environments, whose episodes can be truncated one by one",
                found="gym_env_vectorize_mode='vector_entry_point'",
                do="let the vector environment truncate, env_config={'max_episode_steps': ...} say; or take 'sync' or "
                "'async', or soft_horizon=True",
            )
        return list(config.wrappers)
    around: list[WrapperSpec] = [] if horizon is None else [partial(without_time_limits, horizon=horizon)]
    if hard is not None or first is not None:
        around.append(partial(Horizon, horizon=hard, random_first=first))
    return [*config.wrappers, *around]


def _wrapper_functions(specs: Sequence[WrapperSpec]) -> list[Callable[[Any], Any]]:
    """Return one function from environment to environment per wrapper of a config; the first is the innermost.

    Raises:
        ConfigError: a wrapper that does not exist, or keywords that it does not accept.
    """
    functions: list[Callable[[Any], Any]] = []
    for position, spec in enumerate(specs):
        problem = wrapper_problem(spec)
        if problem is not None:
            raise ConfigError(
                f"environment.wrappers[{position}]",
                expected="a wrapper's name with its keywords, or a function",
                found=problem,
                do="correct it",
            )
        if callable(spec):
            functions.append(spec)
        else:
            name, keywords = _parts(spec)
            functions.append(partial(_wrapper_class(str(name)), **keywords))
    return functions


def _parts(spec: Any) -> tuple[str | None, dict[str, Any]]:
    """Return name and keywords of a wrapper given as data."""
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, Mapping) and isinstance(spec.get("wrapper"), str):
        return spec["wrapper"], {key: value for key, value in spec.items() if key != "wrapper"}
    return None, {}


def make_vector_env(
    env: Any,
    num_envs: int,
    mode: str = "sync",
    env_config: dict[str, Any] | None = None,
    autoreset: Any = None,
    wrappers: Sequence[WrapperSpec] = (),
    *,
    resets_itself: bool = False,
    per_process: int = 1,
    timeout: float | None = None,
) -> Any:
    """Make N environments that step together.

    Args:
        env: A Gymnasium id, a name given to `register_env`, an environment class or its import path
            `module:Class`, or a function of the config that makes one environment. With
            "vector_entry_point" the class or function makes the vector environment: it is called with
            `num_envs=N` if it has that parameter, and the config.
        num_envs: N.
        mode: "sync", "async" (in worker processes), or "vector_entry_point" (the id's own vector version).
        env_config: Passed to the environment as keywords. A class or function gets it as one dict if it has a
            parameter called `config` or `env_config`, or a required first one that no key names.
        autoreset: When reset observations come: "next_step", "same_step", "disabled"; None: as the
            vector environment does by itself. A vector entry point gets it as the keyword
            `autoreset_mode` (a `gymnasium.vector.AutoresetMode`) if it has such a parameter.
        wrappers: Gymnasium wrappers around each single environment, the innermost first: names,
            `{"wrapper": name, keyword: value}`, or functions.
        resets_itself: True if an environment resets itself inside `step`, and returns the next episode's first
            observation with the end of one. The mode is then "same_step", without terminal observations.
        per_process: How many environments a worker process has ("async").
        timeout: Seconds that a worker process may take for a call of its environments; None: no limit ("async").

    Returns:
        A `gymnasium.vector.VectorEnv`.

    Raises:
        ConfigError: no environment, an unknown mode or wrapper, an object that is no environment,
            or a vector environment of another size or autoreset mode than requested.
        UnknownNameError: an id that Gymnasium does not know.
        SpaceError: observations that cannot be stored as arrays.

    Examples:
        >>> env = make_vector_env("CartPole-v1", 3, autoreset="same_step", wrappers=["RecordEpisodeStatistics"])
        >>> env.num_envs, env.metadata["autoreset_mode"].name
        (3, 'SAME_STEP')
        >>> env.close()
    """
    config = EnvContext(env_config)
    if mode not in _MODES:
        raise ConfigError(
            "gym_env_vectorize_mode", expected=f"one of {_MODES}", found=repr(mode), do=nearest(mode, _MODES)
        )
    if env is None:
        raise ConfigError("environment", expected="env", found="None", do='call .environment("CartPole-v1"), say')
    reset_mode = None if autoreset is None else gymnasium_mode(autoreset)
    if resets_itself:
        if reset_mode not in (None, _SAME_STEP):
            raise ConfigError(
                "env_resets_itself",
                expected="gym_env_autoreset_mode 'same_step' or none: the reset is part of the step",
                found=repr(autoreset),
                do="leave gym_env_autoreset_mode out",
            )
        reset_mode = _SAME_STEP
    _warn_of_no_limit(mode, timeout)
    with _missing_packages_named():
        workers = {"resets_itself": resets_itself, "per_process": per_process, "timeout": timeout}
        vector_env = _vectorized(env, num_envs, mode, config, reset_mode, wrappers, workers)
    if mode == "vector_entry_point" and not isinstance(vector_env, gym.vector.VectorEnv):
        fits = VectorEnvAdapter.fits(vector_env)
        vector_env = VectorEnvAdapter(vector_env, reset_mode or _SAME_STEP) if fits else vector_env
    if resets_itself and isinstance(vector_env, gym.vector.VectorEnv) and "autoreset_mode" not in vector_env.metadata:
        vector_env.metadata = {**vector_env.metadata, "autoreset_mode": reset_mode}
    if isinstance(vector_env, gym.vector.VectorEnv) and mode == "vector_entry_point":
        vector_env = with_ragged_vectors(vector_env)
    return check_vector_env(vector_env, num_envs, reset_mode)


def _vectorized(
    env: Any,
    num_envs: int,
    mode: str,
    config: EnvContext,
    reset_mode: Any,
    wrappers: Sequence[WrapperSpec],
    workers: dict[str, Any],
) -> Any:
    """Make a vector environment in one of the three modes."""
    creator = _creator_of(env)
    settings: dict[str, Any] = {} if reset_mode is None else {"autoreset_mode": reset_mode}
    if mode == "vector_entry_point":
        if wrappers:
            raise ConfigError(
                "environment.wrappers",
                expected="none with gym_env_vectorize_mode='vector_entry_point', which has no single environments",
                found=f"{len(wrappers)}",
                do="let a function make the vector environment and put wrappers of gymnasium.wrappers.vector around it",
            )
        if creator is not None:
            return _call_creator(creator, config, {"num_envs": num_envs, **settings})
        with _explained(env, config):
            takes_mode = "autoreset_mode" in inspect.signature(_vector_creator(env)).parameters
            own = {**config, **(settings if takes_mode else {})}
            return gym.make_vec(env, num_envs=num_envs, vectorization_mode=mode, **own)
    counted = [_refuse_counting] if workers["resets_itself"] else []
    around = [*_wrapper_functions(wrappers), *counted, with_ragged_rows]
    if mode == "sync":
        around += [TerminalCopies] if reset_mode is _SAME_STEP else []
        around += [FirstCallChecks]
    make = partial(_single, env, creator, around=around, check=check_single_env, codecs=registered_spaces())
    makers = [partial(make, config=own) for own in _numbered(config, num_envs)]
    if mode == "async":
        return AsyncEnvs(makers, **settings, **workers)
    envs = SyncEnvs(makers, resets_itself=workers["resets_itself"], **settings)
    envs.spec = envs.envs[0].unwrapped.spec
    return envs


def _numbered(config: EnvContext, num_envs: int) -> list[EnvContext]:
    """Return a copy of the config for each environment, which knows its number."""
    copies = [EnvContext(config) for _ in range(num_envs)]
    for index, own in enumerate(copies):
        own.vector_index = index
    return copies


def makes_vector_env(env: Any) -> bool:
    """True if what a config names makes vector environments: such a class, or one whose first parameter is `num_envs`.

    Args:
        env: As for `make_vector_env`.
    """
    creator = None if env is None else _creator_of(env)
    if creator is None:
        return False
    if isinstance(creator, type) and issubclass(creator, (gym.vector.VectorEnv, gym.Env)):
        return issubclass(creator, gym.vector.VectorEnv)
    return next(iter(inspect.signature(creator).parameters), None) == "num_envs"


def make_any_env(env: Any, env_config: dict[str, Any] | None = None) -> Any:
    """Make what a config names, without wrappers and checks.

    Args:
        env: As for `make_vector_env` or `make_vector_multi_agent_env`. A class or function with a parameter `num_envs`
            makes a vector environment, of 2 environments if the config does not say how many.
        env_config: Passed to the environment.

    Raises:
        ConfigError: neither a name nor a class or function; a keyword that it does not take; missing packages.
        UnknownNameError: an id that Gymnasium does not know.
    """
    config = EnvContext(env_config)
    creator = pettingzoo_creator(env) if isinstance(env, str) and env.startswith(PETTINGZOO) else _creator_of(env)
    with _missing_packages_named():
        if creator is not None and "num_envs" in inspect.signature(creator).parameters:
            return _call_creator(creator, config, {"num_envs": config.pop("num_envs", 2)})
        return _single(env, creator, config, (), lambda made, _: made, disable_env_checker=True)


def _refuse_counting(env: Any) -> Any:
    """Return an environment that resets itself, unless a wrapper counts its steps from reset to reset.

    Raises:
        ConfigError: it has such a wrapper.
    """
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, (Horizon, gym.wrappers.TimeLimit, gym.wrappers.RecordEpisodeStatistics)):
            raise ConfigError(
                f"env_resets_itself, environment {env}",
                expected="no wrapper that counts steps from one reset() to the next, since none is called after an end",
                found=type(inner).__name__,
                do="count steps inside the environment; leave out horizon, and max_episode_steps of gym.register",
            )
        inner = inner.env
    return env


def _single(
    env: Any,
    creator: Callable[..., Any] | None,
    config: dict[str, Any],
    around: Sequence[Callable[[Any], Any]],
    check: Callable[[Any, Any], Any],
    codecs: dict[type, Any] | None = None,
    **settings: Any,
) -> Any:
    """Make one environment with its wrappers, and check it after each of them.

    Args:
        env: Its id, if there is no creator.
        creator: Makes it.
        config: Passed to the environment.
        around: Wrappers.
        check: Called with each and with what made it.
        codecs: Classes of spaces to register in this process.
        settings: For `gymnasium.make`.
    """
    register_missing(codecs or {})
    if creator is None:
        with _explained(env, config):
            result = gym.make(env, **settings, **config)
    else:
        result = _call_creator(creator, config)
    result = check(result, creator or env)
    for wrapper in around:
        result = check(wrapper(result), wrapper)
    return result


def make_vector_multi_agent_env(
    env: Any,
    num_envs: int,
    mode: str = "sync",
    env_config: dict[str, Any] | None = None,
    wrappers: Sequence[WrapperSpec] = (),
    *,
    copy: bool = True,
    per_process: int = 1,
    timeout: float | None = None,
    episode_end: str = "all",
) -> VectorMultiAgentEnv:
    """Make N multi-agent environments that step together.

    Args:
        env: A `MultiAgentEnv` class or its import path `module:Class`, a name given to `register_env`, a Gymnasium id,
            or a function of the config that makes one environment.
        num_envs: N.
        mode: "sync", "async" (in worker processes), or "vector_entry_point" (`env` makes a vector environment).
        env_config: Passed to the environment, as for `make_vector_env`.
        wrappers: Functions from environment to environment, applied to each single environment, the innermost first.
            Gymnasium's own wrappers are for one agent; only those that read no values work here.
        copy: As for `VectorMultiAgentEnv`.
        per_process: The same.
        timeout: The same.
        episode_end: The same.

    Raises:
        ConfigError: no environment, an unknown mode or wrapper, or an object that is no `MultiAgentEnv`.
        UnknownNameError: an id that Gymnasium does not know, an agent without space.
        SpaceError: observations that cannot be stored as arrays, or an agent with several spaces.

    Examples:
        >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
        >>> envs = make_vector_multi_agent_env(make_multi_agent("CartPole-v1"), 2, env_config={"num_agents": 3})
        >>> [list(observations) for observations in envs.reset(seed=0)[0]]
        [[0, 1, 2], [0, 1, 2]]
        >>> envs.close()
    """
    config = EnvContext(env_config)
    if env is None:
        do = 'call .environment(make_multi_agent("CartPole-v1")), say'
        raise ConfigError("environment", expected="env", found="None", do=do)
    named = isinstance(env, str) and env.startswith(PETTINGZOO)
    creator = pettingzoo_creator(env) if named else _creator_of(env)
    settings: dict[str, Any] = {"episode_end": episode_end, "name": getattr(env, "__name__", env)}
    if mode == "vector_entry_point":
        if wrappers or not callable(creator):
            raise ConfigError(
                "gym_env_vectorize_mode",
                expected="a class or function that makes a vector environment of several agents, without wrappers",
                found=f"'vector_entry_point' with {env!r} and {len(wrappers)} wrappers",
                do="let env make the vector environment, or use 'sync' or 'async'",
            )
        with _missing_packages_named():
            make_all = partial(_call_creator, creator, config, {"num_envs": num_envs})
            envs = VectorMultiAgentEnv([make_all], mode=mode, **settings)
        if envs.num_envs != num_envs:
            envs.close()
            found, do = f"num_envs = {envs.num_envs}", "let what makes it take num_envs"
            raise ConfigError("num_envs_per_env_runner", expected=f"{num_envs} environments", found=found, do=do)
        return envs
    own: dict[str, Any] = {"codecs": registered_spaces(), "disable_env_checker": True}
    make = partial(_single, env, creator, around=_wrapper_functions(wrappers), check=check_multi_agent_env, **own)
    makers = [partial(make, config=each) for each in _numbered(config, num_envs)]
    _warn_of_no_limit(mode, timeout)
    with _missing_packages_named():
        workers: dict[str, Any] = {"per_process": per_process, "timeout": timeout}
        return VectorMultiAgentEnv(makers, mode=mode, copy=copy, **workers, **settings)


def _warn_of_no_limit(mode: str, timeout: float | None) -> None:
    if timeout is not None and mode != "async":
        warning = EpibatchWarning(
            "sub_environment_timeout_s",
            expected="gym_env_vectorize_mode 'async': a process can be stopped when it does not answer",
            found=f"{timeout} seconds, with {mode!r}: an environment that hangs is waited for",
            do="set gym_env_vectorize_mode='async', or leave the limit out",
        )
        warnings.warn(warning, stacklevel=3)


def make_multi_agent(env_name_or_creator: Any) -> type[MultiAgentEnv]:
    """Return a class of environments in which each agent acts in a single-agent environment of its own.

    Args:
        env_name_or_creator: A Gymnasium id, a name given to `register_env`, an environment class or its import path,
            or a function of the config that makes one.

    Returns:
        A class that takes a config dict: `num_agents` (default 1), the rest is for the environments. Agents are
        called 0, 1, ...; those that have ended wait for the others. Seeds of different agents are independent.

    Examples:
        >>> env = make_multi_agent("CartPole-v1")({"num_agents": 2})
        >>> observations, infos = env.reset(seed=0)
        >>> list(observations), env.step({0: 1, 1: 0})[1]
        ([0, 1], {0: 1.0, 1: 1.0})
        >>> env.close()
    """

    class MultiEnv(_IndependentEnvs):
        """Several single-agent environments side by side."""

        def __init__(self, config: dict[str, Any] | None = None) -> None:
            super().__init__(env_name_or_creator, EnvContext(config))

    return MultiEnv


class _IndependentEnvs(MultiAgentEnv):
    def __init__(self, env: Any, config: dict[str, Any]) -> None:
        super().__init__()
        count = config.pop("num_agents", 1)
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            do = 'call the class with {"num_agents": 2}'
            raise ConfigError("num_agents", expected="a number of agents, 1 or more", found=repr(count), do=do)
        creator = _creator_of(env)
        self.envs = [
            _single(env, creator, EnvContext(config), (), check_single_env, disable_env_checker=True)
            for _ in range(count)
        ]
        self.possible_agents = list(range(count))
        self.agents = list(range(count))
        self._begun: list[Any] = []  # reset alone since the last step
        self.observation_spaces = {agent: item.observation_space for agent, item in enumerate(self.envs)}
        self.action_spaces = {agent: item.action_space for agent, item in enumerate(self.envs)}
        self.metadata = dict(self.envs[0].metadata)
        self.render_mode = self.envs[0].render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environments of all agents."""
        super().reset(seed=seed)
        self.agents, self._begun = list(self.possible_agents), []
        count = len(self.envs)
        seeds = [None] * count if seed is None else [seed_of(random_stream(seed, agent)) for agent in range(count)]
        pairs = [env.reset(seed=env_seed, options=options) for env, env_seed in zip(self.envs, seeds)]
        return {a: pair[0] for a, pair in enumerate(pairs)}, {a: pair[1] for a, pair in enumerate(pairs)}

    def reset_agents(self, agents: Sequence[Any]) -> Any:
        """Reset the environments of single agents."""
        self._begun = list(agents)
        self.agents = [agent for agent in self.possible_agents if agent in self.agents or agent in agents]
        pairs = {agent: self.envs[agent].reset() for agent in agents}
        return {agent: pair[0] for agent, pair in pairs.items()}, {agent: pair[1] for agent, pair in pairs.items()}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Step the environments of the agents that act.

        Raises:
            EnvironmentContractError: no agent acts, or one that has ended or does not exist.
        """
        acts, self._begun = action_dict or self._begun, []
        if not acts or not action_dict.keys() <= set(self.agents):
            raise EnvironmentContractError(
                f"{type(self).__name__}.step",
                expected=f"actions of some of the agents {self.agents}",
                found=f"actions of {list(action_dict)}",
                do="reset the environment first" if not self.agents else "let only agents act that have not ended",
            )
        steps = {agent: self.envs[agent].step(action) for agent, action in action_dict.items()}
        observations, rewards, terminateds, truncateds, infos = (
            {agent: step[i] for agent, step in steps.items()} for i in range(5)
        )
        self.agents = [agent for agent in self.agents if not (terminateds.get(agent) or truncateds.get(agent))]
        mark_end(terminateds, truncateds, ended=not self.agents)
        return observations, rewards, terminateds, truncateds, infos

    def render(self) -> Any:
        """Return one image of all agents' environments, side by side, or wide images one below the other."""
        images = [env.render() for env in self.envs]
        if not all(isinstance(image, np.ndarray) for image in images):
            return None if self.render_mode in (None, "human") else images
        return np.concatenate(images, axis=0 if images[0].shape[1] > images[0].shape[0] else 1)

    def close(self) -> None:
        """Close the environments of all agents."""
        for env in self.envs:
            env.close()
