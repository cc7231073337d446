"""`PrevActionsPrevRewards` beside RLlib's for random spaces of actions, call after call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from batches.flat import flat, parts
from batches.playing import CHOICE, Playing, piece, played_lengths
from batches.snapshots import flat_mismatches, rows_of, snapshot
from oracle.cases import random_cases
from oracle.columns import leaves, space_struct
from oracle.compare import Mismatch, outcome, settle
from oracle.differences import difference
from oracle.libraries import EPIBATCH, RLLIB, Library
from oracle.spaces import leaf_spaces, spaces

KEYS = ("_orig_obs", "prev_n_actions", "prev_n_rewards")


@dataclass(frozen=True)
class Remembering:
    """Episodes whose last actions and rewards stand beside each observation.

    Attributes:
        ours: what epibatch gave, as a snapshot.
    """

    play: Playing
    actions: int
    rewards: int
    ours: Any = field(default=None, repr=False)

    def run(self, library: Library, recorded: bool = False) -> Any:
        """The parts of every observation, and the space that they should be in."""
        counts = {"n_prev_actions": self.actions, "n_prev_rewards": self.rewards}
        made = piece(library, "PrevActionsPrevRewards", (self.play.space, self.play.actions), **counts)
        shown = self.play.recorded(made) if recorded else self.play.shown(library, made)
        space = made.observation_space
        kept = [[row[key] for row in shown] for key in KEYS if key in shown[0]]
        named = dict(zip([key for key in KEYS if key in shown[0]], kept))
        return snapshot({**named, **{f"space of {key}": repr(own) for key, own in space.spaces.items()}})

    def expected(self) -> Any:
        """What ours should give: all actions and all rewards as float32 vectors, zeros before the start."""
        size = len(flat_bounds(self.play.actions)[0])
        out: dict[str, list[Any]] = {key: [] for key in KEYS}
        for steps in self.play.episodes():
            taken = [np.zeros(size, np.float32)] * self.actions
            earned = [0.0] * self.rewards
            for i, step in enumerate(steps):
                if i:
                    taken.append(flat(self.play.actions, step.action).astype(np.float32))
                    earned.append(step.reward)
                out["_orig_obs"].append(step.observation)
                out["prev_n_actions"].append(np.concatenate([*taken[len(taken) - self.actions :], []]).astype("f4"))
                out["prev_n_rewards"].append(np.array(earned[len(earned) - self.rewards :], np.float32))
        low, high = (np.tile(own, self.actions) for own in flat_bounds(self.play.actions))
        endless = np.full(self.rewards, np.inf)
        parts_ = {
            "_orig_obs": self.play.space,
            "prev_n_actions": gym.spaces.Box(low, high, dtype=np.float32),
            "prev_n_rewards": gym.spaces.Box(-endless, endless, dtype=np.float32),
        }
        there = [key for key, count in zip(KEYS, (1, self.actions, self.rewards)) if count]
        return snapshot({**{key: out[key] for key in there}, **{f"space of {key}": repr(parts_[key]) for key in there}})

    @property
    def is_right(self) -> bool:
        """Whether ours gives that."""
        return not flat_mismatches(self.expected(), self.ours)


def flat_bounds(space: Any) -> tuple[Any, Any]:
    """The bounds of a space's members as vectors; numbers stand there as the module gave them, so they have none."""
    high = [
        np.full(flat(own, own.sample()).size, np.inf if isinstance(own, gym.spaces.Box) else 1.0)
        for own in leaves(space_struct(space))
    ]
    low = [np.where(np.isinf(own), -np.inf, 0.0) for own in high]
    return np.concatenate(low), np.concatenate(high)


@difference("O26", Remembering)
def actions_and_rewards_as_declared(situation: Remembering, mismatch: Mismatch) -> bool:
    """RLlib has no space for actions that are no choice, an axis too many for others, and rewards of 64 bits."""
    if not situation.is_right:
        return False
    if mismatch.kind == "error":
        return isinstance(mismatch.theirs, (AttributeError, TypeError))
    name = mismatch.path[-1]
    if name.startswith("space of"):  # one of no entries, where there are none in the observation either
        return mismatch.kind == "keys" and not mismatch.ours and "(0,)" in str(mismatch.theirs)
    theirs, ours = (
        [np.asarray(row, np.float32).ravel() for own in rows_of(side).values() for row in own]
        for side in (mismatch.theirs, mismatch.ours)
    )
    return name in KEYS[1:] and np.array_equal(np.concatenate(theirs), np.concatenate(ours))


@difference("O44", Remembering)
def actions_with_a_start(situation: Remembering, mismatch: Mismatch) -> bool:
    """RLlib has no one-hot for a Discrete with a start and raises; here it counts from there."""
    started = any(own.start for own in parts(situation.play.actions, gym.spaces.Discrete))
    return started and mismatch.kind == "error" and not isinstance(mismatch.ours, Exception) and situation.is_right


plays = st.builds(
    Playing,
    st.one_of(leaf_spaces, spaces),
    played_lengths,
    st.integers(0, 1000),
    st.one_of(st.just(CHOICE), leaf_spaces, spaces),
)


@random_cases(play=plays, actions=st.integers(0, 3), rewards=st.integers(0, 3))
def test_prev_actions_prev_rewards(play, actions, rewards):
    theirs = outcome(lambda: Remembering(play, actions, rewards).run(RLLIB))
    for recorded in (False, True):
        ours = outcome(lambda recorded=recorded: Remembering(play, actions, rewards).run(EPIBATCH, recorded))
        settle(theirs, ours, Remembering(play, actions, rewards, ours.value or {}), flat_mismatches)
