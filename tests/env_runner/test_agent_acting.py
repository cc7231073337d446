"""What the two pipelines leave must be one action for each agent that is to act, and what NaN comes of is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.core.errors import ColumnError
from epibatch.env_runner.acting import ToAct, act_for_agents, own_actions, spread
from epibatch.episodes import MultiAgentEpisode


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


def act(columns, explore=True, batch=None, episodes=TWO):
    module = Modules({})
    return act_for_agents(module, leaving(columns), batch or {}, to_act(*episodes), explore=explore, t=7), module.calls


@pytest.mark.parametrize(("explore", "calls"), [(True, [("exploration", 7)]), (False, [("inference",)])])
def test_columns_are_those_of_the_pipeline(explore, calls):
    columns = {"actions": GOOD, "actions_for_env": GOOD, "vf": [{"a": 0.5, "b": 0.5}, {"b": 0.0}]}
    assert act(columns, explore) == (columns, calls)


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
        act(columns)


def test_observations_that_are_nan_are_blamed():
    with pytest.raises(ColumnError, match="observation of agent 'b' in environment 2") as raised:
        act(ColumnError("NaN in the outputs"), episodes=({"a": 0.0}, {"a": 1.0, "b": np.nan}))
    assert "NaN in the outputs" in str(raised.value.__cause__)
    batch = {"m": {"obs": torch.tensor([[0.0], [1.0]])}, "n": {"obs": torch.tensor([[0.0], [0.0], [np.nan]])}, "k": 3}
    with pytest.raises(ColumnError, match="column 'obs', part of module 'n', row 2"):
        act(ColumnError("NaN in the outputs"), batch=batch)
    with pytest.raises(ColumnError, match=r"^NaN in the outputs$"):
        act(ColumnError("NaN in the outputs"))
    with pytest.raises(ColumnError, match=r"^something else$"):
        act(ColumnError("something else"), batch=batch)


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
    assert own_actions({"a": 1, "b": "go"}) == {"a": 1, "b": "go"}
