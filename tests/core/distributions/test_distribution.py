"""Action distributions against torch.distributions and closed forms."""

from __future__ import annotations

import math

import gymnasium as gym
import pytest
import torch

from epibatch.core.distributions import (
    Categorical,
    Deterministic,
    DiagGaussian,
    TorchCategorical,
    TorchDeterministic,
    TorchDiagGaussian,
)
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.errors import NotAvailableError, SpaceError

SHAPES = [(3,), (5, 3), (4, 6, 3)]


def logits_of(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2.0


def reference_gaussian(dist):
    return torch.distributions.Independent(torch.distributions.Normal(dist.mean, dist.log_std.exp()), 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_categorical_matches_torch(shape):
    dist, other = Categorical.from_logits(logits_of(shape)), Categorical.from_logits(logits_of(shape, 1))
    ours, theirs = (torch.distributions.Categorical(logits=d.logits) for d in (dist, other))
    value = ours.sample()
    torch.testing.assert_close(dist.logp(value), ours.log_prob(value))
    torch.testing.assert_close(dist.logp(value.int()), ours.log_prob(value))
    torch.testing.assert_close(dist.entropy(), ours.entropy())
    torch.testing.assert_close(dist.kl(other), torch.distributions.kl_divergence(ours, theirs))
    torch.testing.assert_close(dist.probs, ours.probs)
    assert dist.logp(value).shape == shape[:-1]
    assert torch.equal(dist.to_deterministic().sample(), dist.logits.argmax(-1))


@pytest.mark.parametrize("shape", [(2,), (5, 4), (4, 6, 4)])
def test_gaussian_matches_torch(shape):
    dist, other = DiagGaussian.from_logits(logits_of(shape)), DiagGaussian.from_logits(logits_of(shape, 1))
    ours, theirs = reference_gaussian(dist), reference_gaussian(other)
    value = ours.sample()
    torch.testing.assert_close(dist.logp(value), ours.log_prob(value))
    torch.testing.assert_close(dist.entropy(), ours.entropy())
    torch.testing.assert_close(dist.kl(other), torch.distributions.kl_divergence(ours, theirs))
    assert dist.logp(value).shape == shape[:-1]
    assert torch.equal(dist.to_deterministic().sample(), dist.mean)


def test_closed_forms():
    even = Categorical.from_logits(torch.zeros(1, 4))
    assert even.entropy().item() == pytest.approx(math.log(4.0))
    assert even.logp(torch.tensor([2])).item() == pytest.approx(-math.log(4.0))
    assert even.kl(even).item() == 0.0
    unit = DiagGaussian.from_logits(torch.zeros(1, 4))
    assert unit.entropy().item() == pytest.approx(math.log(2.0 * math.pi * math.e))
    assert unit.logp(torch.zeros(1, 2)).item() == pytest.approx(-math.log(2.0 * math.pi))
    shifted = DiagGaussian.from_logits(torch.tensor([[1.0, 2.0, 0.0, 0.0]]))
    assert shifted.kl(unit).item() == pytest.approx(2.5)


@pytest.mark.parametrize("rows", [1, 64])
def test_categorical_draws_are_distributed_right(rows):
    """Pearson's chi-square against the 99.9 % quantile for 4 degrees of freedom, 18.47."""
    probs = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01])
    dist = Categorical.from_logits(probs.log().expand(rows, 5) + 3.0)
    draws = dist.sample(sample_shape=64000 // rows, generator=torch.Generator().manual_seed(1))
    assert draws.shape == (64000 // rows, rows)
    assert draws.dtype is torch.int64
    counts = torch.bincount(draws.flatten(), minlength=5).double()
    expected = probs.double() * draws.numel()
    assert ((counts - expected).square() / expected).sum() < 18.47


def test_rows_are_drawn_independently():
    draws = Categorical.from_logits(torch.zeros(2, 2)).sample(
        sample_shape=20000, generator=torch.Generator().manual_seed(2)
    )
    both = (draws[:, 0] * draws[:, 1]).double().mean().item()
    assert both == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 20000))


def test_gaussian_draws_have_the_right_moments():
    dist = DiagGaussian.from_logits(torch.tensor([[1.0, -2.0, math.log(0.5), math.log(3.0)]]))
    draws = dist.sample(sample_shape=(40000,), generator=torch.Generator().manual_seed(3))[:, 0]
    std = torch.tensor([0.5, 3.0])
    assert torch.all((draws.mean(0) - torch.tensor([1.0, -2.0])).abs() < 4 * std / 200)
    torch.testing.assert_close(draws.std(0), std, rtol=0.02, atol=0.0)


@pytest.mark.parametrize(("cls", "width"), [(Categorical, 3), (DiagGaussian, 4)])
def test_generators_make_draws_repeatable(cls, width):
    dist = cls.from_logits(logits_of((8, width)))
    one, two, three = (
        dist.sample(generator=torch.Generator().manual_seed(seed), sample_shape=(5,)) for seed in (7, 7, 8)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    torch.manual_seed(4)
    first = dist.sample()
    torch.manual_seed(4)
    assert torch.equal(first, dist.sample())


@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(torch.float32).min, -1e9])
def test_masked_choices(lowest):
    logits = torch.tensor([[0.0, lowest, 1.0, lowest]])
    dist = Categorical.from_logits(logits.requires_grad_())
    draws = dist.sample(sample_shape=5000, generator=torch.Generator().manual_seed(5))
    assert set(draws.unique().tolist()) == {0, 2}
    p = 1.0 / (1.0 + math.e)
    entropy = dist.entropy()
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert dist.kl(Categorical.from_logits(logits.detach())).item() == pytest.approx(0.0, abs=1e-6)
    (entropy + dist.logp(torch.tensor([2]))).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_extreme_logits_stay_finite():
    dist = Categorical.from_logits(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]))
    assert dist.logp(torch.tensor([0, 1])).tolist() == [0.0, 0.0]
    assert dist.sample().tolist() == [0, 1]


def test_gradients_match_torch():
    for cls, width, reference in [
        (Categorical, 3, lambda x: torch.distributions.Categorical(logits=x)),
        (DiagGaussian, 4, lambda x: reference_gaussian(DiagGaussian.from_logits(x))),
    ]:
        value = cls.from_logits(logits_of((6, width))).sample()
        grads = []
        for build, names in [(cls.from_logits, ("logp", "entropy")), (reference, ("log_prob", "entropy"))]:
            x = logits_of((6, width)).requires_grad_()
            dist = build(x)
            (getattr(dist, names[0])(value) + 0.1 * getattr(dist, names[1])()).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_samples_carry_no_gradients_and_rsamples_do():
    logits = torch.zeros(2, 4, requires_grad=True)
    assert not Categorical.from_logits(logits).sample().requires_grad
    gaussian = DiagGaussian.from_logits(logits)
    assert not gaussian.sample().requires_grad
    gaussian.rsample(generator=torch.Generator().manual_seed(0)).sum().backward()
    assert torch.equal(logits.grad[:, :2], torch.ones(2, 2))
    with pytest.raises(NotAvailableError, match="DiagGaussian"):
        Categorical.from_logits(logits).rsample()


@pytest.mark.parametrize(("cls", "width"), [(Categorical, 3), (DiagGaussian, 4)])
def test_logp_takes_leading_sample_dimensions(cls, width):
    dist = cls.from_logits(logits_of((5, width)))
    draws = dist.sample(sample_shape=(2, 3))
    expected = torch.stack([torch.stack([dist.logp(row) for row in rows]) for rows in draws])
    torch.testing.assert_close(dist.logp(draws), expected)


def test_deterministic():
    loc = torch.arange(6.0).reshape(3, 2)
    dist = Deterministic.from_logits(loc)
    assert torch.equal(dist.sample(), loc)
    assert torch.equal(dist.rsample(sample_shape=(4,))[3], loc)
    assert dist.logp(loc).tolist() == [0.0, 0.0, 0.0]
    assert dist.to_deterministic() is dist
    best = Categorical.from_logits(logits_of((4, 6, 3))).to_deterministic()
    assert best.logp(best.sample()).shape == (4, 6)
    assert best.logp(best.sample()).dtype is torch.float32
    for call in (dist.entropy, lambda: dist.kl(dist)):
        with pytest.raises(NotAvailableError, match="before calling to_deterministic"):
            call()


@pytest.mark.parametrize(
    ("cls", "space", "size"),
    [
        (Categorical, gym.spaces.Discrete(5), 5),
        (DiagGaussian, gym.spaces.Box(-1, 1, (3,)), 6),
        (Deterministic, gym.spaces.Box(-1, 1, (2, 3)), 6),
        (DiagGaussian, gym.spaces.Box(-1, 1, (2, 3)), 12),
        (DiagGaussian, gym.spaces.Box(-1, 1, ()), 2),
    ],
)
def test_required_input_dim(cls, space, size):
    assert cls.required_input_dim(space) == size
    with pytest.raises(SpaceError, match="distribution_for"):
        cls.required_input_dim(gym.spaces.MultiBinary(2))


def test_wrong_uses_are_named():
    with pytest.raises(SpaceError, match="even last axis"):
        DiagGaussian.from_logits(torch.zeros(2, 3))
    with pytest.raises(NotAvailableError, match="another Categorical"):
        Categorical.from_logits(torch.zeros(1, 2)).kl(DiagGaussian.from_logits(torch.zeros(1, 2)))


def test_names_of_ported_code():
    assert (TorchCategorical, TorchDiagGaussian, TorchDeterministic) == (Categorical, DiagGaussian, Deterministic)


def test_a_distribution_of_ones_own_need_not_say_what_is_likeliest():
    class Coin(Categorical):
        to_deterministic = Distribution.to_deterministic

    coin = Coin.from_logits(torch.zeros(1, 2))
    assert coin.to_deterministic() is coin
    assert "to_deterministic" not in Distribution.__abstractmethods__
