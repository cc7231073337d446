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

Box, Discrete, MultiDiscrete = gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete


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
    tensors = tree_map(lambda leaf: torch.as_tensor(leaf.reshape(*lead, *leaf.shape[1:])), rows)
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


def shown(space, obs, **options):
    return lambda: ObservationInput(space, DefaultModelConfig(**options))(obs)


CAMERA = gym.spaces.Dict(camera=Box(0, 1, (3, 64, 64)), speed=Box(-1, 1, (2,)))
PAIR = gym.spaces.Dict(a=Discrete(2), b=gym.spaces.Tuple([Box(-1, 1, (2,))]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (shown(None, 0), SpaceError, r"RLModuleSpec\(observation_space=\.\.\., action_space=\.\.\.\)"),
        (shown(gym.Space(), 0), SpaceError, "TransformObservation"),
        (
            shown(gym.spaces.Dict(a=gym.spaces.Tuple([Discrete(2), gym.spaces.Text(5)])), 0),
            SpaceError,
            r"\['a'\]\[1\] of",
        ),
        *[(shown(Box(-1, 1, (2, 3)), torch.zeros(n)), SpaceError, "observation_space") for n in ((3, 5), (4, 3), (3,))],
        (shown(PAIR, {"a": torch.zeros(2)}), ColumnError, "as the module's observation_space says"),
        (shown(PAIR, {"a": torch.zeros(2), "b": torch.zeros(2, 2)}), ColumnError, "observation_space"),
        (shown(PAIR, torch.zeros(2, 4)), ColumnError, "observation_space"),
        (shown(Discrete(10**9), 0), SpaceError, r"at most 10,000,000 choices[\s\S]*Discrete[\s\S]*embedding"),
        (shown(MultiDiscrete([3, 10**8]), 0), SpaceError, r"choices[\s\S]*MultiDiscrete[\s\S]*embedding"),
        (shown(gym.spaces.Dict(a=Discrete(10**9)), 0), SpaceError, r"choices[\s\S]*at \['a'\] of Dict"),
        (shown(CAMERA, 0), SpaceError, r"images of shape \(3, 64, 64\)"),
        (shown(CAMERA, 0, conv_filters=[[4, 4, 2]]), SpaceError, r"images of shape \(3, 64, 64\)"),
    ],
)
def test_what_cannot_be_encoded(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_images_with_the_channels_first_are_flattened_or_announced():
    assert ObservationInput(CAMERA, DefaultModelConfig(conv_filters=[])).size == 3 * 64 * 64 + 2
    encode = ObservationInput(CAMERA, DefaultModelConfig(conv_channels="first"))
    assert encode.size == 4 * 4 * 64 + 2  # of (64, 64, 3) four times halved
    out = encode({"camera": torch.rand(5, 3, 64, 64), "speed": torch.zeros(5, 2)}, encode.cnns())
    assert out.shape == (5, encode.size)
    ObservationInput(Discrete(1_000_000))


def test_images_have_cnns_of_their_own():
    space = gym.spaces.Dict(
        screen=Box(0, 255, (20, 16, 3), np.uint8), small=Box(0, 255, (5, 5, 3), np.uint8), speed=Box(-1, 1, (2,))
    )
    encode = ObservationInput(space)
    one, two = encode.cnns(), encode.cnns()
    assert len(one) == 1
    assert encode.size == one[0].size + 75 + 2
    obs = batch([space.sample() for _ in range(6)])
    out = encode(tree_map(torch.as_tensor, obs), one)
    torch.testing.assert_close(out[:, : one[0].size], one[0](torch.from_numpy(obs["screen"])))
    np.testing.assert_array_equal(out[:, one[0].size :].detach()[:, :75], obs["small"].reshape(6, 75))
    assert not torch.equal(one[0].layers[1].weight, two[0].layers[1].weight)


def test_filters_decide_what_is_an_image():
    box = Box(0, 1, (5, 5, 3))
    assert ObservationInput(box).cnns() is None
    assert ObservationInput(box, DefaultModelConfig(conv_filters=[[4, 3, 2]])).size == 3 * 3 * 4
    assert ObservationInput(Box(0, 1, (84, 84, 1)), DefaultModelConfig(conv_filters=[])).size == 84 * 84


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
    assert list(previous_step_views(BOTH)) == ["prev_actions", "prev_rewards"]
    assert previous_step_views(DefaultModelConfig()) == {}
    assert PreviousSteps(gym.spaces.Discrete(3), DefaultModelConfig()).size == 0
    with pytest.raises(ColumnError, match=r"'prev_actions_mask'[\s\S]*TrajectoryViews"):
        steps({"obs": torch.zeros(1)})


def test_nested_actions():
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,), np.float32), b=gym.spaces.Discrete(2))
    steps = PreviousSteps(space, DefaultModelConfig(use_lstm=True, use_prev_action=True))
    batch = {"prev_actions": {"a": torch.ones(1, 2), "b": torch.tensor([1])}, "prev_actions_mask": torch.ones(1)}
    assert steps(batch).tolist() == [[1, 1, 0, 1]]
