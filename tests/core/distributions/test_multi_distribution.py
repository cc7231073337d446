"""Distributions of nested actions are sums over their parts."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch

from epibatch.core.distributions import (
    Categorical,
    Deterministic,
    DiagGaussian,
    MultiDistribution,
    distribution_for,
)
from epibatch.core.errors import ColumnError, NotAvailableError, SpaceError

SPACE = gym.spaces.Dict(
    {"turn": gym.spaces.Discrete(3), "move": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)])}
)


@pytest.mark.parametrize("lead", [(4,), (3, 2)])
def test_everything_is_a_sum_and_dicts_go_by_sorted_key(lead):
    cls = distribution_for(SPACE)
    logits, others = torch.randn(2, *lead, 9, generator=torch.Generator().manual_seed(0))
    dist, other = cls.from_logits(logits), cls.from_logits(others)
    parts, bases = (
        (
            DiagGaussian.from_logits(own[..., :4]),
            Categorical.from_logits(own[..., 4:6]),
            Categorical.from_logits(own[..., 6:]),
        )
        for own in (logits, others)
    )
    drawn = dist.sample(sample_shape=(5,), generator=torch.Generator().manual_seed(1))
    assert drawn["move"][0].shape == (5, *lead, 2)
    leaves = (*drawn["move"], drawn["turn"])
    expected = sum(part.logp(leaf) for part, leaf in zip(parts, leaves))
    torch.testing.assert_close(dist.logp(drawn), expected)
    torch.testing.assert_close(dist.logp({"turn": drawn["turn"], "move": drawn["move"]}), expected)
    torch.testing.assert_close(dist.entropy(), sum(part.entropy() for part in parts))
    torch.testing.assert_close(dist.kl(other), sum(part.kl(base) for part, base in zip(parts, bases)))
    greedy = dist.to_deterministic()
    assert torch.equal(greedy.sample()["turn"], logits[..., 6:].argmax(-1))
    assert greedy.logp(greedy.sample()).tolist() == torch.zeros(lead).tolist()
    assert torch.equal(dist.children["move"][0].mean, logits[..., :2])


def test_draws_repeat_with_a_generator():
    dist = distribution_for(SPACE).from_logits(torch.zeros(6, 9))
    one, two = (dist.sample(generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one["move"][0], two["move"][0])
    assert torch.equal(one["turn"], two["turn"])
    drawn, logp = dist.sample_and_logp(generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn["turn"], one["turn"])
    torch.testing.assert_close(logp, dist.logp(one))


@pytest.mark.parametrize("lens", [[4, 3], {"a": 4, "b": 3}, (4, 3)])
def test_the_constructor_arguments_of_ported_code(lens):
    struct = {"b": Categorical, "a": DiagGaussian}
    dist = MultiDistribution.from_logits(torch.zeros(2, 7), child_distribution_cls_struct=struct, input_lens=lens)
    assert {key: value.shape for key, value in dist.sample().items()} == {"a": (2, 2), "b": (2,)}
    again = MultiDistribution(child_distribution_struct=dist.children)
    torch.testing.assert_close(again.entropy(), dist.entropy())
    partial = MultiDistribution.get_partial_dist_cls(child_distribution_cls_struct=struct, input_lens=lens)
    torch.testing.assert_close(partial.from_logits(torch.zeros(2, 7)).entropy(), dist.entropy())


def test_gradients_flow_through_rsample():
    space = gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,))])
    logits = torch.zeros(3, 6, requires_grad=True)
    drawn, logp = distribution_for(space).from_logits(logits).rsample_and_logp()
    (drawn[0].sum() + drawn[1].sum() + logp.sum()).backward()
    assert (logits.grad[:, :2] != 0).all()
    mixed = distribution_for(SPACE).from_logits(torch.zeros(1, 9))
    with pytest.raises(NotAvailableError, match="Categorical"):
        mixed.rsample()


def test_required_input_dim():
    assert MultiDistribution.required_input_dim(SPACE) == 9
    assert MultiDistribution.required_input_dim(SPACE, as_list=True) == [4, 2, 3]
    assert MultiDistribution.required_input_dim(SPACE, input_lens=[1, 2]) == 3


def test_wrong_uses_are_named():
    cls = distribution_for(SPACE)
    with pytest.raises(SpaceError, match=r"4\+2\+3 inputs for 3 parts"):
        cls.from_logits(torch.zeros(1, 8))
    dist = cls.from_logits(torch.zeros(1, 9))
    with pytest.raises(ColumnError, match="turn: leaf"):
        dist.logp({"turn": torch.zeros(1)})
    with pytest.raises(NotAvailableError, match="nested alike"):
        dist.kl(MultiDistribution((Categorical(torch.zeros(1, 2)),)))
    with pytest.raises(NotAvailableError, match="another MultiDistribution"):
        dist.kl(Categorical(torch.zeros(1, 2)))
    with pytest.raises(NotAvailableError, match="to_deterministic"):
        MultiDistribution((Deterministic(torch.zeros(1, 2)),)).entropy()
