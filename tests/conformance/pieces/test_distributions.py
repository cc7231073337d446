"""Action distributions beside RLlib's, for random action spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from batches.acting_runs import action_spaces, counted_from_zero
from batches.modules import distribution
from epibatch.core.structs import map_struct
from oracle.cases import random_cases
from oracle.columns import leaves
from oracle.compare import Mismatch, mismatches, outcome, settle
from oracle.differences import difference
from oracle.libraries import BOTH, RLLIB, Library


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
