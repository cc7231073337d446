"""Pieces that users add for what the network sees, each by itself beside RLlib's, call after call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from batches.chunks import BatchChunk, build_all, chunk_lists, in_a_block
from batches.flat import flat, parts
from batches.playing import CHOICE, Playing
from batches.snapshots import column_of, flat_mismatches, snapshot
from batches.stages import snapshot_keys
from epibatch.core.errors import LookbackError
from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.compare import outcome, settle
from oracle.differences import difference
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.spaces import spaces

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
        stack = cls(num_frames=frames, as_learner_connector=learner)
        stack.input_action_space, stack.input_observation_space = CHOICE, space
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
    """Observations made flat as they come, without one of their keys perhaps."""

    space: Any
    play: Playing
    removed: list[str] | None

    def right(self, newest: list[Any]) -> bool:
        """Whether ours are the entries of each leaf in turn, choices as one-hots that count from their start."""
        seen = self.play.shown(EPIBATCH, lambda **call: None)
        expected = [flat(self.space, row, self.removed or ()) for row in seen]
        return len(newest) == len(expected) and all(
            own.dtype == np.float32 and np.array_equal(own, row.astype(np.float32))
            for own, row in zip(newest, expected)
        )


@difference("O44", Flattening)
def one_hots_of_choices_with_a_start(situation: Flattening, mismatch: Any) -> bool:
    """RLlib has no one-hot for a Discrete with a start: it raises or sets a wrong entry; here it counts from there."""
    started = any(own.start for own in parts(situation.space, gym.spaces.Discrete))
    if not started or not isinstance(mismatch.ours, dict):
        return False
    if mismatch.kind != "value" or mismatch.path[-1] != "newest":
        return mismatch.kind == "error" and situation.right([*column_of(mismatch.ours, "newest").values()])
    pairs = [(leaf, mismatch.ours[path]) for path, leaf in mismatch.theirs.items()]
    moved = all(a.shape == b.shape and np.array_equal(np.sort(a), np.sort(b)) for a, b in pairs)
    return moved and situation.right([*mismatch.ours.values()])


@difference("matrix-choices", Flattening)
def one_hots_of_matrices(situation: Flattening, mismatch: Any) -> bool:
    """RLlib has no one-hot for a MultiDiscrete of several axes and raises; here its entries follow one another."""
    matrix = any(own.nvec.ndim > 1 for own in parts(situation.space, gym.spaces.MultiDiscrete))
    return (
        matrix
        and mismatch.kind == "error"
        and isinstance(mismatch.ours, dict)
        and situation.right([*column_of(mismatch.ours, "newest").values()])
    )


@holds("C50")
@random_cases(space=spaces, lengths=st.lists(st.integers(0, 3), min_size=1, max_size=2), seed=st.integers(0, 99))
def test_flatten_observations(space, lengths, seed):
    removed = None
    if isinstance(space, gym.spaces.Dict) and len(space.spaces) > 1 and seed % 2:
        removed = [sorted(space.spaces)[seed % len(space.spaces)]]

    def run(library: Library) -> Any:
        # RLlib's takes keys to remove with the spaces only
        flat = library.env_to_module.FlattenObservations(space, CHOICE, keys_to_remove=removed)
        shown = Playing(space, tuple(lengths), seed).shown(library, flat)
        return snapshot({"newest": shown, "space": repr(flat.observation_space)})

    theirs, ours = (outcome(lambda library=library: run(library)) for library in BOTH)
    settle(theirs, ours, Flattening(space, Playing(space, tuple(lengths), seed), removed), flat_mismatches)
