"""Other bounds for continuous actions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import ClipActions, DiscretizeActions, RescaleActions
from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.testing import check_connector

Box = gym.spaces.Box
UNEVEN = Box(np.float32([-1, 0]), np.float32([1, 10]))
NUMBERS = st.lists(st.tuples(*[st.floats(-20, 20, width=32)] * 2), min_size=1, max_size=5)


def applied(piece, method, rows):
    return piece.changed(piece.paths[0], np.asarray(rows, np.float32), getattr(piece, method))


@settings(max_examples=40, deadline=None)
@given(NUMBERS, st.sampled_from([(-0.5, 4.0), (None, 0.5), (0.25, None), (None, None)]))
def test_clipped_actions(rows, limits):
    piece = ClipActions(None, UNEVEN, low=limits[0], high=limits[1])
    low, high = (one if one is not None else end for one, end in zip(limits, (-np.inf, np.inf)))
    slow = [[min(max(x, low, a), high, b) for x, a, b in zip(row, UNEVEN.low, UNEVEN.high)] for row in rows]
    np.testing.assert_array_equal(applied(piece, "inverse", rows), np.float32(slow))
    assert all(UNEVEN.contains(row) and piece.action_space.contains(row) for row in applied(piece, "inverse", rows))


@settings(max_examples=40, deadline=None)
@given(NUMBERS, st.sampled_from([(-1.0, 1.0), (0.0, 4.0)]))
def test_rescaled_actions(rows, bounds):
    piece = RescaleActions(None, UNEVEN, low=bounds[0], high=bounds[1])
    assert piece.action_space == Box(*bounds, (2,))
    found = applied(piece, "inverse", rows)
    for row, own in zip(rows, found):
        part = [(min(max(x, bounds[0]), bounds[1]) - bounds[0]) / (bounds[1] - bounds[0]) for x in row]
        np.testing.assert_allclose(own, [-1 + 2 * part[0], 10 * part[1]], rtol=1e-5, atol=1e-5)
        assert UNEVEN.contains(own)
    np.testing.assert_allclose(applied(piece, "transform", found), np.clip(rows, *bounds), atol=1e-5)


def test_without_limits_the_bounds_are_the_environments_as_in_gymnasiums_wrapper():
    half = Box(np.float32([-np.inf, 0]), np.float32([1, np.inf]))
    for space in (UNEVEN, half):
        piece = ClipActions(None, space)
        assert piece.action_space == space
        rows = np.float32([[-30, -30], [0.5, 0.5], [30, 30]])

        class Env(gym.Env):
            action_space = space
            observation_space = Box(-1, 1, (2,))

            def step(self, action):
                return action, 0.0, False, False, {}

        wrapped = gym.wrappers.ClipAction(Env())
        expected = [wrapped.step(row)[0].tolist() for row in rows]
        assert applied(piece, "inverse", rows).tolist() == expected


def test_an_entry_with_one_value():
    piece = RescaleActions(None, Box(np.float32([2, 0]), np.float32([2, 1])))
    assert applied(piece, "inverse", [[-1, 1]]).tolist() == [[2, 1]]
    assert applied(piece, "transform", [[2, 1]]).tolist() == [[-1, 1]]


class Notes(gym.Wrapper):
    """Notes the actions that reach the environment."""

    seen: list

    def step(self, action):
        type(self).seen.append(np.array(action))
        return super().step(action)


class Watched(gym.Wrapper):
    """Notes the actions that reach the environment, which has no bounds."""

    seen: list

    def __init__(self, env):
        super().__init__(env)
        self.action_space = Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action):
        type(self).seen.append(np.array(action))
        return super().step(action)


def test_actions_without_bounds_get_some():
    Watched.seen = []
    pieces = [ClipActions(low=-0.5, high=1.5), DiscretizeActions(bins=3, value="edge")]
    made = PPOConfig().environment("Pendulum-v1", wrappers=[Watched]).debugging(seed=0)
    runner = SingleAgentEnvRunner(config=made.env_runners(env_to_module_connector=lambda env, spaces, device: pieces))
    runner.sample(num_timesteps=30)
    assert {float(one[0]) for one in Watched.seen} == {-0.5, 0.5, 1.5}
    assert runner.module.action_space == gym.spaces.Discrete(3)
    runner.stop()


def test_clipped_actions_are_not_stretched_whatever_the_settings_say():
    Notes.seen = []
    made = PPOConfig().environment("Pendulum-v1", wrappers=[Notes]).debugging(seed=0)
    runner = SingleAgentEnvRunner(config=made.env_runners(env_to_module_connector=lambda *_: ClipActions(high=0.75)))
    (episode,) = runner.sample(num_timesteps=30)
    assert made.normalize_actions and runner.module.action_space == Box(-2, 0.75, (1,))
    stored = episode.get_actions()
    assert stored.max() > 0.75
    np.testing.assert_array_equal(np.stack(Notes.seen), np.clip(stored, np.float32(-2), np.float32(0.75)))
    runner.stop()


@pytest.mark.parametrize("random_actions", [False, True])
def test_the_module_s_actions_are_stored_and_the_environment_gets_its_own(random_actions):
    made = PPOConfig().environment("Pendulum-v1").debugging(seed=0)
    piece = RescaleActions(low=0.0, high=0.1)
    made = made.env_runners(env_to_module_connector=lambda env, spaces, device: piece)
    runner = SingleAgentEnvRunner(config=made)
    (episode,) = runner.sample(num_timesteps=20, random_actions=random_actions)
    assert episode.action_space == Box(0.0, 0.1, (1,))
    if random_actions:
        assert all(episode.action_space.contains(action) for action in episode.get_actions())
    runner.stop()


def test_parts_of_nested_actions():
    space = gym.spaces.Dict(gear=gym.spaces.Discrete(3), steer=Box(-2, 2, (1,)), throttle=Box(0, 1, (1,)))
    clipped = ClipActions(None, space, low=-0.5, columns="actions/steer").action_space
    assert clipped == gym.spaces.Dict(gear=space["gear"], steer=Box(-0.5, 2, (1,)), throttle=space["throttle"])
    rescaled = RescaleActions(None, space)
    assert rescaled.action_space["gear"] == space["gear"]
    rows = {"gear": np.array([2]), "steer": np.float32([[1]]), "throttle": np.float32([[0]])}
    found = rescaled.changed(rescaled.paths[0], rows, rescaled.inverse)
    assert {key: own.tolist() for key, own in found.items()} == {"gear": [2], "steer": [[2]], "throttle": [[0.5]]}


NESTED = gym.spaces.Dict(gear=gym.spaces.Discrete(3), steer=Box(-2, 2, (1,)))


def test_of_several_agents_one_is_to_have_continuous_actions():
    def transformed(**agents):
        piece = RescaleActions(None, gym.spaces.Dict(agents))
        piece.spaces_by_agent = True
        return piece.action_space

    box, choice = Box(-2, 2, (1,)), gym.spaces.Discrete(3)
    assert transformed(a=box, b=choice) == gym.spaces.Dict(a=Box(-1, 1, (1,)), b=choice)
    with pytest.raises(SpaceError, match="choices already"):
        transformed(a=choice, b=choice)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ClipActions(None, Box(-np.inf, np.inf, (1,))).action_space, SpaceError, r"ClipActions\(low=-1.0"),
        (lambda: ClipActions(low=1.0, high=-1.0), ConfigError, "low below high"),
        (lambda: ClipActions(None, Box(0, 1, (1,)), low=2.0).action_space, SpaceError, "between the bounds"),
        (lambda: RescaleActions(low=1.0, high=1.0), ConfigError, "two finite numbers"),
        (lambda: RescaleActions(high=float("inf")), ConfigError, "two finite numbers"),
        (lambda: RescaleActions(None, Box(-np.inf, 1, (1,))).action_space, SpaceError, "put ClipActions"),
        (lambda: ClipActions(None, gym.spaces.Discrete(3), low=0.0).action_space, SpaceError, "choices already"),
        (lambda: RescaleActions(None, gym.spaces.Discrete(3)).action_space, SpaceError, "a float Box among"),
        (lambda: RescaleActions(None, NESTED, columns="actions/gear").action_space, SpaceError, "a float Box among"),
        (lambda: ClipActions(low=0.0).transform(np.zeros((1, 1))), SpaceError, r"ClipActions\(None, action_space"),
    ],
)
def test_what_cannot_be_meant_is_named(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize("piece", [ClipActions(high=0.5), RescaleActions(low=-2.0)], ids=repr)
def test_as_data_and_by_contract(piece):
    assert build_piece(piece_to_dict(piece)) == piece
    spaces, skip = (
        (Box(-1, 1, (3,)), Box(-2, 2, (2,))),
        {"writes": "actions are there only behind a module"},
    )
    check_connector(piece, sides="env_to_module", spaces=spaces, skip=skip)
