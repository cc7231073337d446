"""`PrevActionsPrevRewards` beside RLlib's for random spaces of actions, call after call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from batches.flat import flat, parts
from batches.playing import CHOICE, Playing, piece, played_lengths
from batches.snapshots import column_of, flat_mismatches, rows_of, snapshot
from oracle.cases import differences_met, random_cases
from oracle.columns import leaves, space_struct
from oracle.compare import Mismatch, Outcome, outcome, settle
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

    def expected(self, choice: Any = None) -> Any:
        """What ours should give: all actions and all rewards as float32 vectors, zeros before the start.

        Args:
            choice: the space that actions are taken to be of, instead of their own.
        """
        space = choice or self.play.actions
        size = len(flat_bounds(space)[0])
        out: dict[str, list[Any]] = {key: [] for key in KEYS}
        for steps in self.play.episodes():
            taken = [np.zeros(size, np.float32)] * self.actions
            earned = [0.0] * self.rewards
            for i, step in enumerate(steps):
                if i:
                    taken.append(flat(space, step.action).astype(np.float32))
                    earned.append(step.reward)
                out["_orig_obs"].append(step.observation)
                out["prev_n_actions"].append(np.concatenate([*taken[len(taken) - self.actions :], []]).astype("f4"))
                out["prev_n_rewards"].append(np.array(earned[len(earned) - self.rewards :], np.float32))
        low, high = (np.tile(own, self.actions) for own in flat_bounds(space))
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
    return name in KEYS[1:] and same_vectors(mismatch.theirs, mismatch.ours)


def same_vectors(theirs: Any, ours: Any) -> bool:
    """Whether rows have the same numbers, whatever their types and axes."""
    one, other = (
        [np.asarray(row, np.float32).ravel() for own in rows_of(side).values() for row in own]
        for side in (theirs, ours)
    )
    return np.array_equal(np.concatenate(one), np.concatenate(other))


@difference("O44", Remembering)
def actions_with_a_start(situation: Remembering, mismatch: Mismatch) -> bool:
    """RLlib counts one-hots of a Discrete from 0, not from its start, and raises for members that are too high."""
    space = situation.play.actions
    started = any(own.start for own in parts(space, gym.spaces.Discrete))
    if not started or isinstance(mismatch.ours, Exception) or not situation.is_right:
        return False
    if mismatch.kind == "error":
        return True
    if mismatch.path[-1] != "prev_n_actions" or not isinstance(space, gym.spaces.Discrete):
        return False
    counted = situation.expected(gym.spaces.Discrete(int(space.n)))
    return same_vectors(mismatch.theirs, column_of(counted, "prev_n_actions"))


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


def test_wrong_one_hots_of_actions_with_a_start():
    """RLlib's are of other entries; ours may not be."""
    play = Playing(gym.spaces.Discrete(1), (1,), 107, gym.spaces.Discrete(4, start=3))  # its one action is 3
    situation = Remembering(play, 1, 0)
    theirs, right = situation.run(RLLIB), situation.run(EPIBATCH)

    def hold(ours: Any) -> None:
        settle(Outcome(theirs), Outcome(ours), replace(situation, ours=ours), flat_mismatches)

    met = differences_met["O44"]
    hold(right)
    assert differences_met["O44"] == met + 1
    wrong = {path: np.roll(leaf, 1) if path[0] == "prev_n_actions" else leaf for path, leaf in right.items()}
    with pytest.raises(AssertionError, match="not listed"):
        hold(wrong)
