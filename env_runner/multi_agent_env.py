"""Multi-agent environments, and multi-agent environments made of single-agent ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, EnvironmentContractError, UnknownNameError, nearest

from .env_creators import call_creator, creator_of
from .gymnasium_ids import make_one_from_id
from .vector_env_checks import check_env

__all__ = ["MultiAgentEnv", "make_multi_agent", "mark_end"]

_ALL = "__all__"


class MultiAgentEnv(gym.Env[Any, Any]):
    """An environment of several agents, each named by any hashable value; RLlib's contract.

    `reset` returns observations and infos. `step` takes actions and returns observations, rewards, terminateds,
    truncateds and infos. Each of them is a dict from agent to value. Agents with an observation act next; the others
    are absent, wait, or have ended. `terminateds["__all__"]` is required; True means that the environment has ended.
    `truncateds["__all__"]` means the same and may be left out. The environment has also ended when every agent that
    appeared since the reset has ended. Rewards may come at any time, also for agents that do not observe.

    Attributes:
        possible_agents: All agents there can ever be; set once.
        agents: The current agents.
        observation_spaces: Space of each agent; or override `get_observation_space`.
        action_spaces: The same for actions, with `get_action_space`.

    Example:
        >>> class Countdown(MultiAgentEnv):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.agents = self.possible_agents = ["red", "blue"]
        ...         self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))
        ...         self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        ...
        ...     def reset(self, *, seed=None, options=None):
        ...         super().reset(seed=seed)
        ...         self.left = 2
        ...         return {agent: self.left for agent in self.agents}, {}
        ...
        ...     def step(self, action_dict):
        ...         self.left -= 1
        ...         observations = {agent: self.left for agent in action_dict}
        ...         rewards = {agent: float(action) for agent, action in action_dict.items()}
        ...         return observations, rewards, {"__all__": self.left == 0}, {}, {}
        >>> env = Countdown()
        >>> observations, infos = env.reset(seed=0)
        >>> env.step({"red": 1, "blue": 0})
        ({'red': 1, 'blue': 1}, {'red': 1.0, 'blue': 0.0}, {'__all__': False}, {}, {})
    """

    possible_agents: Sequence[Any] = ()
    agents: Sequence[Any] = ()
    observation_spaces: Mapping[Any, gym.Space[Any]] | None = None
    action_spaces: Mapping[Any, gym.Space[Any]] | None = None
    observation_space: Any = None
    action_space: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.agents = list(self.agents)
        self.possible_agents = list(self.possible_agents) or list(self.agents)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode; call `super().reset(seed=seed)` first, which seeds `self.np_random`.

        Args:
            seed: For the random streams; None leaves them as they are.
            options: Options of the environment.

        Returns:
            Observations of the agents that act first, and infos, by agent.
        """
        super().reset(seed=seed)

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Take the actions of the agents that observed last.

        Args:
            action_dict: Actions by agent.

        Returns:
            Observations, rewards, terminateds, truncateds and infos, by agent.
        """
        raise NotImplementedError(f"{type(self).__name__}.step")

    def render(self) -> Any:
        """Draw the environment as its `render_mode` says; by default nothing."""

    def get_observation_space(self, agent_id: Any) -> Any:
        """Return an agent's observation space.

        Raises:
            UnknownNameError: there is none for it.
        """
        return self._space_of(agent_id, self.observation_spaces, self.observation_space, "observation_spaces")

    def get_action_space(self, agent_id: Any) -> Any:
        """Return an agent's action space.

        Raises:
            UnknownNameError: there is none for it.
        """
        return self._space_of(agent_id, self.action_spaces, self.action_space, "action_spaces")

    def _space_of(self, agent: Any, by_agent: Mapping[Any, Any] | None, common: Any, attribute: str) -> Any:
        """Return the agent's own space, or the common one."""
        if by_agent is None and isinstance(common, gym.spaces.Dict) and agent in common.spaces:
            by_agent = common.spaces
        if by_agent is None and common is not None:
            return common
        if by_agent is None or agent not in by_agent:
            known = [str(each) for each in by_agent or ()]
            raise UnknownNameError(
                f"{type(self).__name__}.{attribute}",
                expected=f"a space for agent {agent!r}",
                found=f"spaces for {list(by_agent)}" if by_agent else "none",
                do=f"set self.{attribute} = {{agent: space}} for all possible agents. {nearest(str(agent), known)}",
            )
        return by_agent[agent]

    @property
    def num_agents(self) -> int:
        """The number of current agents."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """The largest possible number of agents."""
        return len(self.possible_agents)


def mark_end(terminateds: dict[Any, Any], truncateds: dict[Any, Any], *, ended: bool) -> None:
    """Add `__all__` to the flags of a step in which each agent that ended has its own.

    Args:
        terminateds: By agent; `__all__` becomes True if the environment ended and no agent was truncated in this step.
        truncateds: By agent; `__all__` becomes True if the environment ended and an agent was truncated. The flag
            `__all__` also counts for agents with False, and a truncated agent must not count as terminated.
        ended: True if the environment ended.
    """
    cut_off = any(flag and not terminateds.get(agent) for agent, flag in truncateds.items())
    terminateds[_ALL], truncateds[_ALL] = ended and not cut_off, ended and cut_off


def make_multi_agent(env_name_or_creator: Any) -> type[MultiAgentEnv]:
    """Return a class of environments in which each agent acts in a single-agent environment of its own.

    Args:
        env_name_or_creator: A Gymnasium id, a name given to `register_env`, an environment class or its import path,
            or a function of the config that makes one.

    Returns:
        A class that takes a config dict: `num_agents` (default 1), the rest is for the environments. Agents are
        called 0, 1, ...; those that have ended wait for the others. Seeds of different agents are independent.

    Example:
        >>> env = make_multi_agent("CartPole-v1")({"num_agents": 2})
        >>> observations, infos = env.reset(seed=0)
        >>> list(observations), env.step({0: 1, 1: 0})[1]
        ([0, 1], {0: 1.0, 1: 1.0})
        >>> env.close()
    """

    class MultiEnv(_SideBySide):
        """Several single-agent environments side by side."""

        def __init__(self, config: dict[str, Any] | None = None) -> None:
            super().__init__(env_name_or_creator, dict(config or {}))

    return MultiEnv


class _SideBySide(MultiAgentEnv):
    def __init__(self, env: Any, config: dict[str, Any]) -> None:
        super().__init__()
        count = config.pop("num_agents", 1)
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            do = 'call the class with {"num_agents": 2}'
            raise ConfigError("num_agents", expected="a number of agents, 1 or more", found=repr(count), do=do)
        self.envs = [_made(env, config) for _ in range(count)]
        self.possible_agents = list(range(count))
        self.agents = list(range(count))
        self.observation_spaces = {agent: each.observation_space for agent, each in enumerate(self.envs)}
        self.action_spaces = {agent: each.action_space for agent, each in enumerate(self.envs)}
        self.metadata = dict(self.envs[0].metadata)
        self.render_mode = self.envs[0].render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environments of all agents."""
        super().reset(seed=seed)
        self.agents = list(self.possible_agents)
        count = len(self.envs)
        seeds = [None] * count if seed is None else np.random.SeedSequence(seed).generate_state(count).tolist()
        pairs = [env.reset(seed=own, options=options) for env, own in zip(self.envs, seeds)]
        return {a: pair[0] for a, pair in enumerate(pairs)}, {a: pair[1] for a, pair in enumerate(pairs)}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Step the environments of the agents that act.

        Raises:
            EnvironmentContractError: no agent acts, or one that has ended or does not exist.
        """
        if not action_dict or not action_dict.keys() <= set(self.agents):
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


def _made(env: Any, config: dict[str, Any]) -> Any:
    creator = creator_of(env)
    made = make_one_from_id(env, config) if creator is None else call_creator(creator, dict(config))
    return check_env(made, creator or env)
