"""Seeded columns of episodes: the data that every side of a row starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TERMINATED, TRUNCATED, CUT = range(3)

SHORTEST = 8

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Episode:
    """The columns of one episode of T steps.

    Args:
        end: How it ended: TERMINATED, TRUNCATED or CUT.
        obs: [T + 1, ...].
        steps: Name to column [T, ...]: actions int64, rewards float64, and the model outputs action_logp float32,
            action_dist_inputs float32 [T, 2], vf_preds float32.
        state: Name to float32 [T, size], the recurrent state behind each step; empty without recurrence.
    """

    end: int
    obs: Array
    steps: dict[str, Array]
    state: dict[str, Array]

    def __len__(self) -> int:
        return len(self.obs) - 1


MODEL_OUTPUTS = ("action_logp", "action_dist_inputs", "vf_preds")


def lengths(total: int, count: int, seed: int = 0) -> list[int]:
    """Lengths of `count` episodes that add up to `total`, spread like waiting times, each at least 8."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(count))
    return [SHORTEST + int(extra) for extra in rng.multinomial(total - SHORTEST * count, shares)]


def episodes(
    total: int,
    count: int,
    shape: tuple[int, ...] = (4,),
    *,
    kind: str = "float32",
    state: int = 0,
    seed: int = 0,
) -> list[Episode]:
    """Episodes of varied lengths; a third each is terminated, truncated and cut.

    Args:
        total: Steps of all of them.
        count: How many.
        shape: Of one observation.
        kind: "float32", "uint8", or "counts": float32 holding small integers, so that observations repeat.
        state: Size of the two recurrent states h and c; 0: none.
        seed: Of all numbers.
    """
    rng = np.random.default_rng(seed + 1)
    return [
        drawn_episode(rng, length, i % 3, shape, kind, state) for i, length in enumerate(lengths(total, count, seed))
    ]


def drawn_episode(
    rng: np.random.Generator,
    length: int,
    end: int,
    shape: tuple[int, ...] = (4,),
    kind: str = "float32",
    state: int = 0,
) -> Episode:
    """An episode of random numbers; see `episodes`."""
    return Episode(
        end=end,
        obs=_observations(rng, (length + 1, *shape), kind),
        steps={
            "actions": rng.integers(0, 2, length),
            "rewards": rng.standard_normal(length),
            "action_logp": rng.standard_normal(length).astype(np.float32),
            "action_dist_inputs": rng.standard_normal((length, 2)).astype(np.float32),
            "vf_preds": rng.standard_normal(length).astype(np.float32),
        },
        state={name: rng.standard_normal((length, state)).astype(np.float32) for name in ("h", "c") if state},
    )


def _observations(rng: np.random.Generator, shape: Sequence[int], kind: str) -> Array:
    if kind == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind == "counts":
        return rng.integers(-2, 3, shape).astype(np.float32)
    return rng.standard_normal(shape).astype(np.float32)
