"""PettingZoo's environments as multi-agent environments: turn-based ones (AEC) and parallel ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from epibatch.core.errors import (
    ConfigError,
    EnvironmentContractError,
    MissingExtraError,
    UnknownNameError,
    nearest,
)
from epibatch.core.imports import import_extra

from .envs.multi_agent_base import MultiAgentEnv, mark_end

__all__ = ["PETTINGZOO", "ParallelPettingZooEnv", "PettingZooEnv", "make_by_name", "pettingzoo_creator"]

PETTINGZOO = "pettingzoo/"
"""The beginning of the names of PettingZoo's environments, which are of several agents."""

_KINDS = {"aec": "an AEC", "parallel": "a Parallel"}


class _PettingZoo(MultiAgentEnv):
    """Base class of both kinds: names and spaces of the agents, rendering, closing."""

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
        """Return the PettingZoo environment's image, according to its own `render_mode`."""
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

    Only the agent with the turn observes, and acts next. An agent that ended observes once more. The reward that
    comes with an observation is the sum since the agent's last action. Observations, including action masks,
    and infos are passed on unchanged.

    Args:
        env: A PettingZoo AEC environment, or its name, such as "classic/tictactoe_v3"; or a dict with that as `env`.
        **kwargs: With a name: keywords for the environment.

    Attributes:
        env: The PettingZoo environment.

    Raises:
        ConfigError: a parallel environment, or no environment at all.
        MissingExtraError: PettingZoo, or what this environment needs, is not installed.
        UnknownNameError: PettingZoo has no such environment.

    Examples:
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
        """Reset the environment; the agent with the first turn observes."""
        super().reset(seed=seed)
        self._env.reset(seed=seed, options=options)
        observations, _, _, _, infos = self._turns()
        return observations, infos

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Step the agent with the current turn.

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
        """Return the values of the agent with the turn; agents that ended get theirs first, and are removed."""
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

    Observations, including action masks, and infos are passed on unchanged.

    Args:
        env: A PettingZoo Parallel environment, or its name, such as "sisl/pursuit_v5"; or a dict with that as `env`.
        **kwargs: With a name: keywords for the environment.

    Attributes:
        par_env: The PettingZoo environment.

    Raises:
        ConfigError: a turn-based environment, or no environment at all.
        MissingExtraError: PettingZoo, or what this environment needs, is not installed.
        UnknownNameError: PettingZoo has no such environment.

    Examples:
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
        """Reset the environment; all current agents observe."""
        super().reset(seed=seed)
        observations, infos = self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return dict(observations), dict(infos or {})

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Step all current agents.

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
    """Check an existing environment and return it; raise for the other kind, other objects and keywords."""
    found = "aec" if hasattr(env, "last") else "parallel" if callable(getattr(env, "action_space", None)) else None
    names = {"aec": "PettingZooEnv", "parallel": "ParallelPettingZooEnv"}
    if found == kind and not kwargs:
        return env
    if found == kind:
        expected, got, do = "no keywords with an environment that is made", f"{list(kwargs)}", "give them to its maker"
    else:
        expected, got = f"{_KINDS[kind]} environment of PettingZoo", f"{type(env).__name__} {env}"
        do = "pass what PettingZoo made, or its name" if found is None else f"use {names[found]}(env)"
    raise ConfigError(names[kind], expected=expected, found=got, do=do)


def pettingzoo_creator(name: str) -> Callable[..., Any]:
    """Return the function that makes an environment such as "pettingzoo/classic/tictactoe_v3" from its keywords.

    Args:
        name: The prefix, then PettingZoo's name. If an environment exists in both kinds, the parallel one is made.

    Examples:
        >>> make = pettingzoo_creator("pettingzoo/classic/rps_v2")
        >>> make(max_cycles=3).possible_agents
        ['player_0', 'player_1']
    """

    def make(**kwargs: Any) -> Any:
        env_name = name.removeprefix(PETTINGZOO)
        return (PettingZooEnv if _maker(env_name, "parallel") is None else ParallelPettingZooEnv)(env_name, **kwargs)

    make.__name__ = name
    return make


def make_by_name(name: str, kind: str, kwargs: dict[str, Any]) -> Any:
    """Make a PettingZoo environment.

    Args:
        name: PettingZoo's, such as "classic/tictactoe_v3".
        kind: "aec" or "parallel".
        kwargs: Keywords for the environment.

    Raises:
        MissingExtraError: PettingZoo (1.27 or newer), or what this environment needs, is not installed.
        UnknownNameError: PettingZoo has no such environment.
        ConfigError: PettingZoo has it as the other kind only, or the environment does not accept the keywords.

    Examples:
        >>> make_by_name("classic/tictactoe_v3", "aec", {}).possible_agents
        ['player_1', 'player_2']
    """
    maker = _maker(name, kind)
    where = f"PettingZoo environment {name!r}"
    if maker is None:
        do = f"take {'ParallelPettingZooEnv' if kind == 'aec' else 'PettingZooEnv'}, or the name {PETTINGZOO + name!r}"
        raise ConfigError(where, expected=f"{_KINDS[kind]} environment", found="the other kind only", do=do)
    try:
        return maker(**kwargs)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        expected, do = f"keywords that {name!r} takes", "correct env_config"
        raise ConfigError("environment.env_config", expected=expected, found=str(error), do=do) from error
    except Exception as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        if not isinstance(missing, ImportError):
            raise
        raise _missing(name, missing) from error


def _maker(name: str, kind: str) -> Callable[..., Any] | None:
    """Return the function that makes an environment by name; None if PettingZoo has it as the other kind only."""
    pettingzoo = import_extra("pettingzoo", "pettingzoo", f"PettingZoo environment {name!r}")
    if not hasattr(pettingzoo, "aec_registry"):
        raise _too_old(name, pettingzoo)
    id_ = re.sub(r"_v(?=\d+$)", "-v", name)
    registries = {"aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    if not any(id_ in names for names in registries.values()):
        raise _unknown(name, {*registries["aec"], *registries["parallel"]})
    return (lambda **kwargs: pettingzoo.make(kind, id_, **kwargs)) if id_ in registries[kind] else None


def _too_old(name: str, pettingzoo: Any) -> MissingExtraError:
    """Return the error about a PettingZoo before 1.27, which has no registry of names."""
    found, do = f"PettingZoo {getattr(pettingzoo, '__version__', '')}", "pip install 'epibatch[pettingzoo]'"
    where = f"PettingZoo environment {name!r}"
    return MissingExtraError(where, expected="PettingZoo 1.27 or newer", found=found, do=do)


def _unknown(name: str, names: Iterable[str]) -> UnknownNameError:
    where, do = f"PettingZoo environment {name!r}", nearest(name, names)
    return UnknownNameError(where, expected="a name of PettingZoo's", found="no such environment", do=do)


def _missing(name: str, error: ImportError) -> MissingExtraError:
    family = name.partition("/")[0]
    where, do = f"PettingZoo environment {name!r}", f"pip install 'pettingzoo[{family}]'"
    return MissingExtraError(where, expected="the packages that it needs", found=str(error), do=do)
