"""Checks of environments before the first step, and of single values that they return."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from epibatch.core.errors import (
    ConfigError,
    EnvironmentContractError,
    EpibatchWarning,
    SpaceError,
    nearest,
)
from epibatch.core.plain import key_text, plain_key
from epibatch.core.ragged import is_padded, is_ragged, ragged_space
from epibatch.core.registered_spaces import encoded_space
from epibatch.core.spaces import AGENTS_ADVICE, encoding_advice, get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, paths_of

from .multi_agent_base import MultiAgentEnv

AUTORESET_MODES = ("next_step", "same_step", "disabled")


def gymnasium_mode(name: Any) -> gym.vector.AutoresetMode:
    """Return Gymnasium's mode for one of this package's names, or for Gymnasium's own ("NextStep").

    Raises:
        ConfigError: there is no such mode.

    Examples:
        >>> gymnasium_mode("same_step").value
        'SameStep'
    """
    mode = name
    if isinstance(name, str) and name.lower() in AUTORESET_MODES:
        mode = gym.vector.AutoresetMode[name.upper()]
    try:
        return gym.vector.AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            "autoreset mode",
            expected=f"one of {AUTORESET_MODES}",
            found=repr(name),
            do=nearest(str(name), AUTORESET_MODES),
        ) from error


def autoreset_mode(env: Any) -> str:
    """Return the autoreset mode of a vector environment: "next_step", "same_step" or "disabled".

    Without a mode in its metadata it is "next_step", as with Gymnasium's own wrappers.

    Raises:
        ConfigError: its metadata name a mode that does not exist.
    """
    metadata = getattr(env, "metadata", None) or {}
    return gymnasium_mode(metadata.get("autoreset_mode", gym.vector.AutoresetMode.NEXT_STEP)).name.lower()


_ATTRIBUTES = ("num_envs", "single_observation_space", "single_action_space", "observation_space", "action_space")


def _name_of_maker(maker: Any) -> str:
    return maker if isinstance(maker, str) else getattr(maker, "__name__", None) or type(maker).__name__


def check_single_env(env: Any, maker: Any) -> Any:
    """Check a single environment, and return it unchanged.

    Args:
        env: What was made.
        maker: The class or function that made it, for messages.

    Raises:
        ConfigError: it is no `gymnasium.Env`, or has no spaces.
    """
    made_by = _name_of_maker(maker)
    where = f"environment made by {made_by}"
    if isinstance(env, gym.vector.VectorEnv):
        raise several_envs_error(made_by, f"the vector environment {type(env).__name__}")
    if not isinstance(env, gym.Env):
        raise ConfigError(
            where,
            expected="a gymnasium.Env",
            found=_found(env),
            do="return the environment that was made" + adapter_advice(env),
        )
    if hasattr(env.unwrapped, "get_observation_space"):
        raise several_agents_error(made_by, type(env.unwrapped).__name__)
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            raise ConfigError(
                where, expected=f"a gymnasium Space as {name}", found=_found(space), do=f"set self.{name}"
            )
    return env


def several_envs_error(maker: str, found: str) -> ConfigError:
    """Return the error about a vector environment in place of a single one.

    Args:
        maker: The name of the class or function that makes it.
        found: A description of the environment.
    """
    return ConfigError(
        f"environment made by {maker}",
        expected="a single environment, several of which are put together",
        found=found,
        do="set gym_env_vectorize_mode='vector_entry_point' to use it as it is",
    )


def several_agents_error(maker: str, found: str) -> ConfigError:
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
            do="return the vector environment, or take 'sync' if single environments are made" + adapter_advice(env),
        )
    try:
        _check_made(env, num_envs, wanted)
    except (ConfigError, SpaceError):
        env.close()
        raise
    return env


def _check_made(env: Any, num_envs: int, expected: Any) -> None:
    where = f"vector environment {type(env.unwrapped).__name__}"
    missing = [name for name in _ATTRIBUTES if getattr(env, name, None) is None]
    if missing:
        agents = list(getattr(env, "possible_agents", None) or ())
        found = f"no {', '.join(missing)}" + (f", and possible_agents = {agents}" if agents else "")
        do = f"for one agent set them; with several {AGENTS_ADVICE}" if agents else "set them"
        raise ConfigError(where, expected=", ".join(_ATTRIBUTES), found=found, do=do)
    if env.num_envs != num_envs:
        raise ConfigError(
            where,
            expected=f"{num_envs} environments, as num_envs_per_env_runner says",
            found=f"num_envs = {env.num_envs}",
            do="let what makes it take num_envs, or set num_envs_per_env_runner to what it has",
        )
    mode = autoreset_mode(env)
    if expected is not None and mode != expected.name.lower():
        raise ConfigError(
            where,
            expected=f"autoreset mode {expected.name.lower()!r}, as gym_env_autoreset_mode or env_resets_itself says",
            found=f"{mode!r}: it resets in its own way",
            do="leave the setting out, or let what makes it take autoreset_mode and heed it",
        )
    check_space(env.single_observation_space, f"{where}, observation space")
    if not flatten(get_base_struct_from_space(env.single_observation_space))[0]:
        raise SpaceError(
            f"{where}, observation space",
            expected="at least one part that is an array",
            found=f"{env.single_observation_space}",
            do="give it one, a constant if there is nothing to see: Box(0, 1, (1,))",
        )


def check_space(space: Any, where: str, *, text: bool = True) -> None:
    """Raise if the values of a space are neither arrays of one shape nor text nor arrays with any number of rows.

    Args:
        space: The space.
        where: Its name for messages.
        text: False: text is refused, too, and so are such arrays, unless they are padded ones with their mask.

    Raises:
        SpaceError: it is such a space, or has such a part.
    """
    if is_padded(space):
        return
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts: Any = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            check_space(part, f"{where}[{key!r}]", text=text)
    elif (space.shape is None or space.dtype is None) and not (text and is_objects(space)):
        raise SpaceError(
            where,
            expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these: values of one shape",
            found=f"{space}",
            do=encoding_advice(space),
        )
    elif not isinstance(space, _BATCHED) and not is_objects(space) and _is_unknown(type(space)):
        name = type(space).__name__
        raise SpaceError(
            where,
            expected="a space whose values Gymnasium can put into one array",
            found=f"{name}, a class that it does not know",
            do=f"{encoding_advice(space)}; or derive {name} from Box",
        )


_BATCHED = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


def _is_unknown(kind: type[Any]) -> bool:
    return batch_space.dispatch(kind) is batch_space.dispatch(gym.Space)


def is_objects(space: Any) -> bool:
    """True if the values of a space are text, or arrays with any number of rows, which are kept as objects."""
    return isinstance(space, gym.spaces.Text) or is_ragged(space)


def has_objects(space: Any) -> bool:
    """True if a space has values that are kept as objects, or that have such parts."""
    return any(map(is_objects, flatten(get_base_struct_from_space(space))[0]))


def _found(value: Any) -> str:
    return "None: does the function return it?" if value is None else f"{type(value).__name__} {value!r}"


def adapter_advice(env: Any) -> str:
    """Return the advice to use an adapter, for a `StatelessEnv` and one that may be made for rsl_rl."""
    if hasattr(env, "as_env") and hasattr(env, "as_vector"):
        name = type(env).__name__
        return (
            f"; of a StatelessEnv, env=lambda num_envs: {name}(...).as_vector(num_envs) in mode 'vector_entry_point', "
            f"or env=lambda config: {name}(...).as_env()"
        )
    made = hasattr(env, "get_observations")
    return "; of an environment made for rsl_rl return epibatch.interop.rsl_rl.as_vector_env(env)" if made else ""


_MARK = "raised_by_environment"


def mark_environment(error: Exception) -> None:
    """Mark an error as raised by an environment, for callers that continue only after such errors."""
    setattr(error, _MARK, True)


def is_of_environment(error: BaseException) -> bool:
    """True if an environment raised the error, or the error that caused it."""
    return any(getattr(link, _MARK, False) for link in (error, error.__cause__))


def check_info(where: str, info: Any) -> None:
    """Raise if an info is not a dict.

    Raises:
        EnvironmentContractError: it is something else.
    """
    if not isinstance(info, dict):
        raise misfit(where, "a dict as info", info, "return {} if there is nothing to tell")


def warn_of_bounds(space: Any, observation: Any, where: str) -> bool:
    """Warn if numbers are outside of a bounded Box by more than its width, such as pixels that were not divided.

    Values that a Discrete space does not have make a warning too.

    Returns:
        True if it warned.
    """
    low: Any
    high: Any
    spaces, form = flatten(get_base_struct_from_space(space))
    for path, leaf, row in zip(paths_of(form), spaces, flatten_like(form, observation)):
        if isinstance(leaf, gym.spaces.Discrete):
            low, high = np.float64(int(leaf.start)), np.float64(int(leaf.start) + int(leaf.n) - 1)
            margin: Any = 0.0
        elif isinstance(leaf, gym.spaces.Box) and leaf.is_bounded():
            low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
            margin = high - low
        else:
            continue
        values = np.asarray(row)
        if values.dtype.kind not in "biuf":
            continue
        values = values.astype(np.float64)
        out = (values < low - margin) | (values > high + margin)
        if out.any():
            warning = EpibatchWarning(
                where + (path and f", part {path}"),
                expected=f"numbers from {low.min():g} to {high.max():g}, as its space says",
                found=f"{values[out].flat[0]:g}",
                do="correct the observation or the bounds of the space, which scaling and networks may go by",
            )
            warnings.warn(warning, stacklevel=2)
            return True
    return False


_MAKES_NUMBERS = "LinearReward"  # MO-Gymnasium's wrapper, which does not change `reward_space`


def reward_shape(env: Any) -> tuple[int, ...]:
    """Return the shape of an environment's rewards: that of its `reward_space`, or () for numbers.

    MO-Gymnasium's environments have such a space. That of the outermost wrapper that has one counts.
    """
    while type(env).__name__ != _MAKES_NUMBERS:
        space = vars(env).get("reward_space", getattr(type(env), "reward_space", None))
        if isinstance(space, gym.Space):
            shape = space.shape or ()
            return () if math.prod(shape) == 1 else tuple(shape)
        if not isinstance(env, (gym.Wrapper, gym.vector.VectorWrapper)):
            break
        env = env.env
    return ()


def as_reward(where: str, reward: Any, shape: tuple[int, ...] = ()) -> Any:
    """Return a reward as a float, of which also an array is allowed; with a shape as a vector: float64, of this shape.

    Raises:
        EnvironmentContractError: it is no finite number, or no vector of finite numbers of this shape.
    """
    if not isinstance(reward, (float, int, str, bytes)):
        array = np.asarray(reward)
        if shape and array.shape == shape and array.dtype.kind in "fiub":
            if not np.isfinite(array).all():
                raise misfit(where, "finite numbers as reward", reward.tolist(), "return 0.0 where there is no reward")
            return array.astype(np.float64)
        if array.size == 1 and array.dtype.kind in "fiub":
            reward = array.item()
        elif not shape and array.dtype.kind in "fiub":
            do = "return float(...); a vector of several objectives needs self.reward_space = Box(low, high, shape)"
            raise misfit(where, "a number as reward", reward, do)
    if shape:
        do = "return one number per objective; if a wrapper makes numbers, give it a reward_space of shape ()"
        raise misfit(where, f"a vector of shape {shape} as reward, as reward_space says", reward, do)
    check_reward(where, reward)
    return float(reward)


def as_flag(where: str, name: str, flag: Any) -> bool:
    """Return a flag as True or False; 1 and 0 count as these, and so does an array of a single one.

    Raises:
        EnvironmentContractError: it is something else, such as the text "False", which would count as True.
    """
    if type(flag) is bool or type(flag) is np.bool_:
        return bool(flag)
    array = np.asarray(flag)
    if array.size != 1 or array.dtype.kind not in "fiub" or array.item() not in (0, 1):
        raise misfit(where, f"True or False as {name}", flag, f"return bool(...) as {name}")
    return bool(array.item())


def check_reward(where: str, reward: Any) -> None:
    """Raise if a reward is not a finite number.

    Raises:
        EnvironmentContractError: it is not one.
    """
    number = isinstance(reward, (bool, int, float, np.bool_, np.integer, np.floating))
    if not number and isinstance(reward, np.ndarray) and reward.ndim == 0 and reward.dtype.kind in "fiub":
        number = True
    if not number:
        raise misfit(where, "a number as reward", reward, "return float(...) as reward")
    try:
        is_finite = math.isfinite(reward)
    except OverflowError:  # an int beyond the range of floats
        is_finite = False
    if not is_finite:
        raise misfit(where, "a finite reward", reward, "return 0.0 where there is no reward")


def unpack_reset(where: str, result: Any) -> tuple[Any, Any]:
    """Return observation and info of a reset.

    Raises:
        EnvironmentContractError: the result is something else than these two.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise misfit(where, "two values: observation, info", result, "return both; info may be {}")
    return result


def unpack_step(where: str, result: Any, *, one_flag: bool = False) -> tuple[Any, Any, Any, Any, Any]:
    """Return observation, reward, flags and info of a step.

    Args:
        where: The call.
        result: What it returned.
        one_flag: True if four values are converted, with a warning, whose one flag is `terminated`.

    Raises:
        EnvironmentContractError: the result is something else than these five.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        if one_flag and isinstance(result, tuple) and len(result) == 4:
            return with_both_flags(where, result, False)
        do = "return both flags: terminated (the task is over) and truncated (it was stopped early)"
        raise misfit(where, "five values: observation, reward, terminated, truncated, info", result, do)
    return result


def with_both_flags(where: str, result: Any, truncated: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return a step of four values, whose one flag is for both kinds of end, with a flag that nothing was truncated.

    Args:
        where: The call, for the warning, of which there is one.
        result: What it returned.
        truncated: The flag, or flags.
    """
    if where not in _WARNED:
        _WARNED.add(where)
        expected = "five values: observation, reward, terminated, truncated, info"
        do = "return both flags: if a time limit counts as terminated, values learned of the last step are too low"
        found = "4 values, as environments of the old gym return; the flag counts as terminated"
        warnings.warn(EpibatchWarning(where, expected=expected, found=found, do=do), stacklevel=2)
    observation, reward, terminated, info = result
    return observation, reward, terminated, truncated, info


_WARNED: set[str] = set()


def misfit(where: str, expected: str, value: Any, do: str) -> EnvironmentContractError:
    return EnvironmentContractError(where, expected=expected, found=described(value), do=do)


def unjoined(space: Any, where: str, error: Exception) -> SpaceError:
    """Return the error about an observation that cannot be put into the array of its space."""
    found = f"{type(error).__name__}: {error}"
    do = "make the environment return values of its space"
    return SpaceError(where, expected=f"values of {space}", found=found, do=do)


def described(value: Any) -> str:
    """Describe a call's return value, for messages.

    Examples:
        >>> described((np.zeros(2), None))
        '2 values: float64 array of shape (2,), None'
    """
    if isinstance(value, tuple):
        return f"{len(value)} values: {', '.join(described(item) for item in value)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 80 else type(value).__name__
    return type(value).__name__


RESERVED = ("__all__", "__common__")


def name_of(env: Any) -> str:
    """Return an environment's name for messages."""
    return type(env.unwrapped).__name__


def agents_of(env: Any) -> list[Any]:
    """Return every agent that an environment names: possible and current agents, and those with an own space."""
    base = env.unwrapped
    spaces = base.observation_spaces if isinstance(base.observation_spaces, dict) else {}
    return list(dict.fromkeys([*(base.possible_agents or ()), *(base.agents or ()), *spaces]))


def spaces_of(env: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return observation and action space of each agent; Sequences, Graphs and registered spaces are arrays there."""
    agents, base = agents_of(env), env.unwrapped
    observation_spaces = {a: ragged_space(base.get_observation_space(a)) for a in agents}
    return observation_spaces, {a: encoded_space(base.get_action_space(a)) for a in agents}


def check_multi_agent_env(env: Any, maker: Any) -> Any:
    """Check a multi-agent environment, and return it unchanged.

    Args:
        env: What was made.
        maker: The class or function that made it, or its name, for messages.

    Raises:
        ConfigError: it is no `MultiAgentEnv`, or does not say which agents there are.
        UnknownNameError: an agent without a space.
        SpaceError: observations that cannot be stored as arrays.
    """
    made_by = _name_of_maker(getattr(maker, "func", maker))
    where = f"environment made by {made_by}"
    if not isinstance(getattr(env, "unwrapped", None), MultiAgentEnv):
        raise ConfigError(where, expected="an epibatch MultiAgentEnv", **_instead(env, made_by))
    _check_agents(env.unwrapped, where)
    for kind, spaces in zip(("observation", "action"), spaces_of(env)):
        for agent, space in spaces.items():
            if not isinstance(space, gym.Space):
                raise ConfigError(
                    f"{where}, agent {agent!r}",
                    expected=f"a gymnasium Space as {kind} space",
                    found=f"{type(space).__name__} {space!r}",
                    do=f"set self.{kind}_spaces = {{agent: space}} for all possible agents",
                )
            if kind == "observation":
                check_space(space, f"{where}, observation space of agent {agent!r}")
    return env


def _check_agents(env: MultiAgentEnv, where: str) -> None:
    for name in ("possible_agents", "agents"):
        agents = getattr(env, name)
        listed = list(agents) if isinstance(agents, (list, tuple, range)) else None
        odd = [a for a in listed or () if not isinstance(a, Hashable) or a in RESERVED]
        if listed is None or odd or len(set(listed)) != len(listed):
            raise ConfigError(
                f"{where}, {name}",
                expected=f"a list of the agents' names, each once and none of {RESERVED}",
                found=f"{agents!r}",
                do=f'set self.{name} = ["red", "blue"], say',
            )
    agents = agents_of(env)
    if not agents:
        raise ConfigError(
            f"{where}, possible_agents",
            expected="the names of all agents there can ever be",
            found="none",
            do='set self.possible_agents = ["red", "blue"], say, before the environment is used',
        )
    texts: dict[str, Any] = {}
    for agent in agents:
        other = texts.setdefault(key_text(agent), agent)
        if other is not agent:
            raise ConfigError(
                f"{where}, possible_agents",
                expected="names that differ as text, as results and tables of agents have them",
                found=f"{other!r} and {agent!r}",
                do="rename one of them",
            )
        try:
            plain_key(agent)
        except TypeError:
            warning = EpibatchWarning(
                f"{where}, possible_agents",
                expected="names that a checkpoint can store: text, numbers, bools, None or tuples of these",
                found=repr(agent),
                do="rename it; pieces that keep a state by agent, as MeanStdFilter does, cannot be saved with it",
            )
            warnings.warn(warning, stacklevel=2)


def _instead(env: Any, made_by: str) -> dict[str, str]:
    """Return the error lines about an object that is not a multi-agent environment: found, and what to do."""
    if env is None:
        return {"found": "None: does the function return it?", "do": "return the environment that was made"}
    found = f"{type(env).__name__} {env!r}"
    if hasattr(getattr(env, "unwrapped", None), "get_observation_space"):
        do = "change what its class derives from: from epibatch.env_runner.multi_agent_env import MultiAgentEnv"
        return {"found": f"another package's: {found}", "do": do}
    if isinstance(env, gym.Env):
        do = f"give each agent one of its own: make_multi_agent({made_by!r}); or take it as an environment of one agent"
        return {"found": f"a Gymnasium environment of one agent: {found}", "do": do}
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        return {"found": f"an AEC environment of PettingZoo: {found}", "do": "return PettingZooEnv(env)"}
    if hasattr(env, "possible_agents") and hasattr(env, "observation_space"):
        return {"found": f"a Parallel environment of PettingZoo: {found}", "do": "return ParallelPettingZooEnv(env)"}
    return {"found": found, "do": "derive its class from epibatch.env_runner.multi_agent_env.MultiAgentEnv"}
