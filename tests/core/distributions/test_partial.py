"""Distribution classes with arguments fixed, as ported code makes them."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch

from epibatch.core.distributions import Categorical, Distribution, MultiCategorical
from epibatch.core.errors import ConfigError, SpaceError

SPACE = gym.spaces.MultiDiscrete([2, 3])


class Scaled(Distribution):
    """A user's distribution: a point that is the inputs times a factor; `from_logits` takes any keywords."""

    def __init__(self, point):
        self.point = point

    @classmethod
    def from_logits(cls, logits, factor=1.0, **kwargs):
        made = cls(logits * factor)
        made.seen = kwargs
        return made

    def sample(self, *, sample_shape=None, generator=None):
        return self.point

    def logp(self, value):
        return torch.zeros(value.shape[:-1])

    def entropy(self):
        return self.point.sum(-1)

    def kl(self, other):
        return self.point.sum(-1)

    def to_deterministic(self):
        return self

    @staticmethod
    def required_input_dim(space, width=1, **kwargs):
        return width


def test_the_class_knows_what_was_fixed():
    cls = MultiCategorical.get_partial_dist_cls(space=SPACE, input_lens=[2, 3])
    assert issubclass(cls, MultiCategorical)
    assert cls.__name__ == "MultiCategorical"
    dist = cls.from_logits(torch.zeros(4, 5))
    assert type(dist) is cls
    assert dist.sample().shape == (4, 2)
    assert cls.required_input_dim(SPACE) == 5
    assert dist.kl(MultiCategorical.from_logits(torch.zeros(4, 5), [2, 3])).tolist() == [0.0] * 4


def test_more_can_be_fixed_later():
    first = MultiCategorical.get_partial_dist_cls(input_lens=[2, 3])
    second = first.get_partial_dist_cls(start=[1, 1])
    assert second.from_logits(torch.zeros(50, 5)).sample().min() == 1
    assert first.from_logits(torch.zeros(1, 5), start=[7, 7]).sample().min() >= 7


def test_classes_of_users_get_every_keyword():
    cls = Scaled.get_partial_dist_cls(space=SPACE, factor=3.0, width=7)
    dist = cls.from_logits(torch.ones(1, 2), more=True)
    assert dist.sample().tolist() == [[3.0, 3.0]]
    assert dist.seen == {"space": SPACE, "width": 7, "more": True}
    assert cls.required_input_dim(SPACE) == 7
    with pytest.raises(ConfigError, match="factor"):
        cls.from_logits(torch.ones(1, 2), factor=2.0)


def test_wrong_uses_are_named():
    with pytest.raises(ConfigError, match="did you mean 'start'"):
        Categorical.get_partial_dist_cls(strat=2)
    cls = MultiCategorical.get_partial_dist_cls(space=SPACE, input_lens=[2, 3])
    with pytest.raises(SpaceError, match=r"made for one space[\s\S]*MultiDiscrete\(\[2 3\]\)"):
        cls.required_input_dim(gym.spaces.MultiDiscrete([4]))
