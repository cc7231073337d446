from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.distributions import Deterministic
from epibatch.core.errors import NotAvailableError, SpaceError

LOC = torch.arange(6.0).reshape(3, 2)


def test_every_draw_is_the_same_and_has_logp_0():
    dist = Deterministic.from_logits(LOC)
    drawn = dist.sample(sample_shape=(4, 5))
    assert drawn.shape == (4, 5, 3, 2) and bool((drawn == LOC).all())
    assert dist.logp(drawn).shape == (4, 5, 3) and not dist.logp(drawn).any()
    assert dist.to_deterministic() is dist


def test_gradients_flow_through_rsample_only():
    loc = LOC.clone().requires_grad_()
    dist = Deterministic(loc)
    assert not dist.sample().requires_grad
    dist.rsample().sum().backward()
    assert bool((loc.grad == 1.0).all())


def test_single_choices_have_no_event_axis():
    dist = Deterministic(torch.tensor([3, 1]), event_dims=0)
    assert dist.sample().tolist() == [3, 1]
    assert dist.logp(dist.sample()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("ask", [lambda dist: dist.entropy(), lambda dist: dist.kl(dist)], ids=["entropy", "kl"])
def test_what_a_single_action_does_not_have(ask):
    with pytest.raises(NotAvailableError, match="to_deterministic"):
        ask(Deterministic(LOC))


def test_inputs_are_the_entries_of_a_box():
    assert Deterministic.required_input_dim(gym.spaces.Box(-1, 1, (2, 3), np.float32)) == 6
    with pytest.raises(SpaceError, match="a Box action space"):
        Deterministic.required_input_dim(gym.spaces.Discrete(2))
