"""Eight agents, three modules: seeded columns of each agent, and episodes of a library made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.columns import MODEL_OUTPUTS, TERMINATED, TRUNCATED, Episode, drawn_episode
from benchmarks.libraries import ACTIONS, box, spec

AGENTS = tuple(f"agent{i}" for i in range(8))
MODULES = ("mod0", "mod1", "mod2")
OBSERVATIONS = box((4,))

Spaces = tuple[gym.spaces.Dict, gym.spaces.Dict]
ByAgent = dict[str, Episode]


def module_of(agent: str, *_: Any, **__: Any) -> str:
    """The module that acts for an agent."""
    return MODULES[AGENTS.index(agent) % len(MODULES)]


Order = Mapping[str, Sequence[str]]
"""The agents of each module, in the order of their rows."""

AGENTS_OF: Order = {module: tuple(agent for agent in AGENTS if module_of(agent) == module) for module in MODULES}


def in_modules(agents: Iterable[str]) -> Order:
    """Agents by module, in this order. RLlib's order is that of a set, another one in every process."""
    own = list(agents)
    return {module: [agent for agent in own if module_of(agent) == module] for module in MODULES}


def spaces(shared: bool = True) -> Spaces:
    """Observations and actions of all agents; equal ones that are not the same object if they are not shared."""
    if not shared:
        boxes = {agent: box((4,)) for agent in AGENTS}
        return gym.spaces.Dict(boxes), gym.spaces.Dict({agent: gym.spaces.Discrete(2) for agent in AGENTS})
    return gym.spaces.Dict(dict.fromkeys(AGENTS, OBSERVATIONS)), gym.spaces.Dict(dict.fromkeys(AGENTS, ACTIONS))


def columns_by_agent(count: int, steps: int, seed: int = 0) -> list[ByAgent]:
    """The columns of some episodes in which all agents act in every step; a third each is terminated, truncated, cut.

    Args:
        count: How many episodes.
        steps: Of each of them.
        seed: Of all numbers.
    """
    rng = np.random.default_rng(seed)
    return [{agent: drawn_episode(rng, steps, i % 3) for agent in AGENTS} for i in range(count)]


def env_steps(given: ByAgent) -> list[dict[str, Any]]:
    """What `add_env_step` takes for each step."""
    lists = {agent: {name: column.tolist() for name, column in own.steps.items()} for agent, own in given.items()}
    first = next(iter(given.values()))
    return [
        {
            "observations": {agent: own.obs[t + 1] for agent, own in given.items()},
            "actions": {agent: lists[agent]["actions"][t] for agent in given},
            "rewards": {agent: lists[agent]["rewards"][t] for agent in given},
            "infos": {},
            "extra_model_outputs": {
                agent: {name: own.steps[name][t] for name in MODEL_OUTPUTS} for agent, own in given.items()
            },
            "terminateds": {"__all__": first.end == TERMINATED and t == len(first) - 1},
            "truncateds": {"__all__": first.end == TRUNCATED and t == len(first) - 1},
        }
        for t in range(len(first))
    ]


def reset_observations(given: ByAgent) -> dict[str, Any]:
    """The first observation of each agent."""
    return {agent: own.obs[0] for agent, own in given.items()}


def grown(lib: SimpleNamespace, given: Spaces, first: dict[str, Any], steps: Sequence[dict[str, Any]]) -> Any:
    """An episode of a library, a step at a time.

    Args:
        lib: The library.
        given: Spaces of observations and actions.
        first: Reset observations.
        steps: What `add_env_step` takes, step by step.
    """
    observation_space, action_space = given
    episode = lib.MultiAgentEpisode(
        observation_space=observation_space, action_space=action_space, agent_to_module_mapping_fn=module_of
    )
    episode.add_env_reset(observations=first, infos={})
    for step in steps:
        episode.add_env_step(**step)
    return episode


def episode_of(lib: SimpleNamespace, given: ByAgent, *, shared: bool = True) -> Any:
    """An episode of a library with these columns, whose agents share their spaces or have equal ones."""
    return grown(lib, spaces(shared), reset_observations(given), env_steps(given))


def config(lib: SimpleNamespace) -> Any:
    """A PPO configuration with all defaults, for these agents and modules."""
    observation_space, action_space = spaces()
    given = lib.PPOConfig().environment(observation_space=observation_space, action_space=action_space)
    return given.multi_agent(policies=set(MODULES), policy_mapping_fn=module_of)


def modules(lib: SimpleNamespace) -> Any:
    """The stub network for each module."""
    return lib.MultiRLModule(rl_module_specs={module: spec(lib, OBSERVATIONS, 0) for module in MODULES})
