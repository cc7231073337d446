"""Choices that do not begin at 0."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch

from epibatch.core.distributions import Categorical, distribution_for

LOGITS = torch.tensor([[0.0, 1.0, -2.0], [3.0, 0.0, 0.5]])


@pytest.mark.parametrize("start", [5, -3])
def test_a_start_shifts_samples_and_nothing_else(start):
    plain, shifted = Categorical.from_logits(LOGITS), Categorical.from_logits(LOGITS, start=start)
    one, two = (dist.sample(generator=torch.Generator().manual_seed(1), sample_shape=50) for dist in (plain, shifted))
    assert torch.equal(one + start, two)
    assert torch.equal(plain.logp(one), shifted.logp(two))
    assert torch.equal(plain.entropy(), shifted.entropy())
    assert shifted.to_deterministic().sample().tolist() == [1 + start, start]
    assert two.min() >= start
    assert two.max() <= start + 2


def test_integers_outside_have_no_probability():
    dist = Categorical.from_logits(LOGITS.clone().requires_grad_(), start=5)
    logp = dist.logp(torch.tensor([[4, 8], [0, 5], [5, 7]]))
    assert (logp == -torch.inf).tolist() == [[True, True], [True, False], [False, False]]
    logp[logp.isfinite()].sum().backward()
    assert dist.logits.grad.isfinite().all()


def test_the_type_of_samples():
    dist = Categorical.from_logits(LOGITS, dtype=torch.int16)
    assert dist.sample().dtype is torch.int16
    assert dist.to_deterministic().sample().dtype is torch.int16
    torch.testing.assert_close(dist.logp(torch.tensor([1, 0], dtype=torch.int16)), LOGITS.log_softmax(-1).amax(-1))


def test_sequences():
    dist = Categorical.from_logits(LOGITS.expand(4, 2, 3), start=2)
    drawn = dist.sample()
    expected = torch.distributions.Categorical(logits=LOGITS).log_prob(drawn - 2)
    torch.testing.assert_close(dist.logp(drawn), expected)


def test_divergence_ignores_the_start():
    cls = distribution_for(gym.spaces.Discrete(3, start=9))
    one, two = cls.from_logits(LOGITS), cls.from_logits(LOGITS.flip(0))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=LOGITS), torch.distributions.Categorical(logits=LOGITS.flip(0))
    )
    torch.testing.assert_close(one.kl(two), expected)
