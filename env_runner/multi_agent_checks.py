"""Checks of multi-agent environments before the first step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError

from .multi_agent_env import MultiAgentEnv
from .vector_env_checks import check_space

__all__ = ["RESERVED", "agents_of", "check_multi_agent_env", "name_of", "spaces_of"]

RESERVED = ("__all__", "__common__")


def name_of(env: Any) -> str:
    """Return an environment's name for messages."""
    return type(env.unwrapped).__name__


def agents_of(env: Any) -> list[Any]:
    """Return every agent that an environment names: possible and current agents, and those with an own space."""
    own = env.unwrapped
    spaces = own.observation_spaces if isinstance(own.observation_spaces, dict) else {}
    return list(dict.fromkeys([*(own.possible_agents or ()), *(own.agents or ()), *spaces]))


def spaces_of(env: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return observation and action space of each agent."""
    agents, own = agents_of(env), env.unwrapped
    return {a: own.get_observation_space(a) for a in agents}, {a: own.get_action_space(a) for a in agents}


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
    maker = getattr(maker, "func", maker)  # of a partial function
    made_by = maker if isinstance(maker, str) else getattr(maker, "__name__", None) or type(maker).__name__
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
    if not agents_of(env):
        raise ConfigError(
            f"{where}, possible_agents",
            expected="the names of all agents there can ever be",
            found="none",
            do='set self.possible_agents = ["red", "blue"], say, before the environment is used',
        )


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
