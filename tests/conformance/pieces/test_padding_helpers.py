"""Padding, bootstrap rows and value targets beside RLlib's functions of the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from batches.acting_runs import over, stack
from epibatch.core.errors import EpisodeError
from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.compare import mismatches, outcome, settle
from oracle.differences import difference
from oracle.episodes import chunks
from oracle.libraries import BOTH, RLLIB
from oracle.spaces import rows, spaces

lengths = st.lists(st.integers(1, 25), min_size=1, max_size=6)
seq_lens = st.integers(1, 20)
seeds = st.integers(0, 1000)


def numbers_of(value: Any) -> Any:
    """A result without the difference between lists of numbers and arrays."""
    return over(value, np.asarray) if not isinstance(value, list) else [numbers_of(own) for own in value]


def padding(library: Any) -> Any:
    if library is RLLIB:
        return library.module("utils.postprocessing.zero_padding")
    return library.module("learner.postprocessing.zero_padding")


@random_cases(length=st.integers(0, 400), steps=st.integers(1, 60))  # 24,060 cases: fewer would run out
def test_create_mask_and_seq_lens(length, steps):
    theirs, ours = (padding(library).create_mask_and_seq_lens(length, steps) for library in BOTH)
    assert mismatches(numbers_of(list(theirs[0])), numbers_of(list(ours[0]))) == []
    assert list(theirs[1]) == list(ours[1])


@random_cases(space=spaces, counts=lengths, steps=seq_lens, seed=seeds, tagged=st.booleans())
def test_split_and_zero_pad(space, counts, steps, seed, tagged):
    rng = np.random.default_rng(seed)
    made = [rows(space, rng, count) for count in counts]

    def items(library: Any) -> list[Any]:
        if not tagged:
            return [row for own in made for row in own]
        cls = library.module("utils.spaces.space_utils" if library is RLLIB else "core.spaces").BatchedNdArray
        return [over(stack(own), lambda leaf: leaf.view(cls)) for own in made]

    theirs, ours = (padding(library).split_and_zero_pad(items(library), steps) for library in BOTH)
    assert mismatches(numbers_of(theirs), numbers_of(ours)) == []


@random_cases(counts=lengths, steps=seq_lens, width=st.sampled_from([(), (2,), (2, 1)]), seed=seeds)
def test_padding_of_several_episodes_and_back(counts, steps, width, seed):
    flat = np.random.default_rng(seed).standard_normal((sum(counts), *width)).astype(np.float32)
    theirs, ours = (
        padding(library).split_and_zero_pad_n_episodes(flat, episode_lens=list(counts), max_seq_len=steps)
        for library in BOTH
    )
    assert mismatches(numbers_of(theirs), numbers_of(ours)) == []
    if not width:  # what RLlib unpads
        back = [padding(library).unpad_data_if_necessary(list(counts), np.stack(ours)) for library in BOTH]
        assert mismatches(*back) == [] and np.array_equal(back[1], flat)
        same = [padding(library).unpad_data_if_necessary(list(counts), flat) for library in BOTH]
        assert mismatches(*same) == []


@holds("C54")
@random_cases(
    counts=lengths, seed=seeds, gamma=st.sampled_from([0.0, 0.9, 1.0]), lambda_=st.sampled_from([0.0, 0.8, 1])
)
def test_compute_value_targets(counts, seed, gamma, lambda_):
    rng, total = np.random.default_rng(seed), sum(counts)
    values, rewards = rng.standard_normal((2, total)).astype(np.float32)
    flags = np.zeros((2, total))
    for end in np.cumsum(counts) - 1:
        flags[:, end] = rng.integers(0, 2, 2)
    theirs, ours = (
        library.module(
            "utils.postprocessing.value_predictions" if library is RLLIB else "learner.postprocessing.value_predictions"
        ).compute_value_targets(values, rewards, *flags, gamma=gamma, lambda_=lambda_)
        for library in BOTH
    )
    assert theirs.dtype == ours.dtype and theirs.shape == ours.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class Lengthening:
    """Chunks that got their bootstrap step, or lost it again."""

    reward: str
    length: int


@difference("no-steps", Lengthening)
def there_is_no_step_to_repeat(situation: Lengthening, mismatch: Any) -> bool:
    """RLlib repeats a step of the lookback, or fails; ours names the episode."""
    return not situation.length and mismatch.kind == "error" and isinstance(mismatch.ours, EpisodeError)


@difference("column-types", Lengthening)
def rewards_keep_their_type(situation: Lengthening, mismatch: Any) -> bool:
    """RLlib appends 0.0, so that integer and float32 rewards become float64; ours stay what they are."""
    theirs, ours = np.asarray(mismatch.theirs), np.asarray(mismatch.ours)
    typed = theirs.dtype == np.float64 and ours.dtype in (np.int64, np.float32)
    return situation.reward != "float" and mismatch.path[-1] == "rewards" and typed and np.array_equal(theirs, ours)


@random_cases(chunk=chunks(), undo=st.booleans())
def test_add_one_ts_to_episodes_and_truncate(chunk, undo):
    def run(library: Any) -> Any:
        path = "utils.postprocessing.episodes" if library is RLLIB else "learner.postprocessing.episodes"
        module = library.module(path)
        episode = chunk.build(library)
        truncateds = module.add_one_ts_to_episodes_and_truncate([episode])
        if undo:
            module.remove_last_ts_from_episodes_and_restore_truncateds([episode], truncateds)
        return {
            "truncateds": [bool(flag) for flag in truncateds],
            "flags": (bool(episode.is_terminated), bool(episode.is_truncated)),
            "length": (len(episode), episode.t),
            "observations": episode.get_observations(),
            "actions": episode.get_actions(),
            "rewards": episode.get_rewards(),
        }

    theirs, ours = (outcome(lambda library=library: run(library)) for library in BOTH)
    settle(theirs, ours, Lengthening(chunk.reward, chunk.length))
