"""Sampling row with eight agents in each environment: whole `sample()` calls of the runners of several agents."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.columns import Array
from benchmarks.equality import DifferentValuesError
from benchmarks.libraries import ACTIONS, library, library_names
from benchmarks.row import Options, Row, Workload, timed, times_faster
from benchmarks.rows.sampling import Sampler, steps_of
from benchmarks.several_agents import AGENTS, MODULES, OBSERVATIONS, module_of

NUM_ENVS, STEPS, LENGTH = 16, 3200, 200
KEPT, PUSH = np.float32(0.9), np.array([0.1, -0.2, 0.3, -0.4], np.float32)


def moved(states: Array, actions: Array) -> Array:
    """Where points are a step later: action 1 pushes them, 0 pushes them the other way.

    Args:
        states: float32 [points, 4].
        actions: [points].
    """
    return KEPT * states + np.where(np.asarray(actions) == 1, 1, -1).astype(np.float32)[:, None] * PUSH


def environment(lib: SimpleNamespace) -> type:
    """Eight points, each moved by its agent, for 200 steps; it takes little time, so that the runner's shows."""

    class Points(lib.MultiAgentEnv):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.agents = self.possible_agents = list(AGENTS)
            self.observation_spaces = dict.fromkeys(AGENTS, OBSERVATIONS)
            self.action_spaces = dict.fromkeys(AGENTS, ACTIONS)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.left = LENGTH
            self.points = self.np_random.standard_normal((len(AGENTS), 4), np.float32)
            return dict(zip(AGENTS, self.points)), {}

        def step(self, action_dict: Any) -> Any:
            self.left -= 1
            self.points = moved(self.points, [action_dict[agent] for agent in AGENTS])
            rewards = dict(zip(AGENTS, self.points[:, 0].tolist()))
            return dict(zip(AGENTS, self.points)), rewards, {"__all__": False}, {"__all__": self.left == 0}, {}

    return Points


def library_side(name: str, steps: int) -> Sampler:
    """`sample()` of a library's runner; its metrics are fetched in front of each call, outside the time."""
    lib = library(name)
    config = lib.PPOConfig().environment(environment(lib))
    config.multi_agent(policies=set(MODULES), policy_mapping_fn=module_of)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
    runner = lib.MultiAgentEnvRunner(config=config, worker_index=0)
    return Sampler(
        lambda _: runner.sample(num_timesteps=steps, explore=True), runner.get_metrics, count=steps_of, rows=flat
    )


def flat(episodes: Any) -> dict[str, Any]:
    """Every agent's steps in flat rows, and how many env steps there were."""
    parts = [part for episode in episodes for part in episode.agent_episodes.values()]
    observations = [np.asarray(part.get_observations()) for part in parts]
    return {
        "obs": np.concatenate([own[:-1] for own in observations]),
        "actions": np.concatenate([np.asarray(part.get_actions()) for part in parts]),
        "rewards": np.concatenate([np.asarray(part.get_rewards()) for part in parts]),
        "next_obs": np.concatenate([own[1:] for own in observations]),
        "env_steps": steps_of(episodes),
    }


def check(steps: int, outputs: Any) -> None:
    """Every point went where its agent pushed it, and no agent missed a step.

    Raises:
        DifferentValuesError: it is otherwise.
    """
    for name, sampled in outputs.items():
        rows, drawn = len(sampled["actions"]), set(np.unique(sampled["actions"]).tolist())
        if sampled["env_steps"] < steps or rows != len(AGENTS) * sampled["env_steps"] or drawn != {0, 1}:
            raise DifferentValuesError(f"{name}: {rows} rows, {sampled['env_steps']} steps, actions {drawn}")
        there = moved(sampled["obs"], sampled["actions"])
        if not np.array_equal(there, sampled["next_obs"]):
            raise DifferentValuesError(f"{name}: points are not where they were pushed")
        if not np.allclose(there[:, 0], sampled["rewards"], rtol=1e-6, atol=0):
            raise DifferentValuesError(f"{name}: rewards of other steps")


def sampling(options: Options) -> Workload:
    """R1m."""
    steps = 160 if options.quick else STEPS
    return Workload(
        {name: partial(library_side, name, steps) for name in library_names(options)}, partial(check, steps), steps=1
    )


ROW_MAP = [
    Row(
        f"R1m/{NUM_ENVS}",
        f"sampling 8 agents, 3 modules, N = {NUM_ENVS}, {STEPS:,} env steps a call; per env step",
        timed(sampling),
        (times_faster(5),),
    )
]
