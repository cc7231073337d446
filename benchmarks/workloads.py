"""Seeded data that every side of a row starts from: columns of episodes, of several agents, and of vector steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TERMINATED, TRUNCATED, CUT = range(3)
SHORTEST = 8
MODEL_OUTPUTS = ("action_logp", "action_dist_inputs", "vf_preds")
AGENTS = tuple(f"agent{i}" for i in range(8))
MODULES = ("mod0", "mod1", "mod2")

Array = np.ndarray[Any, Any]
Order = Mapping[str, Sequence[str]]
"""The agents of each module, in the order of their rows."""


def module_of(agent: str, *_: Any, **__: Any) -> str:
    """Return the module that acts for an agent."""
    return MODULES[AGENTS.index(agent) % len(MODULES)]


def in_modules(agents: Sequence[str]) -> Order:
    """Return the agents of each module, in this order. RLlib's order is that of a set, different in every process."""
    return {module: [agent for agent in agents if module_of(agent) == module] for module in MODULES}


@dataclass(frozen=True)
class Episode:
    """The columns of one episode of T steps.

    Args:
        end: How it ended: TERMINATED, TRUNCATED or CUT.
        obs: [T + 1, ...].
        steps: Name to column [T, ...]: actions int64, rewards float64, and the model outputs action_logp float32,
            action_dist_inputs float32 [T, 2], vf_preds float32.
        state: Name to float32 [T, size], the recurrent state after each step; empty without recurrence.
    """

    end: int
    obs: Array
    steps: dict[str, Array]
    state: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.obs) - 1


ByAgent = dict[str, Episode]


def lengths(total: int, count: int, seed: int = 0) -> list[int]:
    """Return lengths of `count` episodes that add up to `total`, spread like waiting times, each at least 8."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(count))
    return [SHORTEST + int(extra) for extra in rng.multinomial(total - SHORTEST * count, shares)]


def episodes(total: int, count: int, shape: tuple[int, ...] = (4,), kind: str = "float32", state: int = 0) -> list[Any]:
    """Return episodes of varied lengths; a third each is terminated, truncated and cut.

    Args:
        total: Steps of all of them.
        count: How many.
        shape: Of one observation.
        kind: "float32", "uint8", or "counts": float32 holding small integers, so that observations repeat.
        state: Size of the two recurrent states h and c; 0: none.
    """
    rng = np.random.default_rng(1)
    return [drawn(rng, length, i % 3, shape, kind, state) for i, length in enumerate(lengths(total, count))]


def of_agents(count: int, steps: int) -> list[ByAgent]:
    """Return `count` episodes in which all agents act in every step; a third each is terminated, truncated and cut."""
    rng = np.random.default_rng(0)
    return [{agent: drawn(rng, steps, i % 3) for agent in AGENTS} for i in range(count)]


def drawn(
    rng: np.random.Generator,
    length: int,
    end: int = CUT,
    shape: tuple[int, ...] = (4,),
    kind: str = "float32",
    state: int = 0,
) -> Episode:
    """Return an episode of random numbers; see `episodes`."""
    shape = (length + 1, *shape)
    if kind == "uint8":
        obs = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        obs = _floats(rng, *shape) if kind == "float32" else rng.integers(-2, 3, shape).astype(np.float32)
    return Episode(end, obs, _steps(rng, length), {name: _floats(rng, length, state) for name in ("h", "c") if state})


def _floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _steps(rng: np.random.Generator, *lead: int) -> dict[str, Any]:
    return {
        "actions": rng.integers(0, 2, lead),
        "rewards": rng.standard_normal(lead),
        "action_logp": _floats(rng, *lead),
        "action_dist_inputs": _floats(rng, *lead, 2),
        "vf_preds": _floats(rng, *lead),
    }


# --------------------------------------------------------------------------------------- vector steps


@dataclass(frozen=True)
class Block:
    """Columns of T vector steps. The step after an end only brings the reset observation, and is in no episode.

    Args:
        obs: [T + 1, N, ...].
        steps: Name to [T, N, ...]; a recurrent state is a dict of such columns.
        terminateds: bool [T, N].
        truncateds: bool [T, N].
    """

    obs: Array
    steps: dict[str, Any]
    terminateds: Array
    truncateds: Array


def block(vector_steps: int, num_envs: int, mean_length: float, shape: tuple[int, ...] = (4,), state: int = 0) -> Block:
    """Return random steps, with episodes of this length on average.

    Args:
        vector_steps: T.
        num_envs: N.
        mean_length: Steps.
        shape: Of one observation.
        state: Size of the two recurrent states h and c; 0: none.
    """
    rng = np.random.default_rng(0)
    ends = rng.random((vector_steps, num_envs)) < 1 / mean_length
    for row in range(1, vector_steps):
        ends[row] &= ~ends[row - 1]
    terminated = rng.random(ends.shape) < 0.5
    obs, steps = _floats(rng, vector_steps + 1, num_envs, *shape), _steps(rng, vector_steps, num_envs)
    if state:
        steps["state_out"] = {name: _floats(rng, vector_steps, num_envs, state) for name in ("h", "c")}
    return Block(obs, steps, ends & terminated, ends & ~terminated)


def side_by_side(running: Sequence[Episode]) -> Block:
    """Return episodes that go on, of one length, as a block."""
    first = running[0]
    steps: dict[str, Any] = {name: np.stack([own.steps[name] for own in running], 1) for name in first.steps}
    if first.state:
        steps["state_out"] = {name: np.stack([own.state[name] for own in running], 1) for name in first.state}
    nothing = np.zeros((len(first), len(running)), np.bool_)
    return Block(np.stack([own.obs for own in running], 1), steps, nothing, nothing)


def chunks(columns: Block) -> list[tuple[int, int, int, int]]:
    """Return environment, first step, end of the steps and how it ended, of each episode.

    Episodes that ended come in the order of their ends, then those that go on.
    """
    rows, num_envs = columns.terminateds.shape
    starts, found = [0] * num_envs, []
    for row, env in np.argwhere(columns.terminateds | columns.truncateds).tolist():
        found.append((env, starts[env], row + 1, TERMINATED if columns.terminateds[row, env] else TRUNCATED))
        starts[env] = row + 2
    return found + [(env, start, rows, CUT) for env, start in enumerate(starts) if start < rows]


def sliced(columns: Block) -> list[Episode]:
    """Return the columns of each episode: views of the block."""
    return [
        Episode(
            end,
            columns.obs[start : stop + 1, env],
            {name: column[start:stop, env] for name, column in columns.steps.items()},
        )
        for env, start, stop, end in chunks(columns)
    ]


@dataclass(frozen=True)
class Stream:
    """Vector steps of N environments that are reset at once: the observation after an end is a reset's.

    Args:
        obs: [T + 1, N, ...]; floats are all different.
        actions: int64 [T, N].
        rewards: float32 [T, N].
        terminateds: bool [T, N].
        ended: bool [T, N]; those that were not terminated were truncated.
        last_obs: [T, N, ...], the last observations of the episodes that ended in each step.
        t: Step of its episode at each row: int64 [T + 1, N].
        state: Name to float32 [T, N, size], the recurrent state before each step.
    """

    obs: Array
    actions: Array
    rewards: Array
    terminateds: Array
    ended: Array
    last_obs: Array
    t: Array
    state: dict[str, Array] = field(default_factory=dict)

    def __getitem__(self, rows: slice) -> Stream:
        """Return some vector steps."""
        more = slice(rows.start, rows.stop + 1)
        own = (self.actions, self.rewards, self.terminateds, self.ended, self.last_obs)
        state = {name: column[rows] for name, column in self.state.items()}
        return Stream(self.obs[more], *(column[rows] for column in own), self.t[more], state)

    def transitions(self) -> dict[str, Array]:
        """Return the columns of single steps, with `new_obs`: [T, N, ...]."""
        ended = self.ended.reshape(*self.ended.shape, *[1] * (self.obs.ndim - 2))
        names = "actions", "rewards", "terminateds", "ended"
        new_obs = np.where(ended, self.last_obs, self.obs[1:])
        return {"obs": self.obs[:-1], "new_obs": new_obs, **{name: getattr(self, name) for name in names}, **self.state}


def stream(
    vector_steps: int, num_envs: int, mean_length: float, shape: tuple[int, ...] = (4,), state: int = 0
) -> Stream:
    """Return random steps, with episodes of this length on average, 70 % of them terminated.

    Args:
        vector_steps: T.
        num_envs: N.
        mean_length: Steps.
        shape: Of one observation; of two numbers: an image of bytes.
        state: Size of the two recurrent states h and c; 0: none.
    """
    rng = np.random.default_rng(0)
    size = vector_steps, num_envs
    ended = rng.random(size) < 1 / mean_length
    rows, begun = np.arange(vector_steps + 1)[:, None], np.zeros((vector_steps + 1, num_envs), np.int64)
    np.maximum.accumulate(np.where(ended, rows[1:], 0), out=begun[1:])
    t = rows - begun
    rewards, terminateds = _floats(rng, *size), ended & (rng.random(size) < 0.7)
    if len(shape) == 2:
        obs = rng.integers(1, 256, (vector_steps + 1, num_envs, *shape), np.uint8)
    else:
        obs = _floats(rng, vector_steps + 1, num_envs, *shape)
    states = {name: _floats(rng, *size, state) for name in ("h", "c")} if state else {}
    return Stream(obs, rng.integers(0, 2, size), rewards, terminateds, ended, obs[:0:-1], t, states)
