"""Distributions and flat observations against RLlib's."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.env_to_module import FlattenObservations
from epibatch.core import distributions as ours
from epibatch.core.action_scaling import EnvActions, unsquash_action
from epibatch.core.structs import map_struct
from epibatch.episodes import SingleAgentEpisode

pytest.importorskip("ray.rllib", reason="RLlib is the oracle of these tests", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.rllib.connectors.env_to_module import FlattenObservations as TheirFlatten
    from ray.rllib.core.distribution.torch import torch_distribution as theirs
    from ray.rllib.core.models.catalog import Catalog
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode as TheirEpisode
    from ray.rllib.utils.spaces.space_utils import unsquash_action as their_unsquash


Box, Discrete, MultiDiscrete = gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete
ACTIONS = [
    Discrete(4),
    Box(-1, 1, (3,)),
    MultiDiscrete([2, 5, 3]),
    gym.spaces.Dict({"b": Discrete(3), "a": gym.spaces.Tuple([Box(-1, 1, (2,)), MultiDiscrete([2, 2])])}),
    gym.spaces.Tuple([Discrete(2), gym.spaces.Dict(z=Discrete(2), y=Box(0, 1, (1,)))]),
]


def inputs(count: int, seed: int) -> torch.Tensor:
    return torch.randn(6, count, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("space", ACTIONS)
def test_the_distributions_of_action_spaces(space: Any) -> None:
    their_cls = Catalog._get_dist_cls_from_action_space(space, framework="torch")
    our_cls = ours.distribution_for(space)
    count = our_cls.required_input_dim(space)
    assert count == their_cls.required_input_dim(space)
    theirs_, ours_ = ([cls.from_logits(inputs(count, seed)) for seed in (0, 1)] for cls in (their_cls, our_cls))
    drawn = theirs_[0].sample()
    torch.testing.assert_close(ours_[0].logp(drawn), theirs_[0].logp(drawn))
    torch.testing.assert_close(ours_[0].entropy(), theirs_[0].entropy())
    torch.testing.assert_close(ours_[0].kl(ours_[1]), theirs_[0].kl(theirs_[1]))
    own = ours_[0].sample()
    map_struct(lambda mine, other: torch.testing.assert_close(mine.shape, other.shape), own, drawn)
    torch.testing.assert_close(theirs_[0].logp(own), ours_[0].logp(own))
    greedy, expected = ours_[0].to_deterministic().sample(), theirs_[0].to_deterministic().sample()
    map_struct(lambda mine, other: torch.testing.assert_close(mine, other), greedy, expected)


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-2.0, 4.0)])
def test_the_squashed_gaussian(bounds: Any) -> None:
    their, our = (
        cls.from_logits(inputs(4, 0), low=bounds[0], high=bounds[1])
        for cls in (theirs.TorchSquashedGaussian, ours.TorchSquashedGaussian)
    )
    stretched = 2 * np.log((bounds[1] - bounds[0]) / 2)  # what theirs leaves out of the Jacobian
    drawn = our.sample(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(our.logp(drawn) + stretched, their.logp(drawn), rtol=1e-3, atol=1e-3)
    torch.manual_seed(0)
    drawn, logp = their.rsample_and_logp()
    torch.manual_seed(0)
    torch.testing.assert_close(our.rsample_and_logp(), (drawn, logp - stretched))


def test_partial_classes_of_ported_code() -> None:
    for module in (theirs, ours):
        cls = module.TorchMultiDistribution.get_partial_dist_cls(
            child_distribution_cls_struct={"a": module.TorchCategorical, "b": module.TorchDiagGaussian},
            input_lens=[3, 4],
        )
        dist = cls.from_logits(torch.zeros(2, 7))
        assert {key: tuple(value.shape) for key, value in dist.sample().items()} == {"a": (2,), "b": (2, 2)}
        categorical = module.TorchMultiCategorical.get_partial_dist_cls(space=MultiDiscrete([2, 3]), input_lens=[2, 3])
        assert categorical.required_input_dim(MultiDiscrete([2, 3])) == 5
        assert categorical.from_logits(torch.zeros(2, 5)).sample().shape == (2, 2)


@pytest.mark.parametrize(
    "space",
    [Box(-2, 4, (3,)), Box(np.array([-2.0, 0.0]), np.array([4.0, 0.1]), dtype=np.float64), Box(-3, 9, (2,), np.int32)],
)
def test_actions_for_the_environment(space: Any) -> None:
    rng = np.random.default_rng(0)
    actions = rng.normal(size=(20, *space.shape)).astype(np.float32)
    if space.dtype.kind == "i":
        actions = rng.integers(0, 13, actions.shape)
    expected = their_unsquash(actions, space)
    np.testing.assert_array_equal(EnvActions(space)(actions), expected)
    np.testing.assert_array_equal(unsquash_action(actions, space), expected.astype(actions.dtype))


@pytest.mark.parametrize("removed", [None, ["a"], ["c", "b"]])
def test_flat_observations(removed: Any) -> None:
    space = gym.spaces.Dict(
        {
            "c": MultiDiscrete([2, 3]),
            "a": Box(-10, 10, (), np.float32),
            "b": gym.spaces.Tuple([Discrete(2), Box(-1, 1, (2, 1)), gym.spaces.MultiBinary(3)]),
        }
    )
    space.seed(3)
    for _ in range(5):
        row = space.sample()
        their, our = (cls(observations=[row], observation_space=space) for cls in (TheirEpisode, SingleAgentEpisode))
        pieces = [cls(space, Discrete(2), keys_to_remove=removed) for cls in (TheirFlatten, FlattenObservations)]
        for piece, episode in zip(pieces, (their, our)):
            piece(rl_module=None, batch={}, episodes=[episode], explore=True, shared_data={})
        np.testing.assert_array_equal(our.get_observations(-1), their.get_observations(-1))
        assert our.get_observations(-1).dtype == their.get_observations(-1).dtype
        assert pieces[1].observation_space == pieces[0].observation_space == our.observation_space
