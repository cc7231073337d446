"""The interface of environments of several agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from epibatch.core.errors import NotAvailableError, UnknownNameError, nearest

_ALL = "__all__"


class MultiAgentEnv(gym.Env[Any, Any]):
    """An environment of several agents, each named by any hashable value; RLlib's contract.

    `reset` returns observations and infos. `step` takes actions and returns observations, rewards, terminateds,
    truncateds and infos. Each of them is a dict from agent to value. Agents with an observation act next; the others
    are absent, wait, or have ended. `terminateds["__all__"]` is required; True means that the environment has ended.
    `truncateds["__all__"]` means the same and may be left out. The environment has also ended when every agent that
    appeared since the reset has ended. Rewards may come at any time, also for agents that do not observe. An agent that
    has ended can come back with a new observation.

    `__all__` ends every agent. If one terminates in the step in which the others are truncated, set `__all__` in
    `truncateds` and the agent's own flag in `terminateds`. A number as rewards, or True or False as flags, is the value
    of all agents. Two names that are equal as text, such as 0 and "0", are an error. The info
    `infos["__common__"]` belongs to no agent.

    Attributes:
        possible_agents: All agents there can ever be; set once.
        agents: The current agents.
        observation_spaces: Space of each agent; or override `get_observation_space`.
        action_spaces: The same for actions, with `get_action_space`.

    Examples:
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

    def reset_agents(self, agents: Sequence[Any]) -> Any:
        """Reset single agents while the others go on; override it if the environment can.

        The agents do not act in the next step. Their observations come with those of that step, unless the step returns
        newer ones.

        Args:
            agents: Names of agents.

        Returns:
            Their observations and infos, by agent.

        Raises:
            NotAvailableError: the environment cannot.
        """
        raise NotAvailableError(
            f"{type(self).__name__}.reset_agents",
            expected="an environment that resets single agents",
            found=f"reset of agents {list(agents)}, and no such method",
            do="define it, as MultiAgentEnv.reset_agents says; or reset whole environments",
        )

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
            names = [str(each) for each in by_agent or ()]
            raise UnknownNameError(
                f"{type(self).__name__}.{attribute}",
                expected=f"a space for agent {agent!r}",
                found=f"spaces for {list(by_agent)}" if by_agent else "none",
                do=f"set self.{attribute} = {{agent: space}} for all possible agents. {nearest(str(agent), names)}",
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
