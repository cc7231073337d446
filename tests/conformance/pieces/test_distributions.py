"""Action distributions beside RLlib's, for random action spaces."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from batches.acting_runs import action_spaces, counted_from_zero
from batches.modules import distribution
from epibatch.core.structs import map_struct
from oracle.cases import random_cases
from oracle.libraries import BOTH


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
    close = torch.testing.assert_close
    close(ours[0].logp(drawn), theirs[0].logp(drawn), rtol=1e-5, atol=1e-5)
    close(ours[0].entropy(), theirs[0].entropy(), rtol=1e-5, atol=1e-5)
    close(ours[0].kl(ours[1]), theirs[0].kl(theirs[1]), rtol=1e-4, atol=1e-5)
    own = ours[0].sample()
    map_struct(lambda mine, other: close(mine.shape, other.shape), own, drawn)
    close(theirs[0].logp(own), ours[0].logp(own), rtol=1e-5, atol=1e-5)
    greedy, expected = ours[0].to_deterministic().sample(), theirs[0].to_deterministic().sample()
    map_struct(close, greedy, expected)


@random_cases(low=st.floats(-5, 0, width=16), width=st.floats(0.5, 9, width=16), seed=st.integers(0, 1000))
def test_the_squashed_gaussian(low, width, seed):
    """RLlib leaves the stretching to the bounds out of the density (`squashed-gaussian`)."""
    high = low + width
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    their, our = (
        library.module(
            "core.distribution.torch.torch_distribution" if library.name == "RLlib" else "core.distributions"
        ).TorchSquashedGaussian.from_logits(inputs, low=low, high=high)
        for library in BOTH
    )
    stretched = 2 * np.log((high - low) / 2)
    torch.manual_seed(seed)
    drawn, logp = their.rsample_and_logp()
    torch.manual_seed(seed)
    own, own_logp = our.rsample_and_logp()
    torch.testing.assert_close(own, drawn)
    torch.testing.assert_close(own_logp, logp - stretched, rtol=1e-4, atol=1e-4)


def test_partial_classes_of_ported_code() -> None:
    for library in BOTH:
        path = "core.distribution.torch.torch_distribution" if library.name == "RLlib" else "core.distributions"
        module = library.module(path)
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
