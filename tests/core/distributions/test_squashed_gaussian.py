"""The squashed Gaussian against torch's transformed distribution and numeric integrals."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from epibatch.core.distributions import DiagGaussian, SquashedGaussian
from epibatch.core.errors import NotAvailableError, SpaceError

BOUNDS = [(-1.0, 1.0), (-2.0, 4.0), (np.array([-2.0, 0.0]), np.array([4.0, 0.1]))]


def inputs(*lead, width=2, seed=0):
    return torch.randn(*lead, 2 * width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(logits, low, high):
    mean, log_std = logits.chunk(2, -1)
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in (low, high))
    steps = [
        torch.distributions.TanhTransform(cache_size=1),
        torch.distributions.AffineTransform((low + high) / 2, (high - low) / 2, cache_size=1),
    ]
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    return torch.distributions.TransformedDistribution(normal, steps)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("lead", [(5,), (3, 4)])
def test_it_matches_torch(low, high, lead):
    logits = inputs(*lead)
    dist, theirs = SquashedGaussian.from_logits(logits, low=low, high=high), reference(logits, low, high)
    noise = torch.randn(7, *lead, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    value = torch.addcmul(dist.base.mean, dist.base.std, noise).clamp(-6, 6)  # further out an action tells it no more
    for step in theirs.transforms:
        value = step(value)
    torch.testing.assert_close(dist.logp(value), theirs.log_prob(value).sum(-1))
    drawn, logp = dist.sample_and_logp(generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, dist.sample(generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(logp, theirs.log_prob(drawn).sum(-1))
    assert (drawn > torch.as_tensor(low)).all()
    assert (drawn < torch.as_tensor(high)).all()
    mean = logits.chunk(2, -1)[0]
    for step in theirs.transforms:
        mean = step(mean)
    torch.testing.assert_close(dist.to_deterministic().sample(), mean)
    other = SquashedGaussian.from_logits(inputs(*lead, seed=1), low=low, high=high)
    torch.testing.assert_close(dist.kl(other), dist.base.kl(other.base))


@pytest.mark.parametrize("log_std", [-4.0, -1.0, 0.0, 0.7])
@pytest.mark.parametrize("mean", [0.0, 0.4, -2.0, 5.0])
def test_entropy_is_the_integral(mean, log_std):
    dist = SquashedGaussian.from_logits(torch.tensor([[mean, log_std]], dtype=torch.float64), low=-1.0, high=3.0)
    std = float(np.exp(log_std))

    def slope(x):  # of the action's logarithmic derivative by x, weighted
        return (np.log(2) + 2 * (np.log(2) - abs(x) - np.log1p(np.exp(-2 * abs(x))))) * stats.norm.pdf(x, mean, std)

    ends = (mean - 12 * std, mean + 12 * std)
    inner = [0.0] if ends[0] < 0.0 < ends[1] else None
    expected = stats.norm(mean, std).entropy() + integrate.quad(slope, *ends, points=inner, limit=300)[0]
    assert dist.entropy().item() == pytest.approx(expected, abs=2e-4)


def test_entropy_of_the_widest_gaussian_is_right_to_one_percent_of_its_slope():
    dist = SquashedGaussian.from_logits(torch.tensor([[0.0, 9.0]]))
    std = float(np.exp(2.0))
    mean_slope = integrate.quad(
        lambda x: 2 * (np.log(2) - abs(x) - np.log1p(np.exp(-2 * abs(x)))) * stats.norm.pdf(x, 0, std),
        -100, 100, points=[0.0], limit=300,
    )[0]  # fmt: skip
    found = dist.entropy().item() - stats.norm(0, std).entropy()
    assert found == pytest.approx(mean_slope, rel=0.01)


@pytest.mark.parametrize("mean", [0.0, 8.0, -20.0, 1e4])
def test_saturated_actions_stay_finite_and_inside(mean):
    logits = torch.tensor([[mean, 2.0]]).requires_grad_()
    dist = SquashedGaussian.from_logits(logits)
    drawn = dist.sample(sample_shape=(2000,), generator=torch.Generator().manual_seed(0))
    assert drawn.abs().max() < 1.0
    logp = dist.logp(drawn)
    assert logp.isfinite().all()
    assert torch.equal(logp, dist.logp(drawn))
    (logp.sum() + dist.entropy().sum()).backward()
    assert logits.grad.isfinite().all()
    assert dist.logp(torch.tensor([[1.0]])).isfinite().all()
    _, exact = dist.rsample_and_logp(sample_shape=(2000,))
    assert exact.isfinite().all()


def test_frequencies():
    """The share of draws below a point against the Gaussian's, within 4 standard errors."""
    dist = SquashedGaussian.from_logits(torch.tensor([[0.3, -0.2]]), low=-2.0, high=6.0)
    drawn = dist.sample(sample_shape=40000, generator=torch.Generator().manual_seed(2)).numpy().ravel()
    for point in (-1.0, 1.0, 3.0, 5.0):
        expected = stats.norm(0.3, np.exp(-0.2)).cdf(np.arctanh((point - 2.0) / 4.0))
        assert (drawn < point).mean() == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 40000))


def test_gradients_flow_through_rsample():
    logits = torch.zeros(3, 4, requires_grad=True)
    drawn, logp = SquashedGaussian.from_logits(logits).rsample_and_logp()
    (drawn.sum() + logp.sum()).backward()
    assert (logits.grad != 0).all()
    assert not SquashedGaussian.from_logits(logits).sample().requires_grad


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_shaped_actions(shape):
    width = int(np.prod(shape))
    dist = SquashedGaussian.from_logits(inputs(5, width=width), shape=shape)
    drawn = dist.sample(sample_shape=(2,))
    assert drawn.shape == (2, 5, *shape)
    flat = SquashedGaussian.from_logits(inputs(5, width=width))
    torch.testing.assert_close(dist.logp(drawn), flat.logp(drawn.reshape(2, 5, width)))
    greedy = dist.to_deterministic()
    assert greedy.logp(greedy.sample()).shape == (5,)


def test_wrong_uses_are_named():
    for low, high in ((-1.0, np.inf), (1.0, 1.0), (np.zeros(2), np.array([1.0, -1.0]))):
        with pytest.raises(SpaceError, match="finite bounds"):
            SquashedGaussian.from_logits(torch.zeros(1, 4), low=low, high=high)
    with pytest.raises(SpaceError, match="finite bounds"):
        SquashedGaussian.required_input_dim(gym.spaces.Box(-np.inf, 1, (2,)))
    dist = SquashedGaussian.from_logits(torch.zeros(1, 4))
    with pytest.raises(NotAvailableError, match="same bounds"):
        dist.kl(SquashedGaussian.from_logits(torch.zeros(1, 4), high=2.0))
    with pytest.raises(NotAvailableError, match="another SquashedGaussian"):
        dist.kl(DiagGaussian.from_logits(torch.zeros(1, 4)))


def test_near_a_bound_an_action_does_not_tell_what_was_squashed():
    near, far = (SquashedGaussian.from_logits(torch.tensor([[mean, -2.0]]).expand(100, 2)) for mean in (9.0, 0.5))
    for dist, differs in ((near, True), (far, False)):
        drawn, logp = dist.sample_and_logp(generator=torch.Generator().manual_seed(0))
        assert bool(((logp - dist.logp(drawn)).abs() > 1).any()) == differs
