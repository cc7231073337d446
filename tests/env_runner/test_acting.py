"""From a batch to actions, of one agent and of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.views import View
from epibatch.core.errors import ColumnError
from epibatch.env_runner.acting import ToAct, act, act_for_agents, check_actions, copied_actions, forward, spread
from epibatch.episodes import MultiAgentEpisode


class Doubles:
    """A module that doubles its observations, and says how it was asked."""

    def forward_exploration(self, batch, t):
        return {"actions": 2 * batch["obs"], "asked": f"explore at {t}"}

    def forward_inference(self, batch):
        return {"actions": 2 * batch["obs"], "asked": "infer"}


@pytest.mark.parametrize(("explore", "asked"), [(True, "explore at 7"), (False, "infer")])
def test_the_forward_pass_that_fits(explore, asked):
    def pipeline(*, rl_module, batch, episodes, explore, shared_data):
        shared_data["seen"] = (len(episodes), explore)
        return batch

    shared = {}
    columns = act(Doubles(), pipeline, {"obs": np.arange(2)}, [1, 2], explore=explore, t=7, shared_data=shared)
    assert columns["actions"].tolist() == [0, 2] and columns["asked"] == asked
    assert shared["seen"] == (2, explore)


class Looks(Doubles):
    """Looks something up."""

    view_requirements: ClassVar = {"next_obs": View("obs", shift=1)}

    def __init__(self, look):
        self.look = look

    def forward_inference(self, batch):
        return self.look(batch)


def test_an_error_names_module_and_shapes():
    batch = {"other": np.zeros((2, 3)), "nested": {"x": np.zeros(1)}}
    table = {"a": 1}
    for look, error in [(lambda: table["b"], KeyError), (lambda: {}[3], KeyError), (lambda: len(3), TypeError)]:
        module = Looks(lambda batch, look=look: look())
        with pytest.raises(error) as raised:
            forward(module, batch, explore=False, t=0)
        assert type(raised.value) is error
        said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
        assert "Looks's forward pass, with other [2, 3], nested {'x': [1]}" in said


@pytest.mark.parametrize("look", [lambda batch: batch["next_obs"], lambda batch: dict(batch)["next_obs"]])
def test_a_column_that_is_not_there_while_acting_comes_with_those_that_are(look):
    said = noted(Looks(look), {"obs": np.zeros(2)})
    assert "no column 'next_obs' at this place. Its columns: obs. Read what" in said
    assert "_forward_train only" in said
    several = {"left": {"obs": np.zeros(2)}, "right": {"obs": np.zeros(2), "actions": np.zeros(2)}}
    assert "Its columns: left/obs, right/obs, right/actions." in noted(ModulesOf(Looks(look)), several)


def noted(module, batch):
    with pytest.raises(KeyError) as raised:
        forward(module, batch, explore=False, t=0)
    return " ".join(raised.value.__notes__)


class ModulesOf(dict):
    """One module for all."""

    def __init__(self, module):
        super().__init__(left=module, right=module)

    def forward_inference(self, batch):
        return {module_id: self[module_id].look(own) for module_id, own in batch.items()}


@pytest.mark.parametrize(
    ("columns", "found"),
    [({}, "none"), ({"actions": np.zeros(3)}, r"\[3\]"), ({"actions": {"a": np.zeros(2), "b": np.float32(1)}}, "one")],
)
def test_actions_are_one_per_environment(columns, found):
    with pytest.raises(ColumnError, match=rf"2 rows, one per environment[\s\S]*{found}"):
        check_actions(columns, 2)
    check_actions({"actions": (np.zeros(2), np.zeros((2, 4)))}, 2)


def test_a_module_like_thing_is_enough():
    module = SimpleNamespace(forward_inference=lambda batch: {"actions": batch["obs"]})
    assert forward(module, {"obs": np.ones(1)}, explore=False, t=0)["actions"].tolist() == [1.0]


DISCRETE = gym.spaces.Discrete(2)
SHIFTED = gym.spaces.Discrete(3, start=5)
MANY = gym.spaces.MultiDiscrete([2, 4])
BITS = gym.spaces.MultiBinary(2)
NESTED = gym.spaces.Dict(a=DISCRETE, b=gym.spaces.Box(-1, 1, (1,)))


class Chooses:
    """A module that chooses its actions itself."""

    def __init__(self, space, actions):
        self.action_space, self.actions = space, actions

    def forward_exploration(self, batch, t):
        return {"actions": self.actions}


def chosen(space, actions):
    rows = len(actions["a"] if isinstance(actions, dict) else actions)
    return act(Chooses(space, actions), lambda batch, **_: batch, {}, [0] * rows, explore=True, t=0)["actions"]


@pytest.mark.parametrize(
    ("space", "actions", "found"),
    [
        (DISCRETE, np.array([0, 7]), "7"),
        (DISCRETE, np.array([0, -1]), "-1"),
        (DISCRETE, np.array([1.0, 0.7]), "0.7"),
        (DISCRETE, torch.tensor([2, 0]), "2"),
        (DISCRETE, np.array([np.nan, 0.0]), "nan"),
        (DISCRETE, np.array(["0", "1"]), "'0', '1'"),
        (SHIFTED, np.array([4, 5]), "4"),
        (MANY, np.array([[0, 4]]), "4"),
        (MANY, np.array([[2, 3]]), "2"),
        (BITS, torch.tensor([[0, 2]]), "2"),
        (NESTED, {"a": np.array([3]), "b": np.zeros((1, 1))}, "3"),
    ],
)
def test_a_modules_own_actions_must_be_members_of_its_space(space, actions, found):
    with pytest.raises(ColumnError) as raised:
        chosen(space, actions)
    said = str(raised.value)
    assert "column 'actions' of Chooses's outputs" in said and f"found:    {found}\n" in said


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (DISCRETE, np.array([1.0, 0.0], np.float32), [1, 0]),
        (DISCRETE, torch.tensor([1.0, 0.0]), [1, 0]),
        (SHIFTED, np.array([5, 7]), [5, 7]),
        (MANY, torch.tensor([[1.0, 3.0]]), [[1, 3]]),
        (BITS, np.array([[True, False]]), [[1, 0]]),
        (gym.spaces.Box(-1, 1, (1,)), np.array([[7.5]]), [[7.5]]),  # clipped by a piece, if the config says so
    ],
)
def test_whole_numbers_of_another_type_are_converted(space, actions, expected):
    actual = chosen(space, actions)
    assert actual.tolist() == expected
    assert np.asarray(actual).dtype.kind in ("f" if isinstance(space, gym.spaces.Box) else "ib")


@pytest.mark.parametrize("action", [7, -1, 0.7])
def test_an_action_outside_its_space_does_not_reach_the_environment(toys, action):
    runner = toys.runner(2)
    runner.module.forward_exploration = lambda batch, **_: {"actions": torch.full((len(batch["obs"]),), action)}
    with pytest.raises(ColumnError, match=r"members of Discrete\(2\)"):
        runner.sample(num_timesteps=2)
    assert not any(env.actions for env in toys.envs)
    runner.module.forward_exploration = lambda batch, **_: {"actions": torch.full((len(batch["obs"]),), 1.0)}
    (chunk, _) = runner.sample(num_timesteps=4)
    assert chunk.get_actions().tolist() == [1, 1] and chunk.get_actions().dtype.kind == "i"
    assert {env.actions[0].dtype.kind for env in toys.envs} == {"i"}


def to_act(*observations, envs=(0, 2)):
    episodes = []
    for own in observations:
        episodes.append(MultiAgentEpisode())
        episodes[-1].add_env_reset(observations=own)
    return ToAct(envs, episodes, [episode.get_agents_to_act() for episode in episodes])


class Modules:
    """Gives what it was told to, and notes how it was called."""

    def __init__(self, outputs=None):
        self.outputs, self.calls = outputs, []

    def forward_exploration(self, batch, t):
        self.calls.append(("exploration", t))
        return self.outputs

    def forward_inference(self, batch):
        self.calls.append(("inference",))
        return self.outputs


def leaving(columns):
    def pipeline(*, rl_module, batch, episodes, explore, **call):
        if isinstance(columns, Exception):
            raise columns
        return columns

    return pipeline


TWO = ({"a": 0.0, "b": 1.0}, {"b": 2.0})
GOOD = [{"a": 1, "b": 2}, {"b": 3}]


def act_of_agents(columns, explore=True, batch=None, episodes=TWO):
    module = Modules({})
    return act_for_agents(module, leaving(columns), batch or {}, to_act(*episodes), explore=explore, t=7), module.calls


@pytest.mark.parametrize(("explore", "calls"), [(True, [("exploration", 7)]), (False, [("inference",)])])
def test_columns_are_those_of_the_pipeline(explore, calls):
    columns = {"actions": GOOD, "actions_for_env": GOOD, "vf": [{"a": 0.5, "b": 0.5}, {"b": 0.0}]}
    assert act_of_agents(columns, explore) == (columns, calls)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "one action for each agent to act\n.*no such column"),
        ({"actions": GOOD[:1]}, "'actions'\n.*a list of 2 dicts by agent\n|a list of 2 dicts by agent"),
        ({"actions": np.zeros(2)}, "ndarray"),
        ({"actions": GOOD, "vf": [1.0, 2.0]}, "'vf'"),
        ({"actions": [{"a": 1}, {"b": 3}]}, r"for agents \['a', 'b'\]\n.*none for \['b'\] in environment 0"),
        ({"actions": [GOOD[0], {"b": 3, "c": 1}]}, r"some for \['c'\] too, who do not act in environment 2"),
        ({"actions": GOOD, "actions_for_env": [GOOD[0], {}]}, r"'actions_for_env'[\s\S]*none for \['b'\]"),
    ],
)
def test_what_is_not_one_action_per_agent_is_named(columns, message):
    with pytest.raises(ColumnError, match=message):
        act_of_agents(columns)


def test_observations_that_are_nan_are_blamed():
    with pytest.raises(ColumnError, match="observation of agent 'b' in environment 2") as raised:
        act_of_agents(ColumnError("NaN in the outputs"), episodes=({"a": 0.0}, {"a": 1.0, "b": np.nan}))
    assert "NaN in the outputs" in str(raised.value.__cause__)
    batch = {"m": {"obs": torch.tensor([[0.0], [1.0]])}, "n": {"obs": torch.tensor([[0.0], [0.0], [np.nan]])}, "k": 3}
    with pytest.raises(ColumnError, match="column 'obs', part of module 'n', row 2"):
        act_of_agents(ColumnError("NaN in the outputs"), batch=batch)
    with pytest.raises(ColumnError, match=r"^NaN in the outputs$"):
        act_of_agents(ColumnError("NaN in the outputs"))
    with pytest.raises(ColumnError, match=r"^something else$"):
        act_of_agents(ColumnError("something else"), batch=batch)


def test_columns_are_spread_over_all_environments():
    columns = {
        "actions": GOOD,
        "actions_for_env": [{"a": 10, "b": 20}, {"b": 30}],
        "v": [{"a": 0.5, "b": 1.5}, {"b": 2.5}],
    }
    acts = spread(columns, to_act(*TWO), 4, {"n": 9})
    assert acts.stored == [GOOD[0], {}, GOOD[1], {}]
    assert acts.for_env == [{"a": 10, "b": 20}, {}, {"b": 30}, {}]
    assert acts.outputs == [{"a": {"n": 9, "v": 0.5}, "b": {"n": 9, "v": 1.5}}, {}, {"b": {"n": 9, "v": 2.5}}, {}]


def test_where_nobody_acts_there_is_nothing():
    assert spread({}, to_act(*TWO), 2, {"n": 9}) == ([{}, {}], [{}, {}], [{}, {}])


def test_environments_may_change_their_actions():
    rows = np.zeros((2, 3))
    nested = {"x": rows[1], "y": (rows[0], 3)}
    columns = {"actions": [{"a": rows[0], "b": np.float32(1)}, {"b": nested}]}
    acts = spread(columns, to_act(*TWO), 3, {})
    acts.for_env[0]["a"][:] = acts.for_env[2]["b"]["x"][:] = acts.for_env[2]["b"]["y"][0][:] = 5
    assert rows.tolist() == [[0] * 3] * 2
    assert acts.for_env[0]["b"] == 1 and acts.for_env[2]["b"]["y"][1] == 3
    assert copied_actions({"a": 1, "b": "go"}) == {"a": 1, "b": "go"}
