"""The contract and the batch helpers that ported pieces use."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.core.errors import BatchLayoutError, EpibatchError, PieceError
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import Lab


class Identity(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        return batch


class Widened(ConnectorV2):
    """Doubles the width of the observations; asks the action space for its own."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, factor=2, **kwargs):
        self.factor = factor
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        width = input_observation_space.shape[0] * self.factor
        return gym.spaces.Box(-1, 1, (width,), np.float32)

    def recompute_output_action_space(self, input_observation_space, input_action_space):
        return gym.spaces.Discrete(int(input_action_space.n) + 1)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        return batch


def test_spaces_pass_through_by_default():
    box, discrete = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    piece = Identity(box, discrete)
    assert (piece.observation_space, piece.action_space) == (box, discrete)
    assert (piece.input_observation_space, piece.input_action_space) == (box, discrete)
    assert Identity().observation_space is None


def test_output_spaces_are_recomputed_when_the_inputs_are_set():
    piece = Widened(factor=3)
    assert piece.observation_space is None
    piece.input_action_space = gym.spaces.Discrete(2)
    piece.input_observation_space = gym.spaces.Box(-1, 1, (4,))
    assert piece.observation_space.shape == (12,)
    assert piece.action_space == gym.spaces.Discrete(3)
    piece.input_observation_space = gym.spaces.Box(-1, 1, (5,))
    assert piece.observation_space.shape == (15,)


def test_spaces_given_to_the_constructor_are_recomputed_too():
    piece = Widened(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), factor=5)
    assert piece.observation_space.shape == (20,)


def test_a_stateless_piece_has_no_state():
    piece = Identity()
    assert piece.get_state() == {}
    assert piece.merge_states([{}, {}]) == {}
    piece.reset_state()
    piece.set_state({})
    piece.freeze()
    assert piece.get_state() == {}


class OwnInit(Widened):
    def __init__(self, name, *args, **kwargs):
        super().__init__(*args, factor=7, **kwargs)
        self.name = name


class NoInit(OwnInit):
    pass


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        (Identity, (), {}),
        (Widened, (), {"factor": 3}),
        (OwnInit, ("x",), {}),
        (NoInit, ("x",), {}),
        (NoInit, (), {"name": "y"}),
        (Widened, (gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)), {"factor": 3}),
    ],
)
def test_constructor_arguments_are_those_of_the_class_that_was_called(cls, args, kwargs):
    found_args, found_kwargs = cls(*args, **kwargs).get_ctor_args_and_kwargs()
    rebuilt = cls(*found_args, **found_kwargs)
    assert vars(rebuilt).get("name") == vars(cls(*args, **kwargs)).get("name")
    assert vars(rebuilt).get("factor") == vars(cls(*args, **kwargs)).get("factor")
    assert {*found_args, *found_kwargs.values()} >= {*args, *kwargs.values()} if not args[1:] else True


def test_items_are_added_under_the_episodes_key():
    batch = {}
    agent = Lab.episode("own_id", 1, agent_id="agent", module_id="module", multi_agent_episode_id="ma")
    for value, episode in ((1.0, Lab.episode("a", 1)), (2.0, Lab.episode("a", 1)), (3.0, Lab.episode("b", 1))):
        ConnectorV2.add_batch_item(batch, "x", value, episode)
    ConnectorV2.add_batch_item(batch, column="x", item_to_add=4.0, single_agent_episode=agent)
    ConnectorV2.add_batch_item(batch, "y", 1.0)
    ConnectorV2.add_batch_item(batch, "y", 2.0)
    assert batch == {"x": {("a",): [1.0, 2.0], ("b",): [3.0], ("ma", "agent", "module"): [4.0]}, "y": [1.0, 2.0]}


@pytest.mark.parametrize("keyed_first", [True, False])
def test_keyed_and_unkeyed_items_do_not_mix(keyed_first):
    batch = {}
    order = [Lab.episode("a", 1), None] if keyed_first else [None, Lab.episode("a", 1)]
    ConnectorV2.add_batch_item(batch, "x", 1.0, order[0])
    with pytest.raises(EpibatchError, match="'x'"):
        ConnectorV2.add_batch_item(batch, "x", 1.0, order[1])


def test_nothing_is_added_to_a_batch_of_modules():
    batch = {"default_policy": {"obs": [1]}}
    with pytest.raises(ValueError, match="module"):
        ConnectorV2.add_batch_item(batch, "x", 1.0, Lab.episode("a", 1))
    with pytest.raises(ValueError, match="module"):
        ConnectorV2.add_n_batch_items(batch, "x", [1.0], 1, Lab.episode("a", 1))


def test_n_items_are_a_list_or_one_item_with_tagged_leaves():
    a, batch = Lab.episode("a", 1), {}
    ConnectorV2.add_n_batch_items(batch, "list", [1.0, 2.0], 2, a)
    ConnectorV2.add_n_batch_items(
        batch, column="array", items_to_add=np.zeros((2, 3)), num_items=2, single_agent_episode=a
    )
    ConnectorV2.add_n_batch_items(batch, "struct", {"u": np.zeros(2), "v": (np.ones((2, 3)),)}, 2, a)
    assert batch["list"] == {("a",): [1.0, 2.0]}
    (array,), (struct,) = batch["array"]["a",], batch["struct"]["a",]
    assert array.shape == (2, 3) and struct["u"].shape == (2,)
    assert all(isinstance(own, BatchedNdArray) for own in (array, struct["u"], struct["v"][0]))


@pytest.mark.parametrize(
    "items", [[1.0], [1.0, 2.0, 3.0], np.zeros(1), np.zeros((3, 2)), {"u": np.zeros(2), "v": np.zeros(3)}]
)
def test_the_number_of_items_is_checked(items):
    with pytest.raises(ValueError, match="'x'"):
        ConnectorV2.add_n_batch_items({}, "x", items, 2, Lab.episode("a", 1))


def test_foreach_item_of_one_column():
    batch = {"x": {("a",): [1, 2], ("ma", "agent", "module"): [3]}, "y": {("a",): [0, 0]}}
    calls = []

    def function(item, eps_id, agent_id, module_id):
        calls.append((item, eps_id, agent_id, module_id))
        return item * 10

    assert ConnectorV2.foreach_batch_item_change_in_place(batch, "x", function) is None
    assert batch["x"] == {("a",): [10, 20], ("ma", "agent", "module"): [30]}
    assert batch["y"] == {("a",): [0, 0]}
    assert calls == [(1, "a", None, None), (2, "a", None, None), (3, "ma", "agent", "module")]


def test_foreach_item_of_several_columns_and_of_an_unkeyed_one():
    batch = {"x": {("a",): [1, 2]}, "y": {("a",): [3, 4]}, "z": [1, 2]}
    ConnectorV2.foreach_batch_item_change_in_place(batch, ["x", "y"], lambda items, *ids: (items[1], items[0]))
    ConnectorV2.foreach_batch_item_change_in_place(batch, "z", lambda item, *ids: item + 1)
    assert batch == {"x": {("a",): [3, 4]}, "y": {("a",): [1, 2]}, "z": [2, 3]}


@pytest.mark.parametrize("column", ["z", ["x", "z"]])
def test_foreach_item_of_an_absent_column_is_an_error(column):
    with pytest.raises(ValueError, match="'z'"):
        ConnectorV2.foreach_batch_item_change_in_place({"x": {("a",): [1]}}, column, lambda item, *ids: item)


def test_columns_and_modules_are_switched():
    batch = {"obs": {"m1": 1, "m2": 2}, "actions": {"m1": 3}}
    assert ConnectorV2.switch_batch_from_column_to_module_ids(batch) == {
        "m1": {"obs": 1, "actions": 3},
        "m2": {"obs": 2},
    }


@pytest.mark.parametrize("column", [{("a",): [1], ("b",): [2]}, {("b",): [2], ("a",): [1]}])
def test_iterating_over_episodes_and_items(column):
    episodes = [Lab.episode("a", 1), Lab.episode("b", 1)]
    for stepped in (True, False):
        assert list(ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=stepped)) == episodes
    pairs = list(ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=column))
    assert pairs == [(episodes[0], 1), (episodes[1], 2)]


@pytest.mark.parametrize("column", [{("a",): [1]}, {("a",): [1], ("c",): [2]}])
def test_a_column_that_does_not_fit_the_episodes_is_an_error(column):
    episodes = [Lab.episode("a", 1), Lab.episode("b", 1)]
    with pytest.raises(ValueError, match="'b'"):
        list(ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=column))


def test_helpers_inside_a_pipeline_use_the_keys_of_the_call(lab):
    def add(batch, episodes):
        for i, episode in enumerate(episodes):
            ConnectorV2.add_batch_item(batch, "x", i, episode)
        pairs = list(ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=batch["x"]))
        assert [item for _, item in pairs] == [0, 1]

    episodes = [lab.episode("a", 1), lab.episode("a", 1, t_started=1, lookback=1)]
    seen = lab.see("learner", [lab.user(add)], episodes)
    assert {key: [int(i) for i in items] for key, items in seen["x"].items()} == {("a_0",): [0], ("a_1",): [1]}


def test_items_of_several_agents_are_added_agent_by_agent():
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations={"x": 0.0})
    with pytest.raises(BatchLayoutError, match=r"id=game[\s\S]*single_agent_episode_iterator"):
        ConnectorV2.add_batch_item({}, "obs", 0.0, episode)
    with pytest.raises(BatchLayoutError, match=r"id=game[\s\S]*single_agent_episode_iterator"):
        ConnectorV2.add_n_batch_items({}, "obs", [0.0], 1, episode)


class Bare(ConnectorV2):
    """Without a constructor of its own."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class PassesOn(Bare):
    """As ported classes do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_a_class_without_a_constructor_of_its_own_takes_no_keywords():
    """Nothing could read them, so one is a mistake; a constructor that passes keywords on may take any."""
    with pytest.raises(PieceError, match=r"(?s)found:    gain.*a constructor of Bare's own"):
        Bare(gain=2)
    assert PassesOn(gain=2).get_ctor_args_and_kwargs() == ((), {"gain": 2})
    assert Bare(None, input_action_space=None, multi_agent=True).get_ctor_args_and_kwargs()[1]["multi_agent"]
