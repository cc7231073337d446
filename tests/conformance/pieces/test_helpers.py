"""Action distributions, padding, bootstrap rows, value targets and functions on spaces beside RLlib's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from batches.acting_differences import leaves_by_place
from batches.acting_runs import action_spaces, counted_from_zero, over, stack
from batches.chunks import distribution
from batches.stages import column_of, flat_mismatches, snapshot
from epibatch.core.errors import EpisodeError
from epibatch.core.structs import map_struct
from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.compare import Mismatch, leaves, mismatches, outcome, settle
from oracle.differences import difference
from oracle.episodes import chunks
from oracle.libraries import BOTH, RLLIB, Library
from oracle.spaces import INTEGERS, boxes, discretes, multi_binaries, multi_discretes, nested, rows, spaces


@random_cases(space=action_spaces.map(counted_from_zero), seed=st.integers(0, 1000))
def test_the_distributions_of_action_spaces(space, seed):
    classes = [distribution(library, space) for library in BOTH]
    counts = [int(cls.required_input_dim(space)) for cls in classes]
    assert counts[0] == counts[1]
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(3, counts[0], generator=generator) * 2 for _ in range(2)]
    theirs, ours = ([cls.from_logits(own.clone()) for own in inputs] for cls in classes)
    torch.manual_seed(seed)
    drawn = theirs[0].sample()
    own = ours[0].sample()
    pairs = [
        (theirs[0].logp(drawn), ours[0].logp(drawn)),
        (theirs[0].entropy(), ours[0].entropy()),
        (theirs[0].kl(theirs[1]), ours[0].kl(ours[1])),
        (theirs[0].logp(own), ours[0].logp(own)),
    ]
    assert [found for pair in pairs for found in near(*pair)] == []
    alike = map_struct(lambda mine, other: mine.shape == other.shape and mine.dtype == other.dtype, own, drawn)
    assert all(leaves(alike))
    assert mismatches(theirs[0].to_deterministic().sample(), ours[0].to_deterministic().sample()) == []


def near(theirs: Any, ours: Any) -> list[Mismatch]:
    """What differs by more than the order of float32 sums.

    They have up to 24 terms and stay below 64, in which half an ulp is 2**-19; exponentials of differences, of which
    divergences are sums, carry up to 4 ulps of themselves.
    """
    return [
        found
        for found in mismatches(theirs, ours)
        if found.kind != "value" or not torch.allclose(found.ours, found.theirs, rtol=2.0**-21, atol=2.0**-18)
    ]


@dataclass(frozen=True)
class Squashing:
    """Actions squashed to between two bounds."""

    low: float
    high: float


@difference("squashed-gaussian", Squashing)
def stretching_is_left_out(situation: Squashing, mismatch: Mismatch) -> bool:
    """RLlib leaves the stretching to the bounds out of the density: two entries, half of the distance each."""
    stretched = 2 * np.log((situation.high - situation.low) / 2)
    return mismatch.path == ("logp",) and near(mismatch.theirs - stretched, mismatch.ours) == []


@random_cases(low=st.floats(-5, 0, width=16), width=st.floats(0.5, 9, width=16), seed=st.integers(0, 1000))
def test_the_squashed_gaussian(low, width, seed):
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))

    def run(library: Library) -> dict[str, Any]:
        cls = torch_distributions(library).TorchSquashedGaussian
        torch.manual_seed(seed)
        drawn, logp = cls.from_logits(inputs, low=low, high=low + width).rsample_and_logp()
        return {"actions": drawn, "logp": logp}

    theirs, ours = (outcome(lambda library=library: run(library)) for library in BOTH)
    settle(theirs, ours, Squashing(low, low + width), near)


def torch_distributions(library: Library) -> Any:
    """The module with a library's distribution classes."""
    return library.module("core.distribution.torch.torch_distribution" if library is RLLIB else "core.distributions")


def test_partial_classes_of_ported_code() -> None:
    for library in BOTH:
        module = torch_distributions(library)
        cls = module.TorchMultiDistribution.get_partial_dist_cls(
            child_distribution_cls_struct={"a": module.TorchCategorical, "b": module.TorchDiagGaussian},
            input_lens=[3, 4],
        )
        dist = cls.from_logits(torch.zeros(2, 7))
        assert {key: tuple(value.shape) for key, value in dist.sample().items()} == {"a": (2,), "b": (2, 2)}
        space = gym.spaces.MultiDiscrete([2, 3])
        categorical = module.TorchMultiCategorical.get_partial_dist_cls(space=space, input_lens=[2, 3])
        assert categorical.required_input_dim(space) == 5
        assert categorical.from_logits(torch.zeros(2, 5)).sample().shape == (2, 2)


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


def helpers(library: Library) -> Any:
    return library.module("utils.spaces.space_utils" if library is RLLIB else "core.spaces")


@dataclass(frozen=True)
class Helped:
    """A call of a function on spaces."""

    name: str
    space: Any
    given: Any = field(default=None, repr=False)


@difference("O44", Helped)
def boxes_without_two_bounds(situation: Helped, mismatch: Mismatch) -> bool:
    """RLlib leaves half-bounded Boxes unsquashed and uncut, and makes -1 or NaN of them where it normalises.

    Here `unsquash_action` cuts the finite sides, and `normalize_action` leaves what has no two bounds as it is.
    """
    if not situation.name.endswith("_action") or mismatch.kind != "value":
        return False
    given = column_of(snapshot({"result": situation.given}), "result")
    return all(
        not mismatches(mismatch.theirs[path], mismatch.ours[path])
        or without_two_bounds(situation.name, space, given[path], mismatch.theirs[path], mismatch.ours[path])
        for path, space in leaves_by_place(situation.space).items()
    )


def without_two_bounds(name: str, space: Any, given: Any, theirs: Any, ours: Any) -> bool:
    """Whether one part is of such a Box, and both are what they should be."""
    unbounded = (
        [np.isinf(bound).all() for bound in (space.low, space.high)] if isinstance(space, gym.spaces.Box) else []
    )
    if name == "unsquash_action" and sum(unbounded) == 1:
        return not mismatches(given, theirs) and not mismatches(np.clip(given, space.low, space.high), ours)
    broken = bool((np.isnan(theirs) | (theirs == -1)).all())
    return name == "normalize_action" and any(unbounded) and broken and not mismatches(given, ours)


def hold(name: str, space: Any, call: Any, given: Any = None) -> None:
    """Call a function of both libraries and hold the results beside each other."""
    theirs, ours = (outcome(lambda library=library: snapshot({"result": call(helpers(library))})) for library in BOTH)
    settle(theirs, ours, Helped(name, space, given), flat_mismatches)


@random_cases(space=spaces, count=st.integers(1, 8), seed=seeds)
def test_batch_and_unbatch(space, count, seed):
    made = rows(space, np.random.default_rng(seed), count)
    hold("batch", space, lambda own: own.batch(made))
    tagged = [over(stack(made[i:]), lambda leaf: leaf) for i in range(count)]
    hold("batch", space, lambda own: own.batch(tagged, individual_items_already_have_batch_dim=True))
    hold("batch", space, lambda own: own.batch([over(t, lambda a: a.view(own.BatchedNdArray)) for t in tagged],
                                               individual_items_already_have_batch_dim="auto"))  # fmt: skip
    hold("unbatch", space, lambda own: own.unbatch(stack(made)))


@random_cases(space=spaces, seed=seeds)
def test_flatten_to_single_ndarray(space, seed):
    (row,) = rows(space, np.random.default_rng(seed), 1)
    hold("flatten_to_single_ndarray", space, lambda own: own.flatten_to_single_ndarray(row))


@random_cases(
    space=spaces,
    size=st.integers(0, 4),
    time=st.sampled_from([None, 1, 3]),
    major=st.booleans(),
    fill=st.sampled_from([0, 1, 2.5]),
)
def test_get_dummy_batch_for_space(space, size, time, major, fill):
    hold(
        "get_dummy_batch_for_space",
        space,
        lambda own: own.get_dummy_batch_for_space(
            space, batch_size=size, fill_value=fill, time_size=time if size else None, time_major=major
        ),
    )


@random_cases(
    shape=st.lists(st.integers(1, 3), max_size=2),
    depth=st.integers(1, 6),
    values=st.sampled_from([(1.0, 0.0), (2.5, -1.0)]),
    seed=seeds,
)
def test_one_hot(shape, depth, values, seed):
    x = np.random.default_rng(seed).integers(0, depth, shape)
    results = [
        library.module("utils.numpy" if library is RLLIB else "core.spaces").one_hot(x, depth, *values)
        for library in BOTH
    ]
    assert flat_mismatches(*(snapshot({"x": result}) for result in results)) == []


bounded = st.builds(
    lambda bounds, size: gym.spaces.Box(*bounds, (size,), np.float32),
    st.sampled_from([(-2.0, 4.0), (0.0, 1.0), (-1.0, 1.0), (-np.inf, np.inf), (0.0, np.inf), (-np.inf, 1.0)]),
    st.integers(1, 3),
)


numbers = st.one_of(bounded, boxes(dtypes=("float32", *INTEGERS)))


@holds("C53")
@random_cases(space=nested(st.one_of(numbers, numbers, discretes, multi_discretes, multi_binaries)), seed=seeds)
def test_scaling_actions(space, seed):
    rng = np.random.default_rng(seed)

    def action(own: Any) -> Any:
        if isinstance(own, gym.spaces.Dict):
            return {key: action(part) for key, part in own.spaces.items()}
        if isinstance(own, gym.spaces.Tuple):
            return tuple(action(part) for part in own.spaces)
        if isinstance(own, gym.spaces.Box) and own.dtype.kind != "f":
            return rng.integers(0, 5, own.shape)
        if isinstance(own, gym.spaces.Box):
            return (rng.standard_normal(own.shape) * 2).astype(np.float32)
        return rows(own, rng, 1)[0]

    given = action(space)
    for name in ("unsquash_action", "normalize_action", "clip_action"):

        def call(own: Any, name: str = name) -> Any:
            struct = own.get_base_struct_from_space(space)
            return getattr(own, name)(over(given, np.copy), struct)

        hold(name, space, call, given)
