"""Calls of one environment, with checks of what each call returns."""

from __future__ import annotations

import contextlib
import copy as copying
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, read_from_shared_memory

from epibatch.core.errors import ColumnError, EnvironmentContractError, nearest
from epibatch.core.ragged import has_ragged_parts, ragged_row
from epibatch.core.registered_spaces import decoded, has_registered_parts
from epibatch.core.spaces import check_row
from epibatch.core.structs import Form, flatten, flatten_like

from ...episodes.arrays import UNCHANGING, owned, rebuilt
from .env_checks import (
    as_flag,
    as_reward,
    check_info,
    check_reward,
    misfit,
    name_of,
    reward_shape,
    spaces_of,
    unjoined,
    unpack_reset,
    unpack_step,
    warn_of_bounds,
)
from .tensor_envs import is_tensor


class CheckedCalls(gym.Wrapper[Any, Any, Any, Any]):
    """Checks the return values of an environment's `reset` and `step`.

    Args:
        env: The environment.

    Raises:
        EnvironmentContractError: a call returns something else than Gymnasium's `Env` says.
        SpaceError: an observation of another nesting, shape or kind than the observation space.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.metadata = dict(env.metadata)  # vector environments write their autoreset mode into it
        self._name, self._space = type(env.unwrapped).__name__, env.observation_space
        self._reward_shape = reward_shape(env)
        self._num_unchecked_bounds = 100

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        where = f"{self._name}.reset()"
        result = unpack_reset(where, self.env.reset(seed=seed, options=options))
        self._check(where, *result)
        self._check_bounds(result[0], "first observation of ")
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment; an unusual reward or flag that has a meaning is converted."""
        where = f"{self._name}.step()"
        observation, reward, terminated, truncated, info = unpack_step(where, self.env.step(action), one_flag=True)
        self._check(where, observation, info)
        flags = as_flag(where, "terminated", terminated), as_flag(where, "truncated", truncated)
        reward = as_reward(where, reward, self._reward_shape)
        self._check_bounds(observation)
        return observation, reward, *flags, info

    def _check(self, where: str, observation: Any, info: Any) -> None:
        check_row(self._space, observation, f"observation of {where}")
        check_info(where, info)

    def _check_bounds(self, observation: Any, what: str = "observation of ") -> None:
        """Warn once if one of the first observations is outside of its space; another kind is an error elsewhere."""
        if not self._num_unchecked_bounds:
            return
        self._num_unchecked_bounds -= 1
        with contextlib.suppress(ColumnError, TypeError, ValueError):
            if warn_of_bounds(self._space, observation, what + self._name):
                self._num_unchecked_bounds = 0


class FirstCallChecks(CheckedCalls):
    """Checks the return values of an environment's first reset and first steps, then removes itself from the calls.

    After the first step only bounds are checked, for a warning. Other values are checked by `SyncEnvs`, or as arrays.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first result is checked."""
        result = super().reset(seed=seed, options=options)
        self.reset = self.env.reset  # type: ignore[method-assign]
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; the first result is checked."""
        result = super().step(action)
        self.step = self._watched  # type: ignore[method-assign]
        return result

    def _watched(self, action: Any) -> Any:
        result: Any = self.env.step(action)
        if not self._num_unchecked_bounds:
            self.step = self.env.step  # type: ignore[method-assign]
        elif isinstance(result, tuple) and result:
            self._check_bounds(result[0])
        return result


class TerminalCopies(gym.Wrapper[Any, Any, Any, Any]):
    """Copies terminal observations: if arrays are reused, the reset in the same step would overwrite them.

    Args:
        env: The environment.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        result = self.env.step(action)
        if result[2] or result[3]:
            return (owned(result[0]), *result[1:])
        return result


class EnvFacts(NamedTuple):
    """Constant facts of an environment.

    Args:
        observation_space: For several agents a dict of spaces, in the order in which the environment names the agents.
        action_space: The same.
        render_mode: The mode it was made with.
        metadata: Metadata of its class.
    """

    observation_space: Any
    action_space: Any
    render_mode: str | None
    metadata: dict[str, Any]


class EnvCalls(Protocol):
    """An environment behind checked calls.

    Attributes:
        env: The environment.
        facts: Its spaces and other constant facts.
        memory: Shared memory for its observations, in a process of its own; None if they are returned.
    """

    env: Any
    facts: Any
    memory: Any

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment."""

    def step(self, action: Any) -> Any:
        """Step the environment."""

    def get(self, name: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return an attribute of the environment, or the result of a method."""

    def close(self) -> None:
        """Close the environment."""


class SingleAgentCalls:
    """Calls an environment of one agent, and checks every return value.

    Args:
        env: The environment.
        index: Its row in shared memory.
        count: The rows there.

    Attributes:
        env: The environment with its checks.
        facts: Its spaces and other constant facts.
        memory: Shared memory of Gymnasium for the observations; None to return them.
    """

    memory: Any = None

    def __init__(self, env: Any, index: int, count: int) -> None:
        self.env = CheckedCalls(env)
        self._name = type(env.unwrapped).__name__
        self._index, self._count = index, count
        self._rows: list[Any] | None = None
        self._form: Form = None
        self.facts = EnvFacts(env.observation_space, env.action_space, env.render_mode, dict(env.metadata))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._shared(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        observation, *rest = self.env.step(action)
        return (self._shared(observation), *rest)

    def get(self, name: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return an attribute of the environment, or the result of a method."""
        return attribute_of(self.env, name, args, keywords)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()  # type: ignore[no-untyped-call]

    def _shared(self, observation: Any) -> Any:
        """Write an observation into shared memory, if there is one; return it otherwise."""
        if self.memory is None:
            return observation
        if self._rows is None:
            space, index = self.facts.observation_space, self._index
            arrays, self._form = flatten(read_from_shared_memory(space, self.memory, n=self._count))
            self._rows = [array[index : index + 1] for array in arrays]
        try:
            for row, leaf in zip(self._rows, flatten_like(self._form, observation)):
                np.copyto(row, leaf)
        except (TypeError, OverflowError) as error:  # another type, such as int64 where the space says uint8
            raise unjoined(self.facts.observation_space, f"observation of {self._name}", error) from error
        return None


def attribute_of(env: Any, name: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return an attribute of an environment, or the result of a method; of a function, its value for the environment.

    Args:
        env: The environment; a function gets it without the checks around it.
        name: Name of the attribute or method, or the function; one that came from another process is in a wrapper.
        args: For the method or function.
        keywords: The same.
    """
    name = name.fn if isinstance(name, CloudpickleWrapper) else name
    if callable(name):
        while isinstance(env, (CheckedCalls, TerminalCopies)):
            env = env.env
        return name(env, *args, **keywords)
    found = env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
    return found(*args, **keywords) if callable(found) else found


_ALL, _COMMON = "__all__", "__common__"
_FIVE = ("observations", "rewards", "terminateds", "truncateds", "infos")
_USUAL: dict[str, frozenset[type]] = {  # types that need no further check
    "rewards": frozenset({float, int, np.float64, np.float32}),
    "terminateds": frozenset({bool, np.bool_}),
    "truncateds": frozenset({bool, np.bool_}),
}
_PLAIN = frozenset({float, int, bool, np.float64, np.float32, np.int64})
_CHANGING = (dict, list, set, deque, bytearray, np.ndarray)
_INSTEAD = {
    "observations": "return {agent: observation} for the agents that act next; or one observation for all, and set "
    "observation_space in place of observation_spaces",
    "rewards": "return {agent: reward}, {} if no agent gets any, or one number for all",
    "terminateds": 'return {"__all__": False}, and the agents\' own flags beside it; or True or False for all',
    "truncateds": 'return {"__all__": False}, or {}; or True or False for all',
    "infos": "return {agent: info dict}, {} if there is nothing to tell",
}


class AgentStep(NamedTuple):
    """Result of one step of a multi-agent environment, by agent.

    Args:
        observations: Of the agents that act next, or ended.
        rewards: A number for each agent that got one.
        terminateds: Flags, `__all__` among them.
        truncateds: The same.
        infos: Info dicts.
        ended: True if the environment ended.
        reset: Observations and infos by agent, if it was reset in the same step.
    """

    observations: dict[Any, Any]
    rewards: dict[Any, Any]
    terminateds: dict[Any, bool]
    truncateds: dict[Any, bool]
    infos: dict[Any, dict[str, Any]]
    ended: bool = False
    reset: tuple[dict[Any, Any], dict[Any, Any]] | None = None


class MultiAgentCalls:
    """Calls a multi-agent environment and checks that its return values follow `MultiAgentEnv`.

    Dicts, agents, rewards and flags are checked in every call. An agent's observation and info are checked only when
    they first come, since an episode checks every observation that is added. One observation of the environment's
    common `observation_space`, one reward and one flag are those of all agents that have not ended.

    Args:
        env: A `MultiAgentEnv`, which may have wrappers.
        copy: True to copy observations, as some environments write into the same arrays again. Rewards and
            infos are always copied.
        episode_end: "all": without `__all__`, the environment ends when all agents that appeared have; "any": when any
            agent does, and the others with the same flag.

    Attributes:
        env: The environment.
        facts: Its spaces and other constant facts.

    Examples:
        >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
        >>> calls = MultiAgentCalls(make_multi_agent("CartPole-v1")({"num_agents": 2}))
        >>> observations, infos = calls.reset(seed=0)
        >>> step = calls.step({0: 1, 1: 0})
        >>> step.rewards, step.ended
        ({0: 1.0, 1: 1.0}, False)
    """

    def __init__(self, env: Any, *, copy: bool = True, episode_end: str = "all") -> None:
        self.env = env
        self._any_ends = episode_end == "any"
        self.memory = None  # what agents observe varies, so it is returned
        self._reward_shape = reward_shape(env)
        self._step = f"{name_of(env)}.step()"
        self._copy = copy
        self.facts = EnvFacts(*spaces_of(env), env.render_mode, dict(env.metadata))
        self._spaces = self.facts.observation_space
        given = {agent: env.unwrapped.get_observation_space(agent) for agent in self._spaces}
        self._ragged = {agent: space for agent, space in given.items() if has_ragged_parts(space)}
        action_spaces = {agent: env.unwrapped.get_action_space(agent) for agent in self._spaces}
        self._own_actions = {agent: space for agent, space in action_spaces.items() if has_registered_parts(space)}
        space = env.unwrapped.observation_space if not env.unwrapped.observation_spaces else None
        nested = isinstance(space, gym.spaces.Dict)
        self._has_common = space is not None and not (nested and any(agent in space.spaces for agent in self._spaces))
        self._has_common_dict = self._has_common and nested
        self._checked: dict[str, set[Any]] = {name: set() for name in _FIVE}
        self._alive: set[Any] = set()
        self._begun: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}  # agents that were reset alone
        self._ended = True  # it has to be reset first

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset the environment.

        Raises:
            EnvironmentContractError: it returns something else than observations and infos by agent.
            SpaceError: an observation of another nesting, shape or kind than the agent's space.
        """
        self._ended, self._begun = True, ({}, {})  # if this fails, it has to be reset again
        result = self.env.reset(seed=seed, options=options)
        self._checked["observations"].clear()
        self._alive = set(self.env.unwrapped.agents or self._spaces)
        observations, infos = self._first(f"{name_of(self.env)}.reset()", result)
        self._alive = set(observations)
        self._ended = False
        return observations, infos

    def reset_agents(self, agents: Sequence[Any]) -> tuple[Any, Any]:
        """Reset single agents; their observations also come with the next step.

        Raises:
            NotAvailableError: the environment cannot.
            EnvironmentContractError: it returns something else than observations and infos of these agents.
            SpaceError: an observation of another nesting, shape or kind than the agent's space.
        """
        self._ended, where = True, f"{name_of(self.env)}.reset_agents()"
        observations, infos = self._first(where, self.env.unwrapped.reset_agents(agents))
        if observations.keys() != set(agents):
            raise misfit(where, f"observations of agents {list(agents)}", observations, "return those of no others")
        for begun, values in zip(self._begun, (observations, infos)):
            begun.update(values)
        self._ended = False
        return observations, infos

    def _first(self, where: str, result: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise misfit(where, "two values: observations, infos", result, "return both; infos may be {}")
        observations, infos = map(self._by_agent, ("observations", "infos"), result, (where, where))
        return _owned(observations) if self._copy else observations, _copied_infos(infos)

    def step(self, actions: dict[Any, Any]) -> AgentStep:
        """Step the environment.

        Raises:
            EnvironmentContractError: it returns something else than five dicts by agent, or no `__all__`; or it has
                ended and was not reset.
            SpaceError: an observation of another nesting, shape or kind than the agent's space.
        """
        if self._ended:
            raise EnvironmentContractError(
                self._step,
                expected="an environment that was reset, and has not ended since",
                found="one that has ended, or failed",
                do="reset it first",
            )
        self._ended = True  # if this fails, it has to be reset again
        if self._own_actions:
            actions = {agent: decoded(self._own_actions.get(agent), action) for agent, action in actions.items()}
        result = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5:
            do = "return all five; flags for agents that ended go into terminateds or truncateds"
            raise misfit(self._step, f"five values: {', '.join(_FIVE)}", result, do)
        values = [self._by_agent(name, value, self._step) for name, value in zip(_FIVE, result)]
        observations, rewards, terminateds, truncateds, infos = values
        if self._begun[0]:
            observations, infos = {**self._begun[0], **observations}, {**self._begun[1], **infos}
            self._begun = {}, {}
        if _ALL not in terminateds:
            raise EnvironmentContractError(
                self._step,
                expected='the key "__all__" in terminateds',
                found=f"the keys {list(terminateds)}",
                do='add "__all__": True when the environment has ended, else False',
            )
        if _ALL not in truncateds:
            truncateds[_ALL] = False
        if self._reward_shape:  # a step for which there comes no reward has one of this shape
            rewards = {**dict.fromkeys(observations, np.zeros(self._reward_shape)), **rewards}
        if self._any_ends and (cause := next((kind for kind in (terminateds, truncateds) if any(kind.values())), None)):
            cause[_ALL] = True
        self._ended = self._ends(observations, terminateds, truncateds)
        observations = _owned(observations) if self._copy else observations
        return AgentStep(observations, _owned(rewards), terminateds, truncateds, _copied_infos(infos), self._ended)

    def get(self, name: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return an attribute of the environment, or the result of a method."""
        return attribute_of(self.env, name, args, keywords)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _ends(self, observations: dict[Any, Any], terminateds: dict[Any, Any], truncateds: dict[Any, Any]) -> bool:
        """True if the environment ended: by `__all__`, or as every agent that appeared since the reset has ended."""
        living = self._alive
        if not observations.keys() <= living:
            living.update(observations)
        if not any(terminateds.values()) and not any(truncateds.values()):
            return False
        before = len(living)
        living.difference_update(agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag)
        return bool(terminateds[_ALL] or truncateds[_ALL] or (before and not living))

    def _by_agent(self, name: str, values: Any, where: str) -> dict[Any, Any]:
        """Return the values by agent in a new dict."""
        by_agent = isinstance(values, Mapping)
        if by_agent and name == "observations" and self._has_common_dict:
            by_agent = values.keys() <= self._spaces.keys()
        if not by_agent:
            values = self._of_all(name, values, where)
        if self._ragged and name == "observations":
            ragged = self._ragged
            values = {agent: ragged_row(ragged.get(agent), value, boxed=True) for agent, value in values.items()}
        if self._reward_shape and name == "rewards":
            shape = self._reward_shape
            values = {agent: as_reward(f"{where}, rewards[{agent!r}]", value, shape) for agent, value in values.items()}
        checked, usual = self._checked[name], _USUAL.get(name)
        strange = usual is not None and not usual.issuperset(map(type, values.values()))
        if strange or (name == "rewards" and not _finite(values.values())):
            checked.difference_update(values)
        if not values.keys() <= checked:
            for agent in values:
                if agent not in checked:
                    self._check(name, agent, values[agent], f"{where}, {name}[{agent!r}]")
        return dict(values)

    def _of_all(self, name: str, value: Any, where: str) -> dict[Any, Any]:
        """Return by agent a value that is that of all agents which have not ended."""
        agents = [agent for agent in self._spaces if agent in self._alive]
        if name == "observations" and self._has_common:
            return dict.fromkeys(agents, value)
        if name == "rewards" and isinstance(value, (int, float, np.number, np.ndarray)):
            return dict.fromkeys(agents, as_reward(where, value, self._reward_shape))
        if name in ("terminateds", "truncateds") and isinstance(value, (bool, np.bool_)):
            return {_ALL: value}
        raise misfit(where, f"{name} as a dict by agent", value, _INSTEAD[name])

    def _check(self, name: str, key: Any, value: Any, where: str) -> None:
        """Check an agent's first value, or a value of an unusual type."""
        special = {"terminateds": _ALL, "truncateds": _ALL, "infos": _COMMON}.get(name)
        if key not in self._spaces and key != special:
            raise EnvironmentContractError(
                where,
                expected="one of the environment's possible_agents",
                found=f"{type(key).__name__} {key!r}",
                do=f"give it a space there, or leave it out. {nearest(str(key), map(str, self._spaces))}",
            )
        if name == "observations":
            check_row(self._spaces[key], value, where)
        elif name == "rewards":
            if not self._reward_shape:
                check_reward(where, value)
        elif name == "infos" and not isinstance(value, dict):
            do = "return {} if there is nothing to tell, or leave the agent out"
            raise misfit(where, "an info dict", value, do)
        elif name in ("terminateds", "truncateds") and not isinstance(value, (bool, np.bool_)):
            do = "return bool(...), or leave the agent out"
            raise misfit(where, "True or False", value, do)
        self._checked[name].add(key)


def copied_info(info: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy of an info, and of the containers, arrays and tensors in it at any depth; other objects stay.

    An environment may change its info later. All types stay as they are, and an info may contain itself.
    """
    copied: dict[Any, Any] = info.copy() if type(info) is dict else copying.copy(info)
    known: dict[int, tuple[Any, Any]] = {id(info): (info, copied)}
    for key, value in copied.items():
        if type(value) is np.ndarray and not value.dtype.hasobject and id(value) not in known:  # most of them
            copied[key] = array = value.copy()
            known[id(value)] = value, array
        elif type(value) not in UNCHANGING:
            copied[key] = rebuilt(value, _copied_part, known)
    return copied


def _copied_part(part: Any) -> Any:
    if is_tensor(part):
        return part.detach().clone()
    return copying.copy(part) if isinstance(part, _CHANGING) else part


def _finite(rewards: Collection[Any]) -> bool:
    try:
        return math.isfinite(sum(rewards))
    except OverflowError:  # an int beyond the range of floats
        return False


def _owned(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return the values with copied arrays."""
    if _PLAIN.issuperset(map(type, values.values())):
        return values
    return {agent: owned(value) for agent, value in values.items()}


def _copied_infos(infos: dict[Any, Any]) -> dict[Any, Any]:
    return {agent: copied_info(info) if isinstance(info, dict) else info for agent, info in infos.items()}
