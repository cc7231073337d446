"""Observations of every space, and previous steps, as vectors."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.rl_module import DefaultModelConfig
from epibatch.core.rl_module.observation_input import ObservationInput, PreviousSteps, previous_step_views
from epibatch.core.spaces import batch, flatten_inputs_to_1d_tensor, get_base_struct_from_space
from epibatch.core.tensors import convert_to_torch_tensor

Box, Discrete, MultiDiscrete = gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_discrete_observations_become_one_hot(dtype):
    out = ObservationInput(gym.spaces.Discrete(3, start=5))(torch.tensor([[5, 7]], dtype=dtype))
    assert out.tolist() == [[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]


def test_vectors_are_passed_through():
    obs = torch.zeros(3, 4)
    assert ObservationInput(gym.spaces.Box(-1, 1, (4,)))(obs) is obs


@pytest.mark.parametrize("shape", [(3, 5), (4, 3), (3, 2, 3, 1), (3,)])
def test_observations_of_another_shape(shape):
    with pytest.raises(SpaceError, match="as the module's observation_space says"):
        ObservationInput(gym.spaces.Box(-1, 1, (2, 3)))(torch.zeros(shape))


LEAVES = st.sampled_from(
    [
        Box(-1, 1, (3,)),
        Box(-2, 2, (), np.float64),
        Box(-1, 1, (2, 2, 1), np.float16),
        Box(0, 255, (2, 3), np.uint8),
        Box(-5, 5, (2,), np.int16),
        Box(0, 60000, (2,), np.uint16),
        Box(0, 1, (2,), np.bool_),
        Discrete(3),
        Discrete(4, start=-2),
        MultiDiscrete([2, 3], start=[5, -1]),
        MultiDiscrete([[2, 3], [4, 1]]),
        gym.spaces.MultiBinary(3),
        gym.spaces.MultiBinary((2, 2)),
    ]
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
        st.dictionaries(st.sampled_from("zabc"), inner, min_size=1, max_size=3).map(
            lambda parts: gym.spaces.Dict(list(parts.items()))
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(space=SPACES, lead=st.sampled_from([(4,), (2, 3)]), seed=st.integers(0, 1000))
def test_nested_observations_are_what_flattening_gives(space, lead, seed):
    space.seed(seed)
    samples = [space.sample() for _ in range(int(np.prod(lead)))]
    rows = batch(samples)
    expected = flatten_inputs_to_1d_tensor(rows, get_base_struct_from_space(space))
    tensors = convert_to_torch_tensor(tree_map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), rows))
    encode = ObservationInput(space)
    out = encode(tensors)
    assert encode.cnns() is None
    assert out.shape == (*lead, encode.size)
    assert out.dtype is torch.float32
    np.testing.assert_allclose(out.numpy().reshape(expected.shape), expected)


@pytest.mark.parametrize("space", [Discrete(3, start=5), MultiDiscrete([3, 2], start=[5, 5])])
def test_padding_becomes_zeros_and_other_strangers_are_refused(space):
    encode = ObservationInput(space)
    zeros = torch.zeros(2, 4, *space.shape, dtype=torch.int64)
    assert not encode(zeros).any()
    zeros[0, 0] = 6
    assert encode(zeros).sum() == zeros[0, 0].numel()
    zeros[1, 1] = 9
    with pytest.raises(SpaceError, match=r"from \[5[\s\S]*found:    \[9"):
        encode(zeros)


def test_images_have_cnns_of_their_own():
    space = gym.spaces.Dict(
        screen=Box(0, 255, (20, 16, 3), np.uint8), small=Box(0, 255, (5, 5, 3), np.uint8), speed=Box(-1, 1, (2,))
    )
    encode = ObservationInput(space)
    one, two = encode.cnns(), encode.cnns()
    assert len(one) == 1
    assert encode.size == one[0].size + 75 + 2
    obs = batch([space.sample() for _ in range(6)])
    out = encode(convert_to_torch_tensor(obs), one)
    torch.testing.assert_close(out[:, : one[0].size], one[0](torch.from_numpy(obs["screen"])))
    np.testing.assert_array_equal(out[:, one[0].size :].detach()[:, :75], obs["small"].reshape(6, 75))
    assert not torch.equal(one[0].layers[1].weight, two[0].layers[1].weight)


def test_images_with_the_channels_first_are_refused_unless_they_are_flattened_or_announced():
    space = gym.spaces.Dict(camera=Box(0, 1, (3, 64, 64)), speed=Box(-1, 1, (2,)))
    for options in ({}, {"conv_filters": [[4, 4, 2]]}):
        with pytest.raises(SpaceError, match=r"images of shape \(3, 64, 64\)"):
            ObservationInput(space, DefaultModelConfig(**options))
    assert ObservationInput(space, DefaultModelConfig(conv_filters=[])).size == 3 * 64 * 64 + 2
    encode = ObservationInput(space, DefaultModelConfig(conv_channels="first"))
    assert encode.size == 4 * 4 * 64 + 2  # of (64, 64, 3) four times halved
    out = encode({"camera": torch.rand(5, 3, 64, 64), "speed": torch.zeros(5, 2)}, encode.cnns())
    assert out.shape == (5, encode.size)


def test_filters_decide_what_is_an_image():
    box = Box(0, 1, (5, 5, 3))
    assert ObservationInput(box).cnns() is None
    assert ObservationInput(box, DefaultModelConfig(conv_filters=[[4, 3, 2]])).size == 3 * 3 * 4
    assert ObservationInput(Box(0, 1, (84, 84, 1)), DefaultModelConfig(conv_filters=[])).size == 84 * 84


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (None, r"RLModuleSpec\(observation_space=\.\.\., action_space=\.\.\.\)"),
        (gym.Space(), "TransformObservation"),
        (gym.spaces.Text(5), "encode the text"),
        (gym.spaces.Sequence(Discrete(2)), "pad the sequence"),
        (gym.spaces.Graph(Box(-1, 1, (2,)), None), "pad nodes and edges"),
        (gym.spaces.Dict(a=gym.spaces.Tuple([Discrete(2), gym.spaces.Text(5)])), r"at \['a'\]\[1\] of Dict"),
    ],
)
def test_spaces_without_an_encoding(space, message):
    with pytest.raises(SpaceError, match=message):
        ObservationInput(space)


def test_observations_nested_otherwise():
    encode = ObservationInput(gym.spaces.Dict(a=Discrete(2), b=gym.spaces.Tuple([Box(-1, 1, (2,))])))
    for obs in ({"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(2, 2)}, torch.zeros(2, 4)):
        with pytest.raises(ColumnError, match="as the module's observation_space says"):
            encode(obs)


@pytest.mark.parametrize(
    ("space", "place"),
    [
        (gym.spaces.Discrete(10**9), "Discrete"),
        (gym.spaces.MultiDiscrete([3, 10**8]), "MultiDiscrete"),
        (gym.spaces.Dict(a=gym.spaces.Discrete(10**9)), r"at \['a'\] of Dict"),
    ],
)
def test_more_choices_than_a_one_hot_vector_can_have(space, place):
    with pytest.raises(SpaceError, match=rf"at most 10,000,000 choices[\s\S]*{place}[\s\S]*embedding"):
        ObservationInput(space)
    ObservationInput(gym.spaces.Discrete(1_000_000))


BOTH = DefaultModelConfig(use_lstm=True, use_prev_action=True, use_prev_reward=True)


def test_actions_are_encoded_and_rewards_stand_beside_them():
    steps = PreviousSteps(gym.spaces.Discrete(3), BOTH)
    batch = {
        "prev_actions": torch.tensor([[0, 2]]),
        "prev_actions_mask": torch.tensor([[False, True]]),
        "prev_rewards": torch.tensor([[0.0, 1.5]]),
    }
    assert steps.size == 4
    assert steps(batch).tolist() == [[[0, 0, 0, 0], [0, 0, 1, 1.5]]]


def test_nested_actions():
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,), np.float32), b=gym.spaces.Discrete(2))
    steps = PreviousSteps(space, DefaultModelConfig(use_lstm=True, use_prev_action=True))
    batch = {"prev_actions": {"a": torch.ones(1, 2), "b": torch.tensor([1])}, "prev_actions_mask": torch.ones(1)}
    assert steps(batch).tolist() == [[1, 1, 0, 1]]


def test_what_is_asked_for():
    assert list(previous_step_views(BOTH)) == ["prev_actions", "prev_rewards"]
    assert previous_step_views(DefaultModelConfig()) == {}
    assert PreviousSteps(gym.spaces.Discrete(3), DefaultModelConfig()).size == 0


def test_a_batch_without_them():
    with pytest.raises(ColumnError, match=r"'prev_actions_mask'[\s\S]*TrajectoryViews"):
        PreviousSteps(gym.spaces.Discrete(3), BOTH)({"obs": torch.zeros(1)})
