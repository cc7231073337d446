"""PettingZoo's environments as multi-agent environments: turn-based ones (AEC) and parallel ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epibatch.core.errors import ConfigError, EnvironmentContractError

from .multi_agent_env import MultiAgentEnv, mark_end
from .pettingzoo_names import KINDS, make_by_name

__all__ = ["ParallelPettingZooEnv", "PettingZooEnv"]


class _PettingZoo(MultiAgentEnv):
    """What both kinds share: names and spaces of the agents, drawing, closing."""

    _kind = ""

    def __init__(self, env: Any, **kwargs: Any) -> None:
        super().__init__()
        if isinstance(env, Mapping):
            kwargs = {**env, **kwargs}
            env = kwargs.pop("env", None)
        env = make_by_name(env, self._kind, kwargs) if isinstance(env, str) else _checked(env, self._kind, kwargs)
        self._env = env
        possible = getattr(env, "possible_agents", None)
        if possible is None:  # PettingZoo lets it be left out
            env.reset()
            possible = env.agents
        self.possible_agents = list(possible)
        self.agents = list(possible)
        self.observation_spaces = {agent: env.observation_space(agent) for agent in possible}
        self.action_spaces = {agent: env.action_space(agent) for agent in possible}
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = dict(getattr(env, "metadata", {}))

    def render(self) -> Any:
        """What the PettingZoo environment draws, as its own `render_mode` says."""
        return self._env.render()

    def close(self) -> None:
        """Close the PettingZoo environment."""
        self._env.close()

    @property
    def get_sub_environments(self) -> Any:
        """The PettingZoo environment without its wrappers."""
        return self._env.unwrapped

    def _check_actors(self, action_dict: Mapping[Any, Any], actors: list[Any]) -> None:
        if action_dict.keys() != set(actors):
            raise EnvironmentContractError(
                f"PettingZoo environment {self._env}",
                expected=f"actions of {actors}",
                found=f"actions of {list(action_dict)}",
                do="act for the agents that observed last and have not ended, and for no others",
            )


class PettingZooEnv(_PettingZoo):
    """A turn-based environment of PettingZoo (its AEC interface).

    Only the agent whose turn it is observes, and acts next; an agent that ended observes once more. The reward that
    comes with an observation is all that the agent got since it acted last. Observations, action masks among them,
    and infos are passed on as they are.

    Args:
        env: A PettingZoo AEC environment, or its name, such as "classic/tictactoe_v3"; or a dict with that as `env`.
        **kwargs: With a name: keywords for the environment.

    Attributes:
        env: The PettingZoo environment.

    Raises:
        ConfigError: a parallel environment, or no environment at all.
        MissingExtraError: PettingZoo, or what this environment needs, is not installed.
        UnknownNameError: PettingZoo has no such environment.

    Example:
        >>> env = PettingZooEnv("classic/tictactoe_v3")
        >>> observations, infos = env.reset(seed=0)
        >>> list(observations), observations["player_1"]["action_mask"]
        (['player_1'], array([1, 1, 1, 1, 1, 1, 1, 1, 1], dtype=int8))
        >>> observations, *_ = env.step({"player_1": 4})
        >>> observations["player_2"]["action_mask"]
        array([1, 1, 1, 1, 0, 1, 1, 1, 1], dtype=int8)
    """

    _kind = "aec"

    @property
    def env(self) -> Any:
        """The PettingZoo environment."""
        return self._env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; the agent whose turn it is observes."""
        super().reset(seed=seed)
        self._env.reset(seed=seed, options=options)
        observations, _, _, _, infos = self._turns()
        return observations, infos

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Let the agent act whose turn it is.

        Raises:
            EnvironmentContractError: another agent acts, several do, or none.
        """
        actor = self._env.agent_selection
        self._check_actors(action_dict, [actor])
        self._env.step(action_dict[actor])
        observations, rewards, terminateds, truncateds, infos = self._turns()
        mark_end(terminateds, truncateds, ended=not self._env.agents)
        return observations, rewards, terminateds, truncateds, infos

    def _turns(self) -> tuple[dict[Any, Any], ...]:
        """What the agent is given whose turn it is; agents that ended have theirs first, and leave."""
        columns: tuple[dict[Any, Any], ...] = ({}, {}, {}, {}, {})
        while self._env.agents:
            agent = self._env.agent_selection
            step = self._env.last()
            for column, value in zip(columns, step):
                column[agent] = value
            if step[0] is None:  # some give no observation to agents that ended
                del columns[0][agent]
            if not (step[2] or step[3]):
                break
            self._env.step(None)
        self.agents = list(self._env.agents)
        return columns


class ParallelPettingZooEnv(_PettingZoo):
    """An environment of PettingZoo in which all agents act at once (its Parallel interface).

    Observations, action masks among them, and infos are passed on as they are.

    Args:
        env: A PettingZoo Parallel environment, or its name, such as "sisl/pursuit_v5"; or a dict with that as `env`.
        **kwargs: With a name: keywords for the environment.

    Attributes:
        par_env: The PettingZoo environment.

    Raises:
        ConfigError: a turn-based environment, or no environment at all.
        MissingExtraError: PettingZoo, or what this environment needs, is not installed.
        UnknownNameError: PettingZoo has no such environment.

    Example:
        >>> env = ParallelPettingZooEnv("sisl/pursuit_v5", n_pursuers=2, max_cycles=1)
        >>> observations, infos = env.reset(seed=0)
        >>> {agent: observation.shape for agent, observation in observations.items()}
        {'pursuer_0': (7, 7, 3), 'pursuer_1': (7, 7, 3)}
        >>> env.step(dict.fromkeys(observations, 0))[3]
        {'pursuer_0': True, 'pursuer_1': True, '__all__': True}
    """

    _kind = "parallel"

    @property
    def par_env(self) -> Any:
        """The PettingZoo environment."""
        return self._env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; all agents that are there observe."""
        super().reset(seed=seed)
        observations, infos = self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return dict(observations), dict(infos or {})

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Let all agents that are there act.

        Raises:
            EnvironmentContractError: one of them does not act, or another does.
        """
        self._check_actors(action_dict, list(self._env.agents))
        observations, rewards, terminateds, truncateds, infos = map(dict, self._env.step(action_dict))
        self.agents = list(self._env.agents)
        ended = all(terminateds.get(agent) or truncateds.get(agent) for agent in self.agents)
        mark_end(terminateds, truncateds, ended=ended)
        return observations, rewards, terminateds, truncateds, infos


def _checked(env: Any, kind: str, kwargs: Mapping[str, Any]) -> Any:
    """An environment that is made already; one of the other kind, something else and keywords for it are refused."""
    found = "aec" if hasattr(env, "last") else "parallel" if callable(getattr(env, "action_space", None)) else None
    names = {"aec": "PettingZooEnv", "parallel": "ParallelPettingZooEnv"}
    if found == kind and not kwargs:
        return env
    if found == kind:
        expected, got, do = "no keywords with an environment that is made", f"{list(kwargs)}", "give them to its maker"
    else:
        expected, got = f"{KINDS[kind]} environment of PettingZoo", f"{type(env).__name__} {env}"
        do = "pass what PettingZoo made, or its name" if found is None else f"use {names[found]}(env)"
    raise ConfigError(names[kind], expected=expected, found=got, do=do)
