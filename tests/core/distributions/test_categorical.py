"""Choices: which integers they are, and how they are drawn."""

from __future__ import annotations

import math

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


PROBS = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05, 0.0])


def draw_in_parts(rows, parts, seed=5):
    """`rows * parts` draws from PROBS, so many rows at a time: 6 x 80 numbers are few, 6 x 800 are many."""
    generator = torch.Generator().manual_seed(seed)
    dist = Categorical.from_logits(PROBS.log().expand(rows, 6) - 2.0)
    return torch.cat([dist.sample(generator=generator) for _ in range(parts)])


@pytest.mark.parametrize(("rows", "parts"), [(80, 500), (800, 50)])
def test_few_and_many_draws_are_distributed_alike(rows, parts):
    """Pearson's chi-square against the 99.9 % quantile for 3 degrees of freedom, 16.27."""
    counts = torch.bincount(draw_in_parts(rows, parts), minlength=6)
    possible = PROBS > 0
    assert counts[~possible].tolist() == [0, 0]
    expected = PROBS[possible].double() * rows * parts
    assert ((counts[possible] - expected).square() / expected).sum() < 16.27


@pytest.mark.parametrize("rows", [80, 800])
def test_neighbouring_rows_are_independent(rows):
    draws = (draw_in_parts(rows, 40000 // rows) == 0).reshape(-1, 2).double()
    both = (draws[:, 0] * draws[:, 1]).mean().item()
    assert both == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 20000))


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("scale", [0.0, 40.0, -3e4])
def test_an_impossible_choice_is_not_drawn_whatever_the_random_number(monkeypatch, number, scale):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, number, dtype=torch.float64))
    logits = torch.full((300, 4), -torch.inf)
    possible = torch.randint(0, 4, (300, 2), generator=torch.Generator().manual_seed(1))
    logits.scatter_(1, possible, torch.tensor([0.3, 0.9]).expand(300, 2) + scale)
    drawn = Categorical.from_logits(logits).sample()
    assert logits.gather(1, drawn[:, None]).isfinite().all()
    if number == 0.0:
        assert torch.equal(drawn, possible.amin(1))


def test_many_draws_have_the_choices_of_their_own_row():
    """Each row has one possible choice, and leading dimensions of samples come first."""
    certain = torch.arange(200) % 5
    logits = torch.full((200, 5), -torch.inf).scatter_(1, certain[:, None], 2.0)
    dist = Categorical.from_logits(logits.reshape(20, 10, 5), start=7, dtype=torch.int32)
    assert torch.equal(dist.sample(), certain.reshape(20, 10).int() + 7)
    assert torch.equal(dist.sample(sample_shape=(2, 3)), (certain.reshape(20, 10).int() + 7).expand(2, 3, 20, 10))


@pytest.mark.parametrize("rows", [2, 2000])
def test_draws_take_no_part_in_gradients(rows):
    logits = torch.zeros(rows, 2, requires_grad=True)
    dist = Categorical.from_logits(logits)
    drawn, logp = dist.sample_and_logp()
    assert not drawn.requires_grad
    logp.sum().backward()
    expected = torch.full((rows, 2), -0.5)
    expected.scatter_(1, drawn[:, None], 0.5)
    assert torch.equal(logits.grad, expected)
