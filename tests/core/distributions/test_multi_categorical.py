"""Several choices at once against torch's Categorical for each."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.distributions import MultiCategorical
from epibatch.core.errors import NotAvailableError, SpaceError


def parts(logits, lens):
    return [torch.distributions.Categorical(logits=own) for own in torch.split(logits, list(lens), -1)]


def summed(terms):
    return torch.stack(list(terms), -1).sum(-1)


@settings(max_examples=40, deadline=None)
@given(
    lens=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    lead=st.sampled_from([(3,), (2, 4)]),
    starts=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_is_one_categorical_per_entry(lens, lead, starts, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, others = (torch.randn(*lead, sum(lens), generator=generator) * 3 for _ in range(2))
    start = torch.randint(-5, 5, (len(lens),), generator=generator).tolist() if starts else None
    dist, other = (MultiCategorical.from_logits(own, lens, start=start) for own in (logits, others))
    reference, base = parts(logits, lens), parts(others, lens)
    drawn = dist.sample(sample_shape=(6,), generator=generator)
    assert drawn.shape == (6, *lead, len(lens))
    choices = drawn - torch.tensor(start or [0] * len(lens))
    assert (choices >= 0).all()
    assert (choices < torch.tensor(lens)).all()
    expected = summed(one.log_prob(choices[..., i]) for i, one in enumerate(reference))
    torch.testing.assert_close(dist.logp(drawn), expected)
    torch.testing.assert_close(dist.entropy(), summed(one.entropy() for one in reference))
    pairs = zip(reference, base)
    torch.testing.assert_close(dist.kl(other), summed(torch.distributions.kl_divergence(*pair) for pair in pairs))
    best = torch.stack([own.argmax(-1) for own in torch.split(logits, lens, -1)], -1)
    greedy = dist.to_deterministic()
    assert torch.equal(greedy.sample(), best + torch.tensor(start or 0))
    assert greedy.logp(greedy.sample()).shape == lead


@pytest.mark.parametrize("lens", [[3, 3], [2, 5], [1, 4, 2]])
def test_gradients_match_torch(lens):
    value = torch.stack([torch.tensor([0, n - 1, n // 2]) for n in lens], -1)
    grads = []
    for build in (
        lambda x: MultiCategorical.from_logits(x, lens),
        lambda x: parts(x, lens),
    ):
        x = torch.randn(3, sum(lens), generator=torch.Generator().manual_seed(0)).requires_grad_()
        dist = build(x)
        if isinstance(dist, list):
            terms = [one.log_prob(value[:, i]) + 0.1 * one.entropy() for i, one in enumerate(dist)]
            summed(terms).sum().backward()
        else:
            (dist.logp(value) + 0.1 * dist.entropy()).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_frequencies():
    """Pearson's chi-square over the 6 pairs against the 99.9 % quantile for 5 degrees of freedom, 20.52."""
    first, second = torch.tensor([0.7, 0.3]), torch.tensor([0.5, 0.1, 0.4])
    dist = MultiCategorical.from_logits(torch.cat([first, second]).log().expand(64, 5), [2, 3])
    drawn = dist.sample(sample_shape=1000, generator=torch.Generator().manual_seed(3)).reshape(-1, 2)
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6).double()
    expected = (first[:, None] * second).flatten().double() * len(drawn)
    assert ((counts - expected).square() / expected).sum() < 20.52


def test_shapes_and_types():
    dist = MultiCategorical.from_logits(torch.zeros(4, 12), [2] * 6, shape=(2, 3), dtype=torch.int8)
    drawn = dist.sample(sample_shape=(5,))
    assert (drawn.shape, drawn.dtype) == ((5, 4, 2, 3), torch.int8)
    torch.testing.assert_close(dist.logp(drawn), torch.full((5, 4), 6 * np.log(0.5), dtype=torch.float32))
    assert dist.to_deterministic().logp(drawn[0]).shape == (4,)


@pytest.mark.parametrize("start", [None, [3, 0]])
def test_integers_outside_have_no_probability(start):
    dist = MultiCategorical.from_logits(torch.zeros(2, 5, requires_grad=True), [2, 3], start=start)
    first = 0 if start is None else 3
    logp = dist.logp(torch.tensor([[first + 2, 0], [first, 2]]))
    assert logp[0] == -torch.inf
    logp[1].backward()


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (gym.spaces.MultiDiscrete([[2, 3], [4, 5]]), 14),
        (gym.spaces.MultiBinary((2, 3)), 12),
        (gym.spaces.MultiBinary(4), 8),
        (gym.spaces.Box(-2, 3, (2,), np.int8), 12),
        (gym.spaces.Box(-128, 127, (), np.int8), 256),
        (gym.spaces.Box(0, 1, (3,), np.bool_), 6),
    ],
)
def test_required_input_dim(space, count):
    assert MultiCategorical.required_input_dim(space) == count


def test_wrong_uses_are_named():
    with pytest.raises(SpaceError, match=r"2\+3 logits[\s\S]*\(1, 4\)"):
        MultiCategorical.from_logits(torch.zeros(1, 4), [2, 3])
    for space in (gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-np.inf, 3, (2,), np.int64)):
        with pytest.raises(SpaceError, match="bounded integer Box"):
            MultiCategorical.required_input_dim(space)
    dist = MultiCategorical.from_logits(torch.zeros(1, 4), [2, 2])
    with pytest.raises(NotAvailableError, match="another MultiCategorical"):
        dist.kl(dist.choices)
