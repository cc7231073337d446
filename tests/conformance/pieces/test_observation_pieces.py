"""Pieces that users add for what the network sees, each by itself beside RLlib's, call after call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from batches.chunks import BatchChunk, build_all, chunk_lists, in_a_block
from batches.snapshots import column_of, flat_mismatches, snapshot
from batches.stages import snapshot_keys
from epibatch.core.errors import LookbackError
from oracle.cases import random_cases
from oracle.compare import outcome, settle
from oracle.differences import difference
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.spaces import rows, spaces

CHOICE = gym.spaces.Discrete(3)
IMAGES = st.builds(
    lambda shape, dtype: gym.spaces.Box(0, 200, (*shape, 1), dtype),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([np.uint8, np.float32]),
)


def piece(library: Library, name: str, spaces_: Any, **settings: Any) -> Any:
    made = getattr(library.env_to_module, name)(**settings)
    made.input_action_space, made.input_observation_space = spaces_[1], spaces_[0]
    return made


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


# ---------------------------------------------------------------------------- filters and histories
@dataclass(frozen=True)
class Playing:
    """One environment that plays a few episodes, the piece called behind every step."""

    space: Any
    lengths: tuple[int, ...]
    seed: int

    def shown(self, library: Library, made: Any) -> list[Any]:
        """The newest observation behind each call."""
        rng, out = np.random.default_rng(self.seed), []
        for length in self.lengths:
            observations, actions = rows(self.space, rng, length + 1), rows(CHOICE, rng, length)
            episode = library.SingleAgentEpisode(observation_space=self.space, action_space=CHOICE)
            for step, observation in enumerate(observations):
                if step:
                    episode.add_env_step(observation, actions[step - 1], float(rng.integers(-9, 9)) / 4)
                else:
                    episode.add_env_reset(observation)
                made(rl_module=None, batch={}, episodes=[episode])
                out.append(episode.get_observations(-1))
        return out


plays = st.builds(
    Playing,
    st.builds(lambda size: gym.spaces.Box(-np.inf, np.inf, (size,), np.float32), st.integers(1, 3)),
    st.lists(st.integers(0, 8), min_size=1, max_size=4).map(tuple),
    st.integers(0, 1000),
)


@random_cases(
    play=plays,
    settings=st.sampled_from([{}, {"clip_by_value": 0.7}, {"de_std_to_one": False}]),
    halfway=st.booleans(),
)
def test_mean_std_filter(play, settings, halfway):
    shown, pieces = [], []
    for library in BOTH:
        made = piece(library, "MeanStdFilter", (play.space, CHOICE), **settings)
        out = play.shown(library, made)
        if halfway:  # a twin that takes over the state, frozen, goes on from there
            twin = piece(library, "MeanStdFilter", (play.space, CHOICE), update_stats=False, **settings)
            twin.set_state(made.get_state())
            if sum(play.lengths) + len(play.lengths) > 1:
                out += Playing(play.space, (2,), play.seed + 1).shown(library, twin)
        shown.append(out)
        pieces.append(made)
    assert [row.dtype for row in shown[0]] == [row.dtype for row in shown[1]]
    np.testing.assert_allclose(np.array(shown[1]), np.array(shown[0]), rtol=1e-4, atol=1e-4)
    assert pieces[0].observation_space == pieces[1].observation_space
    stats, state = pieces[0]._filters[None].running_stats, pieces[1].get_state()["since"]
    assert state["count"] == stats.num_pushes
    np.testing.assert_allclose(state["mean"], stats.mean_array, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state["squares"], stats.sum_sq_diff_array, rtol=1e-9, atol=1e-12)


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


def flat(space: Any, value: Any, removed: Any = ()) -> Any:
    """A member of a space as one vector."""
    if isinstance(space, gym.spaces.Dict):
        kept = [key for key in sorted(space.spaces) if key not in removed]
        return np.concatenate([flat(space[key], value[key]) for key in kept])
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([flat(own, part) for own, part in zip(space.spaces, value)])
    if isinstance(space, gym.spaces.Discrete):
        return np.arange(space.start, space.start + space.n) == value
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts, numbers = np.ravel(space.nvec), np.ravel(value)
        return np.concatenate([np.arange(n) == number for n, number in zip(counts, numbers)])
    return np.ravel(value)


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


def parts(space: Any, kind: type) -> list[Any]:
    """The parts of a space that are of one kind."""
    if isinstance(space, gym.spaces.Dict):
        return [own for part in space.spaces.values() for own in parts(part, kind)]
    if isinstance(space, gym.spaces.Tuple):
        return [own for part in space.spaces for own in parts(part, kind)]
    return [space] if isinstance(space, kind) else []


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


def test_the_first_merge_of_filters() -> None:
    """RLlib's first merge is exact; its later ones are not (O1)."""
    space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def shown(library: Library, made: Any, row: float) -> Any:
        episode = library.SingleAgentEpisode(observation_space=space)
        episode.add_env_reset(np.array([row]))
        made(rl_module=None, batch={}, episodes=[episode])
        return episode.get_observations(-1)[0]

    for library in BOTH:
        runners = [piece(library, "MeanStdFilter", (space, CHOICE)) for _ in range(2)]
        for made, values in zip(runners, [[1.0, 2.0, 3.0], [10.0, 20.0]]):
            for value in values:
                shown(library, made, value)
        merger = piece(library, "MeanStdFilter", (space, CHOICE))
        merger.set_state(merger.merge_states([made.get_state() for made in runners]))
        frozen = piece(library, "MeanStdFilter", (space, CHOICE), update_stats=False)
        frozen.set_state(merger.get_state())
        expected = (9.0 - 7.2) / np.std([1, 2, 3, 10, 20], ddof=1)
        assert shown(library, frozen, 9.0) == pytest.approx(expected, rel=1e-5)


@difference("O26", Playing)
def actions_and_rewards_as_declared(situation: Playing, mismatch: Any) -> bool:
    """RLlib's actions have an axis too many and its rewards 64 bits; epibatch's fit the declared space."""
    theirs, ours = np.asarray(mismatch.theirs), np.asarray(mismatch.ours)
    return (
        mismatch.path[-1] in ("prev_n_actions", "prev_n_rewards")
        and ours.dtype == np.float32
        and ours.ndim == 1
        and np.array_equal(np.ravel(theirs).astype(np.float32), ours)
    )


@random_cases(play=plays, actions=st.integers(1, 4), rewards=st.integers(1, 4))
def test_prev_actions_prev_rewards(play, actions, rewards):
    made = [
        piece(library, "PrevActionsPrevRewards", (play.space, CHOICE), n_prev_actions=actions, n_prev_rewards=rewards)
        for library in BOTH
    ]
    theirs, ours = (outcome(lambda i=i, own=own: play.shown(BOTH[i], own)) for i, own in enumerate(made))
    settle(theirs, ours, play)
    if not theirs.kind:
        assert made[0].observation_space == made[1].observation_space
