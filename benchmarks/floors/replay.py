"""Replay written by hand: rings of rows, indices drawn, one gather per column."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch

from benchmarks.workloads import Array, Stream

GAMMA = 0.99
ALPHA, BETA = 0.6, 0.4

Batch = dict[str, Any]


class Ring:
    """A ring of vector steps, each with the observations before and after it.

    Args:
        stream: The steps that it holds at first: as many as it has room for.
    """

    def __init__(self, stream: Stream) -> None:
        self.rows, self.num_envs = stream.actions.shape
        self.columns = {name: column.copy() for name, column in stream.transitions().items()}
        self.flat = {
            name: column.reshape(self.rows * self.num_envs, *column.shape[2:]) for name, column in self.columns.items()
        }
        self.at = 0
        self.rng = np.random.default_rng(3)

    def add(self, stream: Stream) -> None:
        """Overwrite the oldest steps, one vector step after the other, as they come."""
        new = stream.transitions()
        for row in range(len(stream.actions)):
            for name, column in self.columns.items():
                column[self.at] = new[name][row]
            self.at = (self.at + 1) % self.rows

    def rows_at(self, at: Array) -> Batch:
        """Gather some steps."""
        names = "obs", "actions", "rewards", "new_obs", "terminateds"
        return {name: torch.from_numpy(np.take(self.flat[name], at, axis=0)) for name in names}

    def steps(self, count: int) -> Batch:
        """Draw single steps."""
        return self.rows_at(self.rng.integers(0, self.rows * self.num_envs, count))

    def several_steps(self, count: int, n_step: int) -> Batch:
        """Draw steps with the rewards of `n_step`, fewer where an episode ends before."""
        flat, powers = self.flat, (GAMMA ** np.arange(n_step + 1)).astype(np.float32)
        row = self.rng.integers(0, self.rows - n_step + 1, count)  # the newest rows are the ring's end here
        at = (((row + self.at) % self.rows) * self.num_envs + self.rng.integers(0, self.num_envs, count))[:, None]
        at = (at + np.arange(n_step) * self.num_envs) % (self.rows * self.num_envs)
        ended = flat["ended"][at]
        ended[:, -1] = True
        last = ended.argmax(1)
        rewards = np.where(np.arange(n_step) <= last[:, None], flat["rewards"][at], 0) @ powers[:n_step]
        end, first = at[np.arange(count), last], at[:, 0]
        batch = {
            "obs": np.take(flat["obs"], first, axis=0),
            "actions": np.take(flat["actions"], first),
            "rewards": rewards,
            "new_obs": np.take(flat["new_obs"], end, axis=0),
            "terminateds": np.take(flat["terminateds"], end),
            "discounts": powers[last + 1],
        }
        return {name: torch.from_numpy(column) for name, column in batch.items()}

    def sequences(self, count: int, length: int) -> Batch:
        """Draw sequences within an episode, with a mask and the recurrent state before the first step."""
        flat = self.flat
        at = self.rng.integers(0, (self.rows - length) * self.num_envs, count)
        where = at[:, None] + np.arange(length) * self.num_envs
        ended = np.cumsum(flat["ended"][where], axis=1)
        mask = np.ones((count, length), np.bool_)
        mask[:, 1:] = ended[:, :-1] == 0
        batch = {name: np.take(flat[name], where, axis=0) for name in ("obs", "actions", "rewards", "terminateds")}
        for column in batch.values():
            column[~mask] = 0
        batch |= {"loss_mask": mask, **{name: np.take(flat[name], at, axis=0) for name in ("h", "c")}}
        return {name: torch.from_numpy(column) for name, column in batch.items()}


class Prioritized(Ring):
    """A `Ring` with a tree of sums in one array, walked and mended level by level for all rows of a draw."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        count = self.rows * self.num_envs
        self.leaves = 1 << (count - 1).bit_length()
        self.tree = np.zeros(2 * self.leaves)
        self.tree[self.leaves : self.leaves + count] = self.rng.random(count) + 0.1
        level = self.leaves // 2
        while level:
            self.tree[level : 2 * level] = (
                self.tree[2 * level : 4 * level : 2] + self.tree[2 * level + 1 : 4 * level : 2]
            )
            level //= 2

    def draw_and_update(self, count: int) -> Batch:
        """Draw steps by priority, with the weights of their losses, and set new priorities."""
        tree, mass = self.tree, self.rng.random(count) * self.tree[1]
        at = np.ones(count, np.int64)
        while at[0] < self.leaves:
            at *= 2
            left = tree[at]
            right = mass >= left
            mass -= left * right
            at += right
        np.minimum(at, self.leaves + self.rows * self.num_envs - 1, out=at)
        weights = tree[at] ** -BETA
        batch = self.rows_at(at - self.leaves)
        batch["weights"] = torch.from_numpy((weights / weights.max()).astype(np.float32))
        tree[at] = (self.rng.random(count) + 0.1) ** ALPHA
        while at[0] > 1:
            at //= 2
            tree[at] = tree[2 * at] + tree[2 * at + 1]
        return batch


class Frames:
    """Each frame once: a ring for each environment, of T + 1 rows per episode; stacks are gathered when drawn.

    Args:
        stream: The steps that it holds at first.
        rows: Rows of each ring.
    """

    def __init__(self, stream: Stream, rows: int) -> None:
        num_envs = stream.actions.shape[1]
        self.rows, self.envs = rows, np.arange(num_envs)
        self.zero = num_envs * rows
        self.flat = np.zeros((num_envs * rows + 1, *stream.obs.shape[2:]), np.uint8)  # the last row stays zero
        self.columns = {
            "actions": np.zeros((num_envs, rows), np.int64),
            "rewards": np.zeros((num_envs, rows), np.float32),
            "terminateds": np.zeros((num_envs, rows), np.bool_),
        }
        self.t, self.is_step = np.zeros((num_envs, rows), np.int64), np.zeros((num_envs, rows), np.bool_)
        self.at = np.zeros(num_envs, np.int64)
        self.rng = np.random.default_rng(3)
        self.add(stream)

    def add(self, stream: Stream) -> None:
        """Overwrite the oldest rows, one vector step after the other, as they come."""
        for row in range(len(stream.actions)):
            at, envs = self.at, self.envs
            self.flat[envs * self.rows + at] = stream.obs[row]
            for name, column in self.columns.items():
                column[envs, at] = getattr(stream, name)[row]
            self.t[envs, at], self.is_step[envs, at] = stream.t[row], True
            self.at = (at + 1) % self.rows
            ended = np.flatnonzero(stream.ended[row])
            if len(ended):
                at = self.at[ended]
                self.flat[ended * self.rows + at] = stream.last_obs[row][ended]
                self.t[ended, at], self.is_step[ended, at] = stream.t[row][ended] + 1, False
                self.at[ended] = (at + 1) % self.rows

    def outputs(self, count: int, frames: int) -> Iterator[list[Array]]:
        """Return two pairs of arrays for stacks, in turn: fresh ones cost page faults."""
        shape = count, frames, *self.flat.shape[1:]
        return cycle([[np.empty(shape, np.uint8) for _ in range(2)] for _ in range(2)])

    def steps(self, count: int, frames: int, outputs: Iterator[list[Array]]) -> Batch:
        """Draw single steps, with stacks of the frames before and after each."""
        env = self.rng.integers(0, len(self.envs), count + count // 8)
        row = (self.at[env] - self.rng.integers(2, self.rows - frames - 1, len(env))) % self.rows
        steps = np.flatnonzero(self.is_step[env, row])[:count]
        env, row = env[steps], row[steps]
        back = np.arange(1 - frames, 2)
        at = (env * self.rows)[:, None] + (row[:, None] + back) % self.rows
        at[self.t[env, row][:, None] + back < 0] = self.zero
        made = dict(zip(("obs", "new_obs"), next(outputs)))
        np.take(self.flat, at[:, :-1], axis=0, out=made["obs"], mode="clip")
        np.take(self.flat, at[:, 1:], axis=0, out=made["new_obs"], mode="clip")
        made |= {name: column[env, row] for name, column in self.columns.items()}
        return {name: torch.from_numpy(column) for name, column in made.items()}
