"""Action distributions, padding, bootstrap rows, value targets and functions on spaces beside RLlib's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from batches.acting import action_spaces, counted_from_zero, leaves_by_place
from batches.stages import column_of, flat_mismatches, snapshot
from epibatch.core.errors import EpisodeError
from oracle.cases import random_cases
from oracle.compare import Mismatch, difference, each, mismatches, outcome, settle, space_struct, stack
from oracle.episodes import INTEGERS, boxes, chunks, discretes, multi_binaries, multi_discretes, nested, rows, spaces
from oracle.libraries import BOTH, RLLIB, Library
from oracle.modules import distribution
from oracle.probes import holds

seeds = st.integers(0, 1000)


def home(library: Library, theirs: str, ours: str) -> Any:
    """A module that has another path in each library."""
    return library.module(theirs if library is RLLIB else ours)


# -- distributions ---------------------------------------------------------------------------------


@random_cases(space=action_spaces.map(counted_from_zero), seed=seeds)
def test_the_distributions_of_action_spaces(space, seed):
    classes = [distribution(library, space) for library in BOTH]
    counts = [int(cls.required_input_dim(space)) for cls in classes]
    assert counts[0] == counts[1]
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(3, counts[0], generator=generator) * 2 for _ in range(2)]
    theirs, ours = ([cls.from_logits(own.clone()) for own in inputs] for cls in classes)
    torch.manual_seed(seed)
    drawn, own = theirs[0].sample(), ours[0].sample()
    pairs = [
        (theirs[0].logp(drawn), ours[0].logp(drawn)),
        (theirs[0].entropy(), ours[0].entropy()),
        (theirs[0].kl(theirs[1]), ours[0].kl(ours[1])),
        (theirs[0].logp(own), ours[0].logp(own)),
    ]
    assert [found for pair in pairs for found in near(*pair)] == []
    assert {found.kind for found in mismatches(own, drawn)} <= {"value"}
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


DISTRIBUTIONS = "core.distribution.torch.torch_distribution", "core.distributions"


@random_cases(low=st.floats(-5, 0, width=16), width=st.floats(0.5, 9, width=16), seed=seeds)
def test_the_squashed_gaussian(low, width, seed):
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))

    def run(library: Library) -> dict[str, Any]:
        cls = home(library, *DISTRIBUTIONS).TorchSquashedGaussian
        torch.manual_seed(seed)
        drawn, logp = cls.from_logits(inputs, low=low, high=low + width).rsample_and_logp()
        return {"actions": drawn, "logp": logp}

    settle(*(outcome(lambda library=library: run(library)) for library in BOTH), Squashing(low, low + width), near)


def test_partial_classes_of_ported_code() -> None:
    for library in BOTH:
        module = home(library, *DISTRIBUTIONS)
        cls = module.TorchMultiDistribution.get_partial_dist_cls(
            child_distribution_cls_struct={"a": module.TorchCategorical, "b": module.TorchDiagGaussian},
            input_lens=[3, 4],
        )
        sample = cls.from_logits(torch.zeros(2, 7)).sample()
        assert {key: tuple(value.shape) for key, value in sample.items()} == {"a": (2,), "b": (2, 2)}
        space = gym.spaces.MultiDiscrete([2, 3])
        categorical = module.TorchMultiCategorical.get_partial_dist_cls(space=space, input_lens=[2, 3])
        assert categorical.required_input_dim(space) == 5
        assert categorical.from_logits(torch.zeros(2, 5)).sample().shape == (2, 2)


# -- functions that ported code calls --------------------------------------------------------------


@dataclass(frozen=True)
class Helped:
    """A call of a function, of a space if it takes one."""

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
    box = isinstance(space, gym.spaces.Box)
    unbounded = [np.isinf(bound).all() for bound in (space.low, space.high)] if box else []
    if name == "unsquash_action" and sum(unbounded) == 1:
        return not mismatches(given, theirs) and not mismatches(np.clip(given, space.low, space.high), ours)
    broken = bool((np.isnan(theirs) | (theirs == -1)).all())
    return name == "normalize_action" and any(unbounded) and broken and not mismatches(given, ours)


PADDING = "utils.postprocessing.zero_padding", "learner.postprocessing.zero_padding"
SPACES = "utils.spaces.space_utils", "core.spaces"
lengths = st.lists(st.integers(1, 25), min_size=1, max_size=6)


def padded(draw: Any) -> Any:
    space, counts, steps = draw(spaces), draw(lengths), draw(st.integers(1, 20))
    tagged, rng = draw(st.booleans()), np.random.default_rng(draw(seeds))
    made = [rows(space, rng, count) for count in counts]

    def call(module: Any, library: Library) -> Any:
        cls = home(library, *SPACES).BatchedNdArray
        items = (
            [each(lambda leaf: leaf.view(cls), stack(own)) for own in made]
            if tagged
            else [row for own in made for row in own]
        )
        return module.split_and_zero_pad(items, steps)

    return PADDING, space, None, call


def padded_episodes(draw: Any) -> Any:
    counts, steps, width = draw(lengths), draw(st.integers(1, 20)), draw(st.sampled_from([(), (2,), (2, 1)]))
    flat = np.random.default_rng(draw(seeds)).standard_normal((sum(counts), *width)).astype(np.float32)

    def call(module: Any, library: Library) -> Any:
        made = module.split_and_zero_pad_n_episodes(flat, episode_lens=list(counts), max_seq_len=steps)
        unpad = [] if width else [np.stack(made), flat]  # what RLlib unpads
        back = [module.unpad_data_if_necessary(list(counts), data) for data in unpad]
        assert all(np.array_equal(own, flat) for own in back)
        return made, back

    return PADDING, None, None, call


def batched(draw: Any) -> Any:
    space, count = draw(spaces), draw(st.integers(1, 8))
    made = rows(space, np.random.default_rng(draw(seeds)), count)
    tagged = [stack(made[i:]) for i in range(count)]

    def call(own: Any, library: Library) -> Any:
        views = [each(lambda leaf: leaf.view(own.BatchedNdArray), item) for item in tagged]
        return (
            own.batch(made),
            own.batch(tagged, individual_items_already_have_batch_dim=True),
            own.batch(views, individual_items_already_have_batch_dim="auto"),
            own.unbatch(stack(made)),
            own.flatten_to_single_ndarray(made[0]),
        )

    return SPACES, space, None, call


def dummies(draw: Any) -> Any:
    space, size, major = draw(spaces), draw(st.integers(0, 4)), draw(st.booleans())
    time, fill = draw(st.sampled_from([None, 1, 3])) if size else None, draw(st.sampled_from([0, 1, 2.5]))
    keywords = {"batch_size": size, "fill_value": fill, "time_size": time, "time_major": major}
    return SPACES, space, None, lambda own, _: own.get_dummy_batch_for_space(space, **keywords)


def one_hots(draw: Any) -> Any:
    shape, depth = draw(st.lists(st.integers(1, 3), max_size=2)), draw(st.integers(1, 6))
    x, values = (
        np.random.default_rng(draw(seeds)).integers(0, depth, shape),
        draw(st.sampled_from([(1.0, 0.0), (2.5, -1)])),
    )
    return ("utils.numpy", "core.spaces"), None, None, lambda own, _: own.one_hot(x, depth, *map(float, values))


def masks(draw: Any) -> Any:
    length, steps = draw(st.integers(0, 400)), draw(st.integers(1, 60))
    return PADDING, None, None, lambda own, _: [list(part) for part in own.create_mask_and_seq_lens(length, steps)]


bounds = st.sampled_from([(-2.0, 4.0), (0.0, 1.0), (-1.0, 1.0), (-np.inf, np.inf), (0.0, np.inf), (-np.inf, 1.0)])
bounded = st.builds(lambda own, size: gym.spaces.Box(*own, (size,), np.float32), bounds, st.integers(1, 3))
numbers = st.one_of(bounded, boxes(dtypes=("float32", *INTEGERS)))
scaled_spaces = nested(st.one_of(numbers, numbers, discretes, multi_discretes, multi_binaries))


def scaled(name: str) -> Any:
    def draw_action(draw: Any) -> Any:
        space, rng = draw(scaled_spaces), np.random.default_rng(draw(seeds))

        def action(own: Any) -> Any:
            if not isinstance(own, gym.spaces.Box):
                return rows(own, rng, 1)[0]
            whole = own.dtype.kind != "f"
            return rng.integers(0, 5, own.shape) if whole else (rng.standard_normal(own.shape) * 2).astype(np.float32)

        given = each(action, space_struct(space))

        def call(own: Any, library: Library) -> Any:
            return getattr(own, name)(each(np.copy, given), own.get_base_struct_from_space(space))

        return SPACES, space, given, call

    return draw_action


FUNCTIONS: dict[str, Any] = {
    "create_mask_and_seq_lens": masks,
    "split_and_zero_pad": padded,
    "split_and_zero_pad_n_episodes": padded_episodes,
    "batch": batched,
    "get_dummy_batch_for_space": dummies,
    "one_hot": one_hots,
    **{name: scaled(name) for name in ("unsquash_action", "normalize_action", "clip_action")},
}


@holds("C53")
@pytest.mark.parametrize("name", FUNCTIONS)
@random_cases(data=st.data())
def test_functions_that_ported_code_calls(name, data):
    paths, space, given, call = FUNCTIONS[name](data.draw)
    found = (
        outcome(lambda library=library: snapshot({"result": call(home(library, *paths), library)})) for library in BOTH
    )
    settle(*found, Helped(name, space, given), flat_mismatches)


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
    path = "postprocessing.value_predictions"
    modules = [home(library, f"utils.{path}", f"learner.{path}") for library in BOTH]
    theirs, ours = (
        module.compute_value_targets(values, rewards, *flags, gamma=gamma, lambda_=lambda_) for module in modules
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
        module = home(library, "utils.postprocessing.episodes", "learner.postprocessing.episodes")
        episode = chunk.build(library)
        truncateds = module.add_one_ts_to_episodes_and_truncate([episode])
        if undo:
            module.remove_last_ts_from_episodes_and_restore_truncateds([episode], truncateds)
        return {
            "truncateds": [bool(flag) for flag in truncateds],
            "flags": (bool(episode.is_terminated), bool(episode.is_truncated)),
            "length": (len(episode), episode.t),
            **{name: getattr(episode, f"get_{name}")() for name in ("observations", "actions", "rewards")},
        }

    found = (outcome(lambda library=library: run(library)) for library in BOTH)
    settle(*found, Lengthening(chunk.reward, chunk.length))
