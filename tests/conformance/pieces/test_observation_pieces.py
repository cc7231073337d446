"""Pieces that users add for what the network sees, each by itself beside RLlib's, call after call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from batches.chunks import BatchChunk, build_all, chunk_lists, in_a_block
from batches.playing import CHOICE, Playing, flat, parts, piece, played_lengths
from batches.stages import column_of, flat_mismatches, rows_of, same_flat, snapshot, snapshot_keys
from epibatch.core.errors import LookbackError
from oracle.cases import random_cases
from oracle.compare import Mismatch, Outcome, difference, leaves, outcome, settle, space_struct
from oracle.episodes import leaf_spaces, spaces
from oracle.libraries import EPIBATCH, RLLIB, Library
from oracle.makers import wired
from oracle.probes import holds

IMAGES = st.builds(
    lambda shape, dtype: gym.spaces.Box(0, 200, (*shape, 1), dtype),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([np.uint8, np.float32]),
)


# ------------------------------------------------------------------------------------- frame stacks
@dataclass(frozen=True)
class Stacking:
    """Stacked frames of some chunks."""

    chunks: tuple[BatchChunk, ...]
    frames: int
    learner: bool


@difference("missing-history", Stacking)
def frames_that_are_not_there(situation: Stacking, mismatch: Any) -> bool:
    """Chunks that began earlier than their lookback: RLlib has zeros for frames, epibatch raises."""
    return (
        mismatch.kind == "error"
        and isinstance(mismatch.ours, LookbackError)
        and any(
            chunk.t_started > chunk.lookback
            and chunk.lookback + (0 if situation.learner else chunk.length) < situation.frames - 1
            for chunk in situation.chunks
        )
    )


@holds("C51")
@random_cases(data=st.data(), frames=st.integers(1, 5), learner=st.booleans())
def test_frame_stacking(data, frames, learner):
    space = data.draw(IMAGES)
    drawn = chunk_lists((space, CHOICE), "", fewest=int(learner), ongoing=not learner, unique=True, objects=False)
    chunks = data.draw(drawn)

    def run(library: Library, block: bool = False) -> Any:
        cls = library.module("connectors.common.frame_stacking").FrameStacking
        stack = wired(cls(num_frames=frames, as_learner_connector=learner), space, CHOICE)
        episodes = in_a_block(chunks) if block else build_all(library, chunks, numpy=learner or library is EPIBATCH)
        batch = stack(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={})
        out = snapshot(batch, snapshot_keys(episodes))
        return {**out, ("space",): (stack.observation_space.shape, stack.observation_space.dtype)}

    theirs = outcome(lambda: run(RLLIB))
    for block in (False, True):
        ours = outcome(lambda block=block: run(EPIBATCH, block))
        settle(theirs, ours, Stacking(chunks, frames, learner), flat_mismatches)


# -------------------------------------------------------------------------------- flat observations
@dataclass(frozen=True)
class Flattening:
    """Observations made flat as they come."""

    space: Any


@difference("O44", Flattening)
def one_hots_of_choices_with_a_start(situation: Flattening, mismatch: Any) -> bool:
    """RLlib has no one-hot for a Discrete with a start: it raises or sets a wrong entry; here it counts from there."""
    return any(own.start for own in parts(situation.space, gym.spaces.Discrete))


@difference("matrix-choices", Flattening)
def one_hots_of_matrices(situation: Flattening, mismatch: Any) -> bool:
    """RLlib has no one-hot for a MultiDiscrete of several axes and raises; here its entries follow one another."""
    matrix = any(own.nvec.ndim > 1 for own in parts(situation.space, gym.spaces.MultiDiscrete))
    return matrix and mismatch.kind == "error"


@holds("C50")
@random_cases(space=spaces, lengths=st.lists(st.integers(0, 3), min_size=1, max_size=2), seed=st.integers(0, 99))
def test_flatten_observations(space, lengths, seed):
    """Ours are the entries of each leaf in turn, choices as one-hots that count from their start."""
    removed, play = None, Playing(space, tuple(lengths), seed)
    if isinstance(space, gym.spaces.Dict) and len(space.spaces) > 1 and seed % 2:
        removed = [sorted(space.spaces)[seed % len(space.spaces)]]

    def run(library: Library) -> Any:
        # RLlib's takes keys to remove with the spaces only
        made = library.env_to_module.FlattenObservations(space, CHOICE, keys_to_remove=removed)
        return snapshot({"newest": play.shown(library, made), "space": repr(made.observation_space)})

    seen = play.shown(EPIBATCH, lambda **call: None)
    expected = snapshot({"newest": [flat(space, row, removed or ()).astype(np.float32) for row in seen]})
    ours = run(EPIBATCH)
    assert same_flat(column_of(expected, "newest"), column_of(ours, "newest"))
    settle(outcome(lambda: run(RLLIB)), Outcome(ours), Flattening(space), flat_mismatches)


KEYS = ("_orig_obs", "prev_n_actions", "prev_n_rewards")


@dataclass(frozen=True)
class Remembering:
    """Episodes whose last actions and rewards stand beside each observation."""

    play: Playing
    actions: int
    rewards: int

    def run(self, library: Library, recorded: bool = False) -> Any:
        """The parts of every observation, and the space that they should be in."""
        counts = {"n_prev_actions": self.actions, "n_prev_rewards": self.rewards}
        made = piece(library, "PrevActionsPrevRewards", (self.play.space, self.play.actions), **counts)
        shown = self.play.shown(library, made, recorded)
        space = made.observation_space
        kept = [[row[key] for row in shown] for key in KEYS if key in shown[0]]
        named = dict(zip([key for key in KEYS if key in shown[0]], kept))
        return snapshot({**named, **{f"space of {key}": repr(own) for key, own in space.spaces.items()}})

    def expected(self) -> Any:
        """What ours should give: all actions and all rewards as float32 vectors, zeros before the start."""
        space = self.play.actions
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
    if mismatch.kind == "error":
        return isinstance(mismatch.theirs, (AttributeError, TypeError))
    name = mismatch.path[-1]
    if name.startswith("space of"):  # one of no entries, where there are none in the observation either
        return mismatch.kind == "keys" and not mismatch.ours and "(0,)" in str(mismatch.theirs)
    one, other = (
        [np.asarray(row, np.float32).ravel() for own in rows_of(side).values() for row in own]
        for side in (mismatch.theirs, mismatch.ours)
    )
    return name in KEYS[1:] and np.array_equal(np.concatenate(one), np.concatenate(other))


@difference("O44", Remembering)
def actions_with_a_start(situation: Remembering, mismatch: Mismatch) -> bool:
    """RLlib counts one-hots of a Discrete from 0, not from its start, and raises for members that are too high."""
    started = any(own.start for own in parts(situation.play.actions, gym.spaces.Discrete))
    return started and (mismatch.kind == "error" or mismatch.path[-1] == "prev_n_actions")


plays = st.builds(
    Playing,
    st.one_of(leaf_spaces, spaces),
    played_lengths,
    st.integers(0, 1000),
    st.one_of(st.just(CHOICE), leaf_spaces, spaces),
)


@random_cases(play=plays, actions=st.integers(0, 3), rewards=st.integers(0, 3))
def test_prev_actions_prev_rewards(play, actions, rewards):
    situation = Remembering(play, actions, rewards)
    theirs = outcome(lambda: situation.run(RLLIB))
    for recorded in (False, True):
        ours = situation.run(EPIBATCH, recorded)
        assert not flat_mismatches(situation.expected(), ours)
        settle(theirs, Outcome(ours), situation, flat_mismatches)
