"""Gaussians whose actions have any shape."""

from __future__ import annotations

import pytest
import torch

from epibatch.core.distributions import DiagGaussian


@pytest.mark.parametrize("lead", [(5,), (4, 2)])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3)])
def test_shaped_actions_are_flat_ones_in_another_shape(shape, lead):
    width = int(torch.tensor(shape).prod())
    inputs = torch.randn(*lead, 2 * width, generator=torch.Generator().manual_seed(0))
    flat, shaped = DiagGaussian.from_logits(inputs), DiagGaussian.from_logits(inputs, shape=shape)
    for sample_shape in (None, (3,)):
        one, two = (
            dist.sample(generator=torch.Generator().manual_seed(1), sample_shape=sample_shape)
            for dist in (flat, shaped)
        )
        assert two.shape == (*(sample_shape or ()), *lead, *shape)
        assert torch.equal(one.flatten(), two.flatten())
        torch.testing.assert_close(shaped.logp(two), flat.logp(one))
    assert torch.equal(flat.entropy(), shaped.entropy())
    assert torch.equal(flat.kl(flat), shaped.kl(shaped))
    greedy = shaped.to_deterministic()
    assert greedy.sample().shape == (*lead, *shape)
    assert greedy.logp(greedy.sample()).shape == lead
