"""Parts at random: each is one that there is, every place is as likely, and a stream goes on where it was."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.images import RandomCrop
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import CheckpointError, ColumnError, ConfigError
from epibatch.episodes import SingleAgentEpisode

SPACE = gym.spaces.Box(0, 255, (5, 6, 2), np.uint8)


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 5, 6, 2), np.uint8)


def seeded(seed=0, **keywords):
    piece = RandomCrop(**keywords)
    piece.seed(seed)
    return piece


def places(image, part, pad):
    """Where in the image, its edge repeated, a part is; by trying all."""
    wide = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    height, width = part.shape[:2]
    return [
        (y, x)
        for y in range(wide.shape[0] - height + 1)
        for x in range(wide.shape[1] - width + 1)
        if np.array_equal(wide[y : y + height, x : x + width], part)
    ]


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_each_part_is_one_of_its_image(seed, height, width, pad):
    x = images(4, seed)
    found = seeded(seed, height=height, width=width, pad=pad).transform(x)
    assert found.shape == (4, height, width, 2)
    assert all(places(image, part, pad) for image, part in zip(x, found))


def test_every_place_is_as_likely():
    x = np.repeat(images(1), 9000, 0)
    found = seeded(height=3, width=4).transform(x)
    drawn = [places(x[0], part, 0)[0] for part in found[:3000]]
    counts = np.array([drawn.count((y, x)) for y in range(3) for x in range(3)])
    assert counts.sum() == 3000
    assert np.abs(counts - 3000 / 9).max() < 5 * (3000 / 9) ** 0.5
    shifts = {places(x[0], part, 1)[0] for part in seeded(pad=1).transform(x[:200])}
    assert shifts == {(y, x) for y in range(3) for x in range(3)}


def test_all_frames_of_a_stack_are_cut_alike():
    x = images(6).reshape(3, 2, 5, 6, 2)
    together = np.concatenate([x[:, 0], x[:, 1]], -1)
    stacks = seeded(height=3, width=3, pad=1).transform(x)
    channels = seeded(height=3, width=3, pad=1).transform(together)
    assert np.array_equal(np.concatenate([stacks[:, 0], stacks[:, 1]], -1), channels)


def episode():
    return SingleAgentEpisode(
        observations=list(images(41)), actions=[0] * 40, rewards=[0.0] * 40, len_lookback_buffer=0
    )


def test_acting_takes_the_middle_and_training_draws():
    size = {"height": 3, "width": 4}
    acting = EnvToModulePipeline(SPACE, None, connectors=[RandomCrop(**size), BatchIndividualItems()])
    training = LearnerConnectorPipeline(SPACE, None, connectors=[RandomCrop(**size), BatchIndividualItems()])
    one = episode()
    assert acting(rl_module=None, episodes=[one])["obs"].tolist() == one.get_observations()[-1:, 1:4, 1:5].tolist()
    batch = training(rl_module=None, episodes=[one])["obs"]
    assert all(places(image, part, 0) for image, part in zip(one.get_observations(), batch))
    assert not np.array_equal(batch, one.get_observations()[:-1, 1:4, 1:5])
    assert not np.array_equal(batch, training(rl_module=None, episodes=[one])["obs"])
    assert acting.observation_space == training.observation_space == gym.spaces.Box(0, 255, (3, 4, 2), np.uint8)


def test_shifted_images_are_acted_on_as_they_are():
    pipeline = EnvToModulePipeline(SPACE, None, connectors=[RandomCrop(pad=2), BatchIndividualItems()])
    one = episode()
    assert np.array_equal(pipeline(rl_module=None, episodes=[one])["obs"], one.get_observations()[-1:])
    assert pipeline.observation_space == SPACE


def test_a_pixels_bounds_are_those_of_all_that_it_can_be():
    low = np.zeros((5, 6, 2), np.float32)
    low[0, 0, 1] = -3
    expected = gym.spaces.Box(np.broadcast_to(np.float32([0, -3]), (2, 2, 2)), np.float32(9))
    assert RandomCrop(gym.spaces.Box(low, 9), height=2, width=2).observation_space == expected


def test_a_stream_goes_on_where_its_state_was_taken():
    first, second = seeded(3, pad=2), seeded(4, pad=2)
    first.transform(images(5))
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert np.array_equal(first.transform(images(9)), second.transform(images(9)))
    assert np.array_equal(seeded(7, pad=2).transform(images(9)), seeded(7, pad=2).transform(images(9)))
    with pytest.raises(CheckpointError, match=r"RandomCrop\.set_state"):
        first.set_state({"weights": 0})


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="pad=4 to shift images"):
        RandomCrop()
    with pytest.raises(ConfigError, match=r"RandomCrop\.height"):
        RandomCrop(height=0)
    with pytest.raises(ColumnError, match=r"at least 9 by 6 pixels"):
        RandomCrop(height=9, pad=4).transform(images(2))


@pytest.mark.parametrize("shape", [(0, 4, 4, 1), (0, 2, 4, 4, 1), (2, 0, 4, 4, 1)])
def test_no_images_stay_none(shape):
    assert RandomCrop(pad=1).transform(np.zeros(shape)).shape == shape
    assert RandomCrop(height=3, width=2).transform(np.zeros(shape)).shape == (*shape[:-3], 3, 2, 1)
