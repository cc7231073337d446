"""Train batches from the columns of a list of episodes, or of a block of vector steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.libraries import values
from benchmarks.workloads import TERMINATED, TRUNCATED, Array, Block, Episode, chunks

TYPES = {
    "actions": np.int64,
    "rewards": np.float32,
    "action_logp": np.float32,
    "action_dist_inputs": np.float32,
    "vf_preds": np.float32,
}

Batch = dict[str, Any]


def stateless(episodes: Sequence[Episode]) -> Batch:
    """One row per step: a concatenation per column."""
    return {
        "obs": torch.from_numpy(np.concatenate([episode.obs[:-1] for episode in episodes])),
        **without_obs(episodes),
    }


def without_obs(episodes: Sequence[Episode]) -> Batch:
    """All columns of `stateless` but the observations."""
    batch = {
        name: np.concatenate([episode.steps[name] for episode in episodes], dtype=kind, casting="same_kind")
        for name, kind in TYPES.items()
    }
    ends = np.cumsum([len(episode) for episode in episodes])
    batch["terminateds"], batch["truncateds"] = _flags(_ends(episodes), ends - 1, int(ends[-1]))
    return _tensors(batch)


def _ends(episodes: Sequence[Episode]) -> Array:
    return np.array([episode.end for episode in episodes])


def _flags(ends: Array, last: Array, rows: int) -> tuple[Array, Array]:
    flags = []
    for end in (TERMINATED, TRUNCATED):
        flag = np.zeros(rows, np.bool_)
        flag[last[ends == end]] = True
        flags.append(flag)
    return flags[0], flags[1]


def _tensors(columns: dict[str, Array]) -> Batch:
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def recurrent(episodes: Sequence[Episode], width: int) -> Batch:
    """[B, width, ...]: every episode padded behind its end, which in flat rows is one copy per episode and column."""
    lengths = np.array([len(episode) for episode in episodes])
    sequences = -(-lengths // width)
    starts = np.cumsum(sequences * width) - sequences * width
    rows, total = int(sequences.sum()), int(sequences.sum()) * width
    gaps = (sequences * width - lengths).tolist()

    def padded(parts: list[Array], kind: Any) -> Array:
        nothing = np.zeros((width, *parts[0].shape[1:]), kind)
        pieces = [piece for part, gap in zip(parts, gaps) for piece in (part, nothing[:gap])]
        flat = np.concatenate(pieces, dtype=kind, casting="same_kind")
        return flat.reshape(rows, width, *flat.shape[1:])

    batch = {"obs": padded([episode.obs[:-1] for episode in episodes], np.float32)}
    for name, kind in TYPES.items():
        batch[name] = padded([episode.steps[name] for episode in episodes], kind)
    for name, flag in zip(("terminateds", "truncateds"), _flags(_ends(episodes), starts + lengths - 1, total)):
        batch[name] = flag.reshape(rows, width)
    batch["seq_lens"] = np.full(rows, width)
    batch["seq_lens"][np.cumsum(sequences) - 1] = width - np.array(gaps)
    batch["loss_mask"] = np.arange(width) < batch["seq_lens"][:, None]
    return {**_tensors(batch), "state_in": _tensors(_states(episodes, sequences.tolist(), width))}


def _states(episodes: Sequence[Episode], sequences: list[int], width: int) -> dict[str, Array]:
    """The state before the first step of each sequence: zeros, then what the step before it left."""
    states = {}
    for name, column in episodes[0].state.items():
        zero = np.zeros_like(column[:1])
        parts = []
        for episode, count in zip(episodes, sequences):
            parts += [zero, episode.state[name][width - 1 :: width][: count - 1]]
        states[name] = np.concatenate(parts)
    return states


def bootstrapped(episodes: Sequence[Episode]) -> tuple[dict[str, Array], Array]:
    """One row per step and one behind each episode, for its last observation; and the places of these rows."""
    ends = np.cumsum([len(episode) + 1 for episode in episodes]) - 1
    rows = int(ends[-1]) + 1
    batch = {"obs": np.concatenate([episode.obs for episode in episodes])}
    no_reward = np.zeros(1)
    for name, kind in TYPES.items():
        columns = [episode.steps[name] for episode in episodes]
        lasts = [no_reward] * len(columns) if name == "rewards" else [column[-1:] for column in columns]
        pieces = [piece for pair in zip(columns, lasts) for piece in pair]
        batch[name] = np.concatenate(pieces, dtype=kind, casting="same_kind")
    batch["terminateds"], _ = _flags(_ends(episodes), ends - 1, rows)
    batch["truncateds"] = np.zeros(rows, np.bool_)
    batch["truncateds"][ends - 1] = True
    batch["truncateds"] &= ~batch["terminateds"]
    batch["loss_mask"] = np.ones(rows, np.bool_)
    batch["loss_mask"][ends] = False
    return batch, ends


def advantages(episodes: Sequence[Episode], gamma: float, lambda_: float) -> Batch:
    """`bootstrapped` with value predictions, value targets and standardised advantages."""
    columns, ends = bootstrapped(episodes)
    batch = _tensors(columns)
    predictions = values(batch["obs"]).numpy()
    errors = one_step_errors(columns["rewards"], predictions, columns["terminateds"], gamma, -1, 0.0)
    errors[ends] = 0.0
    lengths = np.diff(ends, prepend=-1)
    sums = discounted_sums(errors, lengths.tolist(), gamma * lambda_)
    batch["value_targets"] = torch.from_numpy(sums + predictions)
    real = sums[columns["loss_mask"]]
    sums -= real.mean()
    sums /= max(1e-4, real.std())
    sums[ends] = 0.0
    batch["advantages"] = torch.from_numpy(sums)
    return batch


def one_step_errors(
    rewards: Array, values: Array, terminateds: Array, gamma: float, lasts: Any, bootstraps: Any
) -> Array:
    """Return what came, plus the discounted value of what follows (after `lasts`: `bootstraps`), minus the value."""
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[lasts] = bootstraps
    following[terminateds] = 0.0
    following *= np.float32(gamma)
    following += rewards
    following -= values
    return following


def discounted_sums(errors: Array, lengths: Sequence[int], factor: float, width: int = 64) -> Array:
    """Reverse discounted sums of segments, in float32.

    Rows are laid out in blocks; within a block the sum is a product with a triangular matrix, from block to block
    one number is carried.
    """
    nothing = np.zeros(width, np.float32)
    pieces, start = [], 0
    for length in lengths:
        pieces += [errors[start : start + length], nothing[: -length % width]]
        start += length
    steps = np.arange(width)
    apart = steps[:, None] - steps
    matrix = np.where(apart >= 0, factor ** np.maximum(apart, 0), 0.0).astype(np.float32)
    sums = np.concatenate(pieces).reshape(-1, width) @ matrix
    sums += _carries(sums[:, 0].tolist(), lengths, factor**width, width)[:, None] * (factor ** (width - steps)).astype(
        np.float32
    )
    flat, place, parts = sums.reshape(-1), 0, []
    for length in lengths:
        parts.append(flat[place : place + length])
        place += -(-length // width) * width
    return np.concatenate(parts)


def _carries(heads: list[float], lengths: Sequence[int], factor: float, width: int) -> Array:
    """What each block gets from the blocks behind it in the same segment."""
    carries = [0.0] * len(heads)
    first = 0
    for length in lengths:
        blocks, carry = -(-length // width), 0.0
        for block in range(first + blocks - 1, first - 1, -1):
            carries[block] = carry
            carry = heads[block] + factor * carry
        first += blocks
    return np.array(carries, np.float32)


def from_block(columns: Block) -> Batch:
    """Return `stateless` of the episodes in vector steps: one gather per column."""
    envs, starts, stops, ends = np.array(chunks(columns)).T
    num_envs, lengths = columns.obs.shape[1], stops - starts
    lasts = np.cumsum(lengths)
    within = np.arange(lasts[-1]) - np.repeat(lasts - lengths, lengths)
    rows = np.repeat(starts * num_envs + envs, lengths) + within * num_envs
    batch = {"obs": columns.obs.reshape(-1, *columns.obs.shape[2:]).take(rows, axis=0)}
    for name, kind in TYPES.items():
        column = columns.steps[name]
        batch[name] = column.reshape(-1, *column.shape[2:]).take(rows, axis=0).astype(kind, copy=False)
    batch["terminateds"], batch["truncateds"] = _flags(ends, lasts - 1, len(rows))
    return _tensors(batch)


def recurrent_from_block(columns: Block, width: int) -> Batch:
    """Return `recurrent` of the episodes in vector steps: one gather per column, into the padded batch."""
    envs, starts, stops, ends = np.array(chunks(columns)).T
    num_envs, lengths = columns.obs.shape[1], stops - starts
    sequences = -(-lengths // width)
    owners = np.repeat(np.arange(len(lengths)), sequences)
    begins = (np.arange(len(owners)) - np.repeat(np.cumsum(sequences) - sequences, sequences)) * width
    steps = begins[:, None] + np.arange(width)
    real = steps < lengths[owners, None]
    rows = (starts[owners, None] + np.minimum(steps, lengths[owners, None] - 1)) * num_envs + envs[owners, None]
    holes = ~real

    def padded(column: Array, kind: Any) -> Array:
        out: Array = column.reshape(-1, *column.shape[2:]).take(rows, axis=0).astype(kind, copy=False)
        out[holes] = 0
        return out

    batch = {"obs": padded(columns.obs, np.float32)}
    batch |= {name: padded(columns.steps[name], kind) for name, kind in TYPES.items()}
    last = (np.cumsum(sequences) - 1) * width + (lengths - 1) % width
    for name, flag in zip(("terminateds", "truncateds"), _flags(ends, last, rows.size)):
        batch[name] = flag.reshape(rows.shape)
    batch["seq_lens"], batch["loss_mask"] = real.sum(1), real
    later = begins > 0
    before = (starts[owners] + begins - 1)[later], envs[owners][later]
    states = {}
    for name, column in columns.steps["state_out"].items():
        states[name] = np.zeros((len(owners), column.shape[-1]), np.float32)
        states[name][later] = column[before]
    return {**_tensors(batch), "state_in": _tensors(states)}


def with_counts(episodes: Sequence[Episode]) -> Batch:
    """Add 1 / (how often this observation was seen so far) to every reward, a step at a time, then make the batch."""
    seen: dict[tuple[float, ...], int] = {}
    changed = []
    for episode in episodes:
        rewards = episode.steps["rewards"].copy()
        for t, observation in enumerate(episode.obs[:-1]):
            key = tuple(observation)
            count = seen[key] = seen.get(key, 0) + 1
            rewards[t] = rewards[t] + 1.0 / count
        changed.append(replace(episode, steps={**episode.steps, "rewards": rewards}))
    return stateless(changed)


# -------------------------------------------------------------------------------------- stacked frames

FRAMES = 4


def stacked(episodes: Sequence[Episode]) -> Batch:
    """Return `stateless` with stacks of the last four frames, [..., 84, 84, 4], and zeros before the first frame.

    A pixel's stack is one 32-bit word: the word before, moved on by a byte, with the new frame on top.
    """
    shape = episodes[0].obs.shape[1:-1]
    pixels = int(np.prod(shape))
    out = np.empty((sum(map(len, episodes)), pixels), np.uint32)
    nothing, top = np.zeros(pixels, np.uint32), np.empty(pixels, np.uint32)
    start = 0
    for episode in episodes:
        before = nothing
        for word, frame in zip(out[start : start + len(episode)], episode.obs[:-1].reshape(-1, pixels)):
            push(before, frame, word, top)
            before = word
        start += len(episode)
    return {"obs": torch.from_numpy(out.view(np.uint8).reshape(-1, *shape, FRAMES)), **without_obs(episodes)}


def push(before: Array, frame: Array, out: Array, top: Array) -> None:
    """Put a frame on packed stacks.

    Args:
        before: uint32, the stacks so far; little-endian, so the oldest frame is the lowest byte.
        frame: uint8 of the same shape.
        out: uint32, where the new stacks go; may be `before`.
        top: uint32, overwritten.
    """
    np.right_shift(before, 8, out)
    np.left_shift(frame, 24, top, dtype=np.uint32)
    np.bitwise_or(out, top, out)
