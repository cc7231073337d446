"""Bins of continuous actions, among which a module chooses."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import DiscretizeActions
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent
from epibatch.testing import check_connector

Box = gym.spaces.Box
TORQUE = Box(-2.0, 2.0, (1,), np.float32)
UNEVEN = Box(np.float32([-1, 0, 5]), np.float32([1, 10, 6]))


def there(piece, actions):
    return piece.changed(piece.paths[0], np.asarray(actions, np.float32), piece.transform)


def back(piece, choices):
    return piece.changed(piece.paths[0], np.asarray(choices), piece.inverse)


def number(low, high, bins, choice, value):
    """One entry, by the definition."""
    if value == "edge":
        return low + choice * (high - low) / (bins - 1)
    return low + (choice + 0.5) * (high - low) / bins


@pytest.mark.parametrize("value", ["midpoint", "edge"])
@pytest.mark.parametrize("flat", [False, True])
def test_numbers_of_all_choices(value, flat):
    bins = [2, 3, 4]
    piece = DiscretizeActions(None, UNEVEN, bins=bins, value=value, flat=flat)
    assert piece.action_space == (gym.spaces.Discrete(24) if flat else gym.spaces.MultiDiscrete(bins))
    every = list(itertools.product(*map(range, bins)))  # the last one goes round fastest
    expected = [[number(*of) for of in zip(UNEVEN.low, UNEVEN.high, bins, own, [value] * 3)] for own in every]
    found = back(piece, np.arange(24) if flat else every)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_array_equal(there(piece, found), np.arange(24) if flat else every)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6),
    st.sampled_from(["midpoint", "edge", "random"]),
)
def test_a_number_lies_in_its_bin(bins, actions, value):
    bins = bins + (value == "edge")
    piece = DiscretizeActions(None, TORQUE, bins=bins, value=value)
    piece.seed(3)
    rows = np.float32(actions)[:, None]
    chosen = there(piece, rows)
    assert chosen.dtype == np.int64 and chosen.shape == (len(rows),)
    width = 4 / (bins - 1 if value == "edge" else bins)
    assert np.all(np.abs(back(piece, chosen) - rows) <= width * (1 if value == "random" else 0.5) + 1e-6)
    if value != "edge":
        slow = [min(sum(row[0] >= -2 + 4 * i / bins for i in range(1, bins)), bins - 1) for row in rows.astype(float)]
        assert np.abs(chosen - slow).max() <= 1  # a number on an edge belongs to either
        inside = [i for i, row in enumerate(rows) if not np.isclose((row[0] + 2) / width % 1, [0, 1], atol=1e-5).any()]
        np.testing.assert_array_equal(chosen[inside], np.array(slow)[inside])


def test_random_numbers_are_spread_over_the_bin():
    piece = DiscretizeActions(None, TORQUE, bins=4, value="random")
    piece.seed(0)
    drawn = back(piece, np.full(4000, 1)).ravel()
    assert drawn.min() >= -1 and drawn.max() <= 0
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [-0.5, 1 / 12**0.5], atol=0.02)
    again = DiscretizeActions(None, TORQUE, bins=4, value="random")
    again.set_state(piece.get_state())
    np.testing.assert_array_equal(back(again, [0, 1, 2]), back(piece, [0, 1, 2]))


def test_one_entry_is_a_single_choice_and_shapes_stay():
    assert DiscretizeActions(None, TORQUE).action_space == gym.spaces.Discrete(11)
    assert DiscretizeActions(None, Box(0, 1, ())).action_space == gym.spaces.Discrete(11)
    piece = DiscretizeActions(None, Box(0, 1, (2, 2)), bins=2, value="edge")
    assert piece.action_space == gym.spaces.MultiDiscrete([[2, 2], [2, 2]])
    assert back(piece, [[[0, 1], [1, 0]]]).tolist() == [[[0, 1], [1, 0]]]
    assert back(DiscretizeActions(None, Box(3, 3, (1,)), bins=2), [0, 1]).tolist() == [[3], [3]]


def test_nested_actions_and_some_of_their_parts():
    space = gym.spaces.Dict(gear=gym.spaces.Discrete(3), steer=TORQUE, throttle=Box(0, 1, (1,)))
    whole = DiscretizeActions(None, space, bins=3)
    assert whole.action_space["gear"] == gym.spaces.Discrete(3) == whole.action_space["throttle"]
    found = back_nested(whole, {"gear": [1, 2], "steer": [0, 2], "throttle": [1, 1]})
    assert found["gear"].tolist() == [1, 2]
    np.testing.assert_allclose(found["steer"], [[-4 / 3], [4 / 3]])
    np.testing.assert_allclose(found["throttle"], [[0.5], [0.5]])
    part = DiscretizeActions(None, space, bins=3, columns="actions/steer")
    assert part.action_space["throttle"] == Box(0, 1, (1,)) and part.action_space["steer"] == gym.spaces.Discrete(3)


def back_nested(piece, choices):
    rows = {key: np.array(own) for key, own in choices.items()}
    return piece.changed(piece.paths[0], rows, piece.inverse)


class Watched(gym.Wrapper):
    """Notes the actions that reach the environment."""

    seen: list

    def step(self, action):
        type(self).seen.append(np.array(action))
        return super().step(action)


def config(piece, env="Pendulum-v1", **environment):
    small = {"train_batch_size": 32, "minibatch_size": 32, "num_epochs": 1}
    made = PPOConfig().environment(env, **environment).training(**small).debugging(seed=0)
    return made.env_runners(num_envs_per_env_runner=2, env_to_module_connector=lambda env, spaces, device: piece())


@pytest.mark.parametrize("random_actions", [False, True])
def test_episodes_record_choices_and_the_environment_gets_their_numbers(random_actions):
    Watched.seen = []
    made = config(lambda: DiscretizeActions(bins=5, value="edge"), wrappers=[Watched])
    runner = SingleAgentEnvRunner(config=made)
    episodes = runner.sample(num_timesteps=20, random_actions=random_actions)
    stored = np.stack([episode.get_actions() for episode in episodes], 1).ravel()
    np.testing.assert_allclose(np.concatenate(Watched.seen), stored - 2.0)
    assert Watched.seen[0].dtype == np.float32 and len(set(stored)) > 1
    runner.stop()


@pytest.mark.parametrize(("flat", "space"), [(True, gym.spaces.Discrete(81)), (False, None)])
def test_training_on_several_entries(flat, space):
    class Four(gym.Wrapper):
        """Four torques that are added up."""

        def __init__(self, env):
            super().__init__(env)
            self.action_space = Box(-0.5, 0.5, (4,))

        def step(self, action):
            assert self.action_space.contains(action)
            return super().step(action.sum(keepdims=True))

    algo = config(lambda: DiscretizeActions(bins=3, flat=flat), wrappers=[Four]).build_algo()
    algo.train()
    assert algo.get_module().action_space == (space or gym.spaces.MultiDiscrete([3] * 4))
    assert algo.act(np.zeros(3, np.float32))[0].shape == (4,)
    algo.stop()


def test_each_agent_has_its_own_bounds():
    wide, narrow = Box(-2.0, 2.0, (1,)), Box(-1.0, 1.0, (1,))
    made = config(lambda: DiscretizeActions(bins=3, value="edge"), make_multi_agent("Pendulum-v1"))
    made = made.environment(env_config={"num_agents": 2})
    runner = MultiAgentEnvRunner(config=made.multi_agent(policies={"p"}, policy_mapping_fn=lambda *_, **__: "p"))
    for episode in runner.sample(num_timesteps=6):
        for part in episode.agent_episodes.values():
            assert set(part.get_actions().tolist()) <= {0, 1, 2} and part.action_space == gym.spaces.Discrete(3)
    runner.stop()
    several = gym.spaces.Dict(a=wide, b=narrow, c=gym.spaces.Discrete(4))
    piece = DiscretizeActions(None, several, bins=3, value="edge")
    piece.spaces_by_agent = True
    assert piece.action_space == gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Discrete(3), c=several["c"])
    assert [back(piece.parts.of(agent), [0]).tolist() for agent in "abc"] == [[[-2]], [[-1]], [0]]


@pytest.mark.parametrize(
    ("keywords", "space", "error", "said"),
    [
        ({"bins": 0}, None, ConfigError, "at least 1"),
        ({"bins": 1, "value": "edge"}, None, ConfigError, "at least 2"),
        ({"bins": [3, True]}, None, ConfigError, "whole number"),
        ({"bins": "5"}, None, ConfigError, "whole number"),
        ({"value": "middle"}, None, ConfigError, "midpoint"),
        ({"bins": [3, 3]}, UNEVEN, ConfigError, "3 numbers, one for each entry"),
        ({}, gym.spaces.Discrete(3), SpaceError, "choices already"),
        ({}, Box(-np.inf, 1, (1,)), SpaceError, "ClipActions"),
        ({"bins": 200, "flat": True}, UNEVEN, SpaceError, "leave flat out"),
    ],
)
def test_what_cannot_be_meant_is_named(keywords, space, error, said):
    with pytest.raises(error, match=said):
        DiscretizeActions(None, space, **keywords).action_space  # noqa: B018


@pytest.mark.parametrize("keywords", [{}, {"bins": [3, 4], "flat": True}, {"value": "random", "bins": 2}])
def test_as_data_and_by_contract(keywords):
    piece = DiscretizeActions(**keywords)
    assert build_piece(piece_to_dict(piece)) == piece
    spaces, skip = (
        (Box(-1, 1, (3,)), Box(-2, 2, (2,))),
        {"writes": "actions are there only behind a module"},
    )
    check_connector(piece, sides="env_to_module", spaces=spaces, skip=skip)


@pytest.mark.parametrize(("flat", "shape"), [(True, (2,)), (False, (2,)), (False, (1,))])
def test_actions_that_are_no_numbers_lie_in_no_bin(flat, shape):
    piece = DiscretizeActions(None, Box(-1.0, 1.0, shape), flat=flat)
    actions = np.zeros((3, *shape), np.float32)
    actions[1, 0] = np.nan
    with pytest.raises(ColumnError, match=r"each of which lies in a bin[\s\S]*NaN in row 1: \[nan"):
        piece.changed(piece.paths[0], actions, piece.transform)
