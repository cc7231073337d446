"""Checked calls of one multi-agent environment, with copied dicts and arrays, and its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.errors import EnvironmentContractError, nearest
from epibatch.core.spaces import check_row
from epibatch.core.structs import map_struct

from .made_env import check_reward, described
from .multi_agent_checks import name_of, spaces_of

__all__ = ["AgentStep", "MultiAgentCalls"]

_ALL, _COMMON = "__all__", "__common__"
_FIVE = ("observations", "rewards", "terminateds", "truncateds", "infos")
_USUAL: dict[str, frozenset[type]] = {  # types that need no further check
    "rewards": frozenset({float, int, np.float64, np.float32}),
    "terminateds": frozenset({bool, np.bool_}),
    "truncateds": frozenset({bool, np.bool_}),
}
_PLAIN = frozenset({float, int, bool, np.float64, np.float32, np.int64})
_INSTEAD = {
    "observations": "return {agent: observation} for the agents that act next",
    "rewards": "return {agent: reward}, {} if no agent gets any",
    "terminateds": 'return {"__all__": False}, and the agents\' own flags beside it',
    "truncateds": 'return {"__all__": False}, or {}; for a time limit count steps in the environment: wrappers such as '
    "Gymnasium's TimeLimit know one agent",
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
        ended: True if the environment must be reset before the next step.
    """

    observations: dict[Any, Any]
    rewards: dict[Any, Any]
    terminateds: dict[Any, bool]
    truncateds: dict[Any, bool]
    infos: dict[Any, dict[str, Any]]
    ended: bool = False


class MultiAgentCalls:
    """Calls a multi-agent environment and checks that its return values follow `MultiAgentEnv`.

    Dicts, agents, rewards and flags are checked in every call. An agent's observation and info are checked only when
    they first come, since an episode checks every observation that is added.

    Args:
        env: A `MultiAgentEnv`, which may have wrappers.
        copy: True to copy observations, as some environments write into the same arrays again. Rewards and
            infos are always copied.

    Attributes:
        env: The environment.

    Example:
        >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
        >>> calls = MultiAgentCalls(make_multi_agent("CartPole-v1")({"num_agents": 2}))
        >>> observations, infos = calls.reset(seed=0)
        >>> step = calls.step({0: 1, 1: 0})
        >>> step.rewards, step.ended
        ({0: 1.0, 1: 1.0}, False)
    """

    def __init__(self, env: Any, *, copy: bool = True) -> None:
        self.env = env
        self._name = name_of(env)
        self._copy = copy
        self._spaces, _ = spaces_of(env)
        self._checked: dict[str, set[Any]] = {name: set() for name in _FIVE}
        self._living: set[Any] = set()
        self._ended = True  # it has to be reset first

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset the environment.

        Raises:
            EnvironmentContractError: it returns something else than observations and infos by agent.
            SpaceError: an observation of another nesting, shape or kind than the agent's space.
        """
        self._ended = True  # if this fails, it has to be reset again
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._unfit("reset", "two values: observations, infos", result, "return both; infos may be {}")
        observations, infos = (
            self._by_agent(name, value, "reset") for name, value in zip(("observations", "infos"), result)
        )
        self._living = set(observations)
        self._ended = False
        return self._observed(observations), _owned(infos)

    def step(self, actions: dict[Any, Any]) -> AgentStep:
        """Step the environment.

        Raises:
            EnvironmentContractError: it returns something else than five dicts by agent, or no `__all__`; or it has
                ended and was not reset.
            SpaceError: an observation of another nesting, shape or kind than the agent's space.
        """
        if self._ended:
            raise self._not_reset()
        self._ended = True  # if this fails, it has to be reset again
        result = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5:
            do = "return all five; flags for agents that ended go into terminateds or truncateds"
            raise self._unfit("step", f"five values: {', '.join(_FIVE)}", result, do)
        values = [self._by_agent(name, value, "step") for name, value in zip(_FIVE, result)]
        observations, rewards, terminateds, truncateds, infos = values
        if _ALL not in terminateds:
            do = 'add "__all__": True when the environment has ended, else False'
            raise self._unfit("step", 'the key "__all__" in terminateds', terminateds, do, keys=True)
        if _ALL not in truncateds:
            truncateds[_ALL] = False
        self._ended = self._ends(observations, terminateds, truncateds)
        return AgentStep(
            self._observed(observations), _owned(rewards), terminateds, truncateds, _owned(infos), self._ended
        )

    def _ends(self, observations: dict[Any, Any], terminateds: dict[Any, Any], truncateds: dict[Any, Any]) -> bool:
        """True if the environment ended: by `__all__`, or as every agent that appeared since the reset has ended."""
        living = self._living
        if not observations.keys() <= living:
            living.update(observations)
        if not any(terminateds.values()) and not any(truncateds.values()):
            return False
        before = len(living)
        living.difference_update(agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag)
        return bool(terminateds[_ALL] or truncateds[_ALL] or (before and not living))

    def _by_agent(self, name: str, values: Any, call: str) -> dict[Any, Any]:
        """Return the values by agent in a new dict."""
        if not isinstance(values, Mapping):
            raise self._unfit(call, f"{name} as a dict by agent", values, _INSTEAD[name])
        checked, usual = self._checked[name], _USUAL.get(name)
        strange = usual is not None and not usual.issuperset(map(type, values.values()))
        if strange or (name == "rewards" and not math.isfinite(sum(values.values()))):
            checked.difference_update(values)
        if not values.keys() <= checked:
            for agent in values:
                if agent not in checked:
                    self._check(name, agent, values[agent], call)
        return dict(values)

    def _check(self, name: str, key: Any, value: Any, call: str) -> None:
        """Check an agent's first value, or a value of an unusual type."""
        special = {"terminateds": _ALL, "truncateds": _ALL, "infos": _COMMON}.get(name)
        where = f"{self._name}.{call}(), {name}[{key!r}]"
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
            check_reward(where, value)
        elif name == "infos" and not isinstance(value, dict):
            do = "return {} if there is nothing to tell, or leave the agent out"
            raise EnvironmentContractError(where, expected="an info dict", found=described(value), do=do)
        elif name in ("terminateds", "truncateds") and not isinstance(value, (bool, np.bool_)):
            do = "return bool(...), or leave the agent out"
            raise EnvironmentContractError(where, expected="True or False", found=described(value), do=do)
        self._checked[name].add(key)

    def _observed(self, observations: dict[Any, Any]) -> dict[Any, Any]:
        return _owned(observations) if self._copy else observations

    def _unfit(self, call: str, expected: str, found: Any, do: str, *, keys: bool = False) -> EnvironmentContractError:
        shown = f"the keys {list(found)}" if keys else described(found)
        return EnvironmentContractError(f"{self._name}.{call}()", expected=expected, found=shown, do=do)

    def _not_reset(self) -> EnvironmentContractError:
        return EnvironmentContractError(
            f"{self._name}.step()",
            expected="an environment that was reset, and has not ended since",
            found="one that has ended, or failed",
            do="reset it first",
        )


def _owned(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return the values with copied arrays."""
    if _PLAIN.issuperset(map(type, values.values())):
        return values
    return {a: _own(v) for a, v in values.items()}


def _own(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value.copy()
    return value if type(value) is dict and not value else map_struct(_copied, value)


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
