"""Seeded steps of N environments side by side, [T, N, ...], and the episodes in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.columns import TERMINATED, TRUNCATED, Array, Episode
from benchmarks.libraries import ACTIONS, box


@dataclass(frozen=True)
class Block:
    """What T vector steps gave. The step behind an end only brings the reset observation, and belongs to no episode.

    Args:
        obs: float32 [T + 1, N, ...].
        steps: Name to [T, N, ...].
        terminateds: bool [T, N].
        truncateds: bool [T, N].
    """

    obs: Array
    steps: dict[str, Array]
    terminateds: Array
    truncateds: Array


@dataclass(frozen=True)
class Chunk:
    """An episode's steps: rows `start` to `stop` of an environment."""

    env: int
    start: int
    stop: int
    end: int


def block(vector_steps: int, num_envs: int, mean_length: float, seed: int = 0) -> Block:
    """Random steps, with episodes of this length on average."""
    rng = np.random.default_rng(seed)
    lead = (vector_steps, num_envs)
    ends = rng.random(lead) < 1 / mean_length
    for row in range(1, vector_steps):
        ends[row] &= ~ends[row - 1]
    terminated = rng.random(lead) < 0.5
    return Block(
        obs=rng.standard_normal((vector_steps + 1, num_envs, 4)).astype(np.float32),
        steps={
            "actions": rng.integers(0, 2, lead),
            "rewards": rng.standard_normal(lead),
            "action_logp": rng.standard_normal(lead).astype(np.float32),
            "action_dist_inputs": rng.standard_normal((*lead, 2)).astype(np.float32),
            "vf_preds": rng.standard_normal(lead).astype(np.float32),
        },
        terminateds=ends & terminated,
        truncateds=ends & ~terminated,
    )


def chunks(given: Block) -> list[Chunk]:
    """The episodes: those that ended in the order of their ends, then the running ones."""
    rows, num_envs = given.terminateds.shape
    starts, found = [0] * num_envs, []
    for row, env in np.argwhere(given.terminateds | given.truncateds).tolist():
        end = TERMINATED if given.terminateds[row, env] else TRUNCATED
        found.append(Chunk(env, starts[env], row + 1, end))
        starts[env] = row + 2
    running = [Chunk(env, start, rows, -1) for env, start in enumerate(starts) if start < rows]
    return [*found, *running]


def sliced(given: Block) -> list[Episode]:
    """The columns of each episode: views of the block."""
    return [
        Episode(
            end=own.end,
            obs=given.obs[own.start : own.stop + 1, own.env],
            steps={name: column[own.start : own.stop, own.env] for name, column in given.steps.items()},
            state={},
        )
        for own in chunks(given)
    ]


def recorded(given: Block) -> Any:
    """The block as epibatch's runner records and hands it over."""
    from epibatch.episodes import VectorRecorder

    rows, num_envs = given.terminateds.shape
    recorder = VectorRecorder(num_envs, box(given.obs.shape[2:]), ACTIONS, autoreset="next_step", capacity=rows)
    recorder.reset(given.obs[0])
    for row in range(rows):
        extras = {name: column[row] for name, column in given.steps.items() if name not in ("actions", "rewards")}
        recorder.step(
            given.steps["actions"][row],
            given.steps["rewards"][row],
            given.terminateds[row],
            given.truncateds[row],
            given.obs[row + 1],
            extras=extras,
        )
        recorder.commit()
    return recorder.flush(0)
