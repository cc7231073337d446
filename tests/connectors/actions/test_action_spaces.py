"""Bins, limits, scales and choices: action spaces that a module has and the environment has not."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import ClipActions, DiscretizeActions, ProjectDiscreteActions, RescaleActions
from epibatch.connectors.columns import CastColumns, SqueezeColumns
from epibatch.connectors.env_to_module import PadActions, PrevActionsPrevRewards, default_pipeline
from epibatch.connectors.module_to_env import CutPaddedActions
from epibatch.connectors.observations import Clip
from epibatch.core.errors import ColumnError, ConfigError, PipelineError, SpaceError
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from fixture_envs import RandomEnv, RecordActions

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete


TORQUE = Box(-2.0, 2.0, (1,), np.float32)


UNEVEN = Box(np.float32([-1, 0, 5]), np.float32([1, 10, 6]))


def applied(piece, method, rows):
    """What a piece makes of rows of actions, there (`transform`) or back (`inverse`)."""
    rows = {key: np.asarray(own) for key, own in rows.items()} if isinstance(rows, dict) else np.asarray(rows)
    return piece.changed(piece.paths[0], rows, getattr(piece, method))


def there(piece, actions):
    return applied(piece, "transform", np.asarray(actions, np.float32))


def back(piece, choices):
    return applied(piece, "inverse", choices)


def number(low, high, bins, choice, value):
    """One entry, by the definition."""
    if value == "edge":
        return low + choice * (high - low) / (bins - 1)
    return low + (choice + {"low": 0, "midpoint": 0.5, "high": 1}[value]) * (high - low) / bins


@pytest.mark.parametrize("value", ["midpoint", "edge", "low", "high"])
@pytest.mark.parametrize("flat", [False, True])
def test_numbers_of_all_choices(value, flat):
    bins = [2, 3, 4]
    piece = DiscretizeActions(None, UNEVEN, bins=bins, value=value, flat=flat)
    assert piece.action_space == (gym.spaces.Discrete(24) if flat else gym.spaces.MultiDiscrete(bins))
    every = list(itertools.product(*map(range, bins)))  # the last one goes round fastest
    expected = [[number(*of) for of in zip(UNEVEN.low, UNEVEN.high, bins, own, [value] * 3)] for own in every]
    found = back(piece, np.arange(24) if flat else every)
    np.testing.assert_allclose(found, expected)
    if value in ("midpoint", "edge"):  # an end belongs to two bins
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


NESTED = gym.spaces.Dict(gear=Discrete(3), steer=TORQUE, throttle=Box(0, 1, (1,)))
UNIT, THREE = Box(-1, 1, (1,)), Discrete(3)


@pytest.mark.parametrize(
    ("piece", "settings", "steer", "throttle", "rows", "expected"),
    [
        (DiscretizeActions, {"bins": 3}, THREE, THREE, ([0, 2], [1, 1]), ([[-4 / 3], [4 / 3]], [[0.5], [0.5]])),
        (RescaleActions, {}, UNIT, UNIT, ([[1.0]], [[0.0]]), ([[2]], [[0.5]])),
        (ClipActions, {"low": -0.5}, Box(-0.5, 2, (1,)), NESTED["throttle"], ([[-1]], [[0.5]]), ([[-0.5]], [[0.5]])),
    ],
)
def test_nested_actions_and_one_of_their_parts(piece, settings, steer, throttle, rows, expected):
    nested = piece(None, NESTED, **settings)
    assert nested.action_space == gym.spaces.Dict(gear=THREE, steer=steer, throttle=throttle)
    found = back(nested, {"gear": [1, 2], "steer": rows[0], "throttle": rows[1]})
    assert found["gear"].tolist() == [1, 2]
    np.testing.assert_allclose(found["steer"], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found["throttle"], expected[1], rtol=1e-6)
    part = piece(None, NESTED, columns="actions/steer", **settings).action_space
    assert part == gym.spaces.Dict({**NESTED.spaces, "steer": steer})


@pytest.mark.parametrize("random_actions", [False, True])
@pytest.mark.parametrize(
    ("pieces", "space", "given"),
    [
        ([DiscretizeActions(bins=5, value="edge")], Discrete(5), lambda stored: stored[:, None] - 2.0),
        ([ClipActions(high=0.75)], Box(-2, 0.75, (1,)), lambda stored: np.clip(stored, -2, 0.75)),
        ([Clip(columns="actions", low=-0.5)], Box(-0.5, 2, (1,)), lambda stored: np.clip(stored, -0.5, 2)),
        ([RescaleActions(low=0.0, high=0.1)], Box(0.0, 0.1, (1,)), lambda stored: -2 + 40 * np.clip(stored, 0, 0.1)),
        ([CastColumns(columns="actions", dtype="float64")], Box(-2, 2, (1,), np.float64), None),
        ([SqueezeColumns(columns="actions", axis=0)], Box(-2, 2, ()), None),
        (
            [ClipActions(low=-0.5, high=1.5), DiscretizeActions(bins=3, value="edge")],
            Discrete(3),
            lambda stored: stored[:, None] - 0.5,
        ),
    ],
    ids=lambda own: "-".join(type(piece).__name__ for piece in own) if isinstance(own, list) else "",
)
def test_episodes_record_the_modules_actions_and_the_environment_gets_its_own(pieces, space, given, random_actions):
    """What RLlib's setting normalize_actions would stretch is not: pieces have the last word."""
    seen, pieces = [], [piece.clone() for piece in pieces]
    bounds = Box(-np.inf, np.inf, (1,)) if len(pieces) == 2 else None
    made = PPOConfig().environment("Pendulum-v1", wrappers=[lambda env: RecordActions(env, seen, bounds)])
    made.env_runners(env_to_module_connector=lambda env, spaces, device: pieces).debugging(seed=0)
    runner = SingleAgentEnvRunner(config=made)
    (episode,) = runner.sample(num_timesteps=20, random_actions=random_actions)
    runner.stop()
    stored = episode.get_actions()
    assert runner.module.action_space == episode.action_space == space
    if random_actions:
        assert stored.dtype == space.dtype and all(space.contains(np.asarray(action)) for action in stored)
    assert seen[0].dtype == np.float32 and seen[0].shape == (1,)
    if given is not None:
        np.testing.assert_allclose(np.stack(seen), given(stored), rtol=1e-4, atol=1e-6)


BIG, HALF = Box(100, 300, (1,), np.float32), Box(np.float32([2, -np.inf]), np.float32([4, 0]))


class Takes(gym.Env):
    """Keeps the actions that it is given."""

    observation_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, action_space, taken):
        self.action_space, self.taken = action_space, taken

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken.append(action)
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "settings", "of_module"),
    [
        (BIG, {}, lambda taken: (taken - 200) / 100),
        (BIG, {"normalize_actions": False, "clip_actions": True}, lambda taken: taken),
        (HALF, {}, lambda taken: np.stack([taken[:, 0] - 3, taken[:, 1]], 1)),
        (Box(5, 5, (2,)), {}, lambda taken: taken * 0 - 1),
        (Box(-3e38, 3e38, (1,)), {}, lambda taken: taken / np.float32(3e38)),
        (Box(3, 9, (2,), np.int64), {}, lambda taken: taken - 3),
        (Box(3, 9, (2,), np.int64), {"normalize_actions": False}, lambda taken: taken - 3),
        (Discrete(3, start=5), {}, lambda taken: taken),
        (gym.spaces.Dict(a=BIG, b=Discrete(2)), {}, None),
    ],
    ids=lambda value: str(value) if isinstance(value, (gym.Space, dict)) else "",
)
def test_random_actions_are_stored_in_the_modules_units(space, settings, of_module):
    """What the pipeline after the module makes of the stored ones is what the environment got: draws of its space."""
    taken: list = []
    config = PPOConfig().environment(lambda: Takes(space, taken), **settings).debugging(seed=0)
    runner = SingleAgentEnvRunner(config=config)
    (episode,) = runner.sample(num_timesteps=12, random_actions=True)
    runner.stop()
    stored = episode.get_actions()
    assert all(space.contains(action) for action in taken) and len(taken) == 12
    if of_module is None:
        taken, stored, of_module = [action["a"] for action in taken], stored["a"], lambda rows: (rows - 200) / 100
    np.testing.assert_allclose(stored, of_module(np.stack(taken)), rtol=1e-5, atol=1e-5)
    assert stored.dtype == np.stack(taken).dtype


def test_random_actions_of_agents_are_stored_in_their_modules_units_and_padded():
    taken: list = []

    class Pair(MultiAgentEnv):
        def __init__(self):
            super().__init__()
            self.possible_agents = ["a", "b"]
            self.observation_spaces = {agent: Box(-1, 1, (1,), np.float32) for agent in "ab"}
            self.action_spaces = {"a": BIG, "b": Box(-4, 4, (2,), np.float32)}

        def reset(self, *, seed=None, options=None):
            return {agent: np.zeros(1, np.float32) for agent in "ab"}, {}

        def step(self, actions):
            taken.append(actions)
            return {agent: np.zeros(1, np.float32) for agent in "ab"}, 1.0, {"__all__": False}, {}, {}

    config = PPOConfig().environment(Pair).multi_agent(policies={"p"}, policy_mapping_fn={"*": "p"}).debugging(seed=0)
    config.env_runners(
        env_to_module_connector=lambda *_: PadActions(), module_to_env_connector=lambda *_: CutPaddedActions()
    )
    runner = MultiAgentEnvRunner(config=config)
    (episode,) = runner.sample(num_timesteps=6, random_actions=True)
    runner.stop()
    stored = episode.get_actions()
    ones, twos = (np.stack([actions[agent] for actions in taken]) for agent in "ab")
    assert all(BIG.contains(one) for one in ones)
    np.testing.assert_allclose(stored["a"], np.concatenate([(ones - 200) / 100, ones * 0], 1), atol=1e-5)
    np.testing.assert_allclose(stored["b"], twos / 4, atol=1e-6)


def test_each_agent_has_its_own_bounds():
    wide, narrow = Box(-2.0, 2.0, (1,)), Box(-1.0, 1.0, (1,))
    several = gym.spaces.Dict(a=wide, b=narrow, c=gym.spaces.Discrete(4))
    piece = DiscretizeActions(None, several, bins=3, value="edge")
    piece.spaces_by_agent = True
    assert piece.action_space == gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Discrete(3), c=several["c"])
    assert [back(piece.parts.of(agent), [0]).tolist() for agent in "abc"] == [[[-2]], [[-1]], [0]]
    rescaled = RescaleActions(None, gym.spaces.Dict(a=wide, c=Discrete(4)))
    rescaled.spaces_by_agent = True
    assert rescaled.action_space == gym.spaces.Dict(a=Box(-1, 1, (1,)), c=Discrete(4))


PLANE = Box(np.float32([-1, 0]), np.float32([1, 10]))


NUMBERS = st.lists(st.tuples(*[st.floats(-20, 20, width=32)] * 2), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(NUMBERS, st.sampled_from([(-0.5, 4.0), (None, 0.5), (0.25, None), (None, None)]))
def test_clipped_actions(rows, limits):
    piece = ClipActions(None, PLANE, low=limits[0], high=limits[1])
    low, high = (one if one is not None else end for one, end in zip(limits, (-np.inf, np.inf)))
    slow = [[min(max(x, low, a), high, b) for x, a, b in zip(row, PLANE.low, PLANE.high)] for row in rows]
    np.testing.assert_array_equal(back(piece, np.float32(rows)), np.float32(slow))
    assert all(PLANE.contains(row) and piece.action_space.contains(row) for row in back(piece, np.float32(rows)))


@settings(max_examples=40, deadline=None)
@given(NUMBERS, st.sampled_from([(-1.0, 1.0), (0.0, 4.0)]))
def test_rescaled_actions(rows, bounds):
    piece = RescaleActions(None, PLANE, low=bounds[0], high=bounds[1])
    assert piece.action_space == Box(*bounds, (2,))
    found = back(piece, np.float32(rows))
    for row, own in zip(rows, found):
        part = [(min(max(x, bounds[0]), bounds[1]) - bounds[0]) / (bounds[1] - bounds[0]) for x in row]
        np.testing.assert_allclose(own, [-1 + 2 * part[0], 10 * part[1]], rtol=1e-5, atol=1e-5)
        assert PLANE.contains(own)
    np.testing.assert_allclose(there(piece, found), np.clip(rows, *bounds), atol=1e-5)


def test_without_limits_the_bounds_are_the_environments():
    rows = np.float32([[-30, -30], [0.5, 0.5], [30, 30]])
    for space in (PLANE, Box(np.float32([-np.inf, 0]), np.float32([1, np.inf]))):
        piece = ClipActions(None, space)
        assert piece.action_space == space
        np.testing.assert_array_equal(back(piece, rows), np.clip(rows, space.low, space.high))


@pytest.mark.parametrize(("outside", "expected"), [("modulo", [5, 6, 7, 5, 6, 7, 5]), ("last", [5, 6, 7, 7, 7, 7, 7])])
def test_what_becomes_of_each_choice(outside, expected):
    piece = ProjectDiscreteActions(None, Discrete(3, start=5), num_actions=7, outside=outside)
    assert piece.action_space == Discrete(7)
    assert back(piece, range(7)).tolist() == expected
    own = applied(piece, "transform", [5, 6, 7])
    assert own.tolist() == [0, 1, 2] and back(piece, own).tolist() == [5, 6, 7]


def test_random_actions_are_all_alike_and_legal_choices_stay():
    piece = ProjectDiscreteActions(None, Discrete(4), num_actions=6, outside="random")
    piece.seed(1)
    drawn = back(piece, np.tile(np.arange(6), 4000)).reshape(4000, 6)
    assert (drawn[:, :4] == np.arange(4)).all()
    np.testing.assert_allclose(np.bincount(drawn[:, 4:].ravel()) / 8000, [0.25] * 4, atol=0.02)
    again = ProjectDiscreteActions(None, Discrete(4), num_actions=6, outside="random")
    again.set_state(piece.get_state())
    assert (back(again, [5] * 20) == back(piece, [5] * 20)).all()


@pytest.mark.parametrize("outside", ["modulo", "last", "random"])
def test_no_illegal_choice_reaches_the_environment(outside):
    made = PPOConfig().environment(lambda _: RandomEnv(action_space=Discrete(2, start=3))).debugging(seed=0)
    piece = ProjectDiscreteActions(num_actions=9, outside=outside)
    made = made.env_runners(num_envs_per_env_runner=4, env_to_module_connector=lambda env, spaces, device: piece)
    runner = SingleAgentEnvRunner(config=made)
    stored = [episode.get_actions() for episode in runner.sample(num_timesteps=400)]
    assert set(np.concatenate(stored).tolist()) == set(range(9))
    drawn = [episode.get_actions() for episode in runner.sample(num_timesteps=80, random_actions=True)]
    assert set(np.concatenate(drawn).tolist()) == {0, 1}
    runner.stop()


def test_previous_actions_before_it_are_refused_when_the_pipeline_is_built():
    """Episodes hold what the module chose, so PrevActionsPrevRewards has to see the larger space."""
    spaces = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3)
    pieces = [ProjectDiscreteActions(num_actions=5), PrevActionsPrevRewards()]
    pipeline = default_pipeline(*spaces, connectors=pieces)
    episode = SingleAgentEpisode(observation_space=spaces[0], action_space=pipeline.action_space)
    episode.add_env_reset(np.zeros(2, np.float32))
    episode.add_env_step(np.zeros(2, np.float32), 4, 1.0)
    batch = pipeline(rl_module=None, batch={}, episodes=[episode], shared_data={})
    assert batch["obs"]["prev_n_actions"].tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]]
    with pytest.raises(PipelineError, match=r"Discrete\(5\)\n  found: +Discrete\(3\).*\n.*before PrevActions"):
        default_pipeline(*spaces, connectors=[PrevActionsPrevRewards(), ProjectDiscreteActions(num_actions=5)])
    with pytest.raises(PipelineError, match="before PrevActions"):
        pipeline.insert_after(PrevActionsPrevRewards, ProjectDiscreteActions(num_actions=7))
    assert len(pipeline) == 7  # as before
    for piece, number in ((PrevActionsPrevRewards(n_prev_actions=0), 5), (PrevActionsPrevRewards(), 3)):
        default_pipeline(*spaces, connectors=[piece, ProjectDiscreteActions(num_actions=number)])


def nan_of(flat, shape):
    actions = np.zeros((3, *shape), np.float32)
    actions[1, 0] = np.nan
    return there(DiscretizeActions(None, Box(-1.0, 1.0, shape), flat=flat), actions)


def space_of(piece, space, **keywords):
    return piece(None, space, **keywords).action_space


NO_BIN = r"each of which lies in a bin[\s\S]*NaN in row 1: \[nan"
OPEN = Box(-np.inf, 1, (1,))


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: DiscretizeActions(bins=0), ConfigError, "at least 1"),
        (lambda: DiscretizeActions(bins=1, value="edge"), ConfigError, "at least 2"),
        (lambda: DiscretizeActions(bins=[3, True]), ConfigError, "whole number"),
        (lambda: DiscretizeActions(bins="5"), ConfigError, "whole number"),
        (lambda: DiscretizeActions(value="middle"), ConfigError, "midpoint"),
        (lambda: space_of(DiscretizeActions, UNEVEN, bins=[3, 3]), ConfigError, "3 numbers, one for each entry"),
        (lambda: space_of(DiscretizeActions, Discrete(3)), SpaceError, "choices already"),
        (lambda: space_of(DiscretizeActions, OPEN), SpaceError, "ClipActions"),
        (lambda: space_of(DiscretizeActions, UNEVEN, bins=200, flat=True), SpaceError, "leave flat out"),
        *((lambda own=own: nan_of(*own), ColumnError, NO_BIN) for own in ((True, (2,)), (False, (2,)), (False, (1,)))),
        (lambda: space_of(ClipActions, Box(-np.inf, np.inf, (1,))), SpaceError, r"ClipActions\(low=-1.0"),
        (lambda: ClipActions(low=1.0, high=-1.0), ConfigError, "low below high"),
        (lambda: space_of(ClipActions, Box(0, 1, (1,)), low=2.0), SpaceError, "between the bounds"),
        (lambda: space_of(ClipActions, Discrete(3), low=0.0), SpaceError, "choices already"),
        (lambda: ClipActions(low=0.0).transform(np.zeros((1, 1))), SpaceError, r"ClipActions\(None, action_space"),
        (lambda: RescaleActions(low=1.0, high=1.0), ConfigError, "two finite numbers"),
        (lambda: RescaleActions(high=float("inf")), ConfigError, "two finite numbers"),
        (lambda: space_of(RescaleActions, OPEN), SpaceError, "put ClipActions"),
        (lambda: space_of(RescaleActions, Discrete(3)), SpaceError, "a float Box among"),
        (lambda: space_of(RescaleActions, NESTED, columns="actions/gear"), SpaceError, "a float Box among"),
        (lambda: ProjectDiscreteActions(num_actions=0), ConfigError, "at least 1"),
        (lambda: space_of(ProjectDiscreteActions, Discrete(3), num_actions=2), SpaceError, "num_actions=3 or more"),
        (lambda: space_of(ProjectDiscreteActions, TORQUE, num_actions=2), SpaceError, "columns='actions/gear'"),
        (lambda: ProjectDiscreteActions(num_actions=3).inverse(np.array([1])), SpaceError, "the environment's action"),
    ],
)  # fmt: skip
def test_mistakes_are_named(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()
