"""A categorical of masked logits is the distribution over the choices that are left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.distributions import TorchCategorical, TorchMultiCategorical, mask_logits
from epibatch.core.errors import ColumnError


@st.composite
def masked(draw):
    """Logits, other logits, and a mask with a choice left."""
    size = draw(st.integers(1, 6))
    numbers = st.lists(st.floats(-8, 8, width=32), min_size=size, max_size=size)
    mask = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    return draw(numbers), draw(numbers), mask


@settings(max_examples=100, deadline=None)
@given(masked())
def test_it_is_the_smaller_distribution(case):
    first, second, mask = case
    legal = torch.tensor(mask)
    whole = [TorchCategorical.from_logits(mask_logits(torch.tensor([x]), legal[None])) for x in (first, second)]
    small = [TorchCategorical.from_logits(torch.tensor([x])[:, legal]) for x in (first, second)]
    assert (whole[0].probs[0][~legal] == 0).all()
    torch.testing.assert_close(whole[0].probs[0][legal], small[0].probs[0])
    torch.testing.assert_close(whole[0].entropy(), small[0].entropy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole[0].kl(whole[1]), small[0].kl(small[1]), rtol=1e-4, atol=1e-5)
    places = legal.nonzero()[:, 0]
    for i, place in enumerate(places):
        torch.testing.assert_close(whole[0].logp(place[None]), small[0].logp(torch.tensor([i])))
    assert whole[0].to_deterministic().sample()[0] == places[small[0].to_deterministic().sample()[0]]


@pytest.mark.parametrize("rows", [3, 2000])  # few are raced, many inverted
def test_illegal_choices_are_never_drawn(rows):
    torch.manual_seed(0)
    mask = torch.rand(rows, 7) < 0.3
    mask[torch.arange(rows), torch.randint(7, (rows,))] = True
    logits = torch.randn(rows, 7) * 5
    drawn = TorchCategorical.from_logits(mask_logits(logits, mask)).sample(sample_shape=10_000 // rows + 1)
    assert mask.expand(len(drawn), -1, -1).gather(-1, drawn[..., None]).all()


def test_no_gradient_reaches_illegal_choices_and_none_is_nan():
    logits = torch.randn(4, 3, requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 1]])
    policy = TorchCategorical.from_logits(mask_logits(logits, mask))
    base = TorchCategorical.from_logits(mask_logits(torch.zeros(4, 3), mask))
    (policy.logp(torch.tensor([0, 1, 2, 2])) + policy.entropy() + base.kl(policy)).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[mask == 0] == 0).all() and (logits.grad[0, [0, 2]] != 0).all()


def test_several_choices():
    mask = torch.tensor([[True, False, False, True, True]])
    policy = TorchMultiCategorical.from_logits(mask_logits(torch.zeros(1, 5), mask), [2, 3])
    np.testing.assert_allclose(policy.logp(torch.tensor([[0, 1]])).exp(), [0.5])
    np.testing.assert_allclose(policy.logp(torch.tensor([[1, 1]])).exp(), [0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_without_a_legal_choice_are_left_as_they_are(dtype):
    logits = torch.randn(2, 3, dtype=dtype)
    found = mask_logits(logits, torch.tensor([[0, 0, 0], [0, 1, 0]]))
    assert found.dtype == dtype and torch.equal(found[0], logits[0])
    assert found[1].tolist() == [torch.finfo(dtype).min, logits[1, 1].item(), torch.finfo(dtype).min]


def test_a_mask_of_another_length_is_named():
    with pytest.raises(ColumnError, match=r"\[2, 3\](.|\n)*\[2, 4\](.|\n)*put ActionMask after"):
        mask_logits(torch.zeros(2, 3), torch.ones(2, 4))
