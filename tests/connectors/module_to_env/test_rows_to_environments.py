"""Rows of modules' outputs reach their episodes, agents and environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping
from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.module_to_env import (
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from epibatch.core.errors import BatchLayoutError, ColumnError, EpibatchError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import Lab


def listified(lab, outputs, user=None, ids=("z", "a")):
    episodes = [lab.episode(id_, 0, numpy=False) for id_ in ids]
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ListifyDataForVectorEnv()]
    if user:
        pieces.insert(2, lab.user(user))
    return lab.env_step(episodes, outputs, pieces)


def test_array_columns_have_the_environment_axis_first(lab):
    outputs = {"actions": torch.tensor([5, 6]), "action_logp": torch.tensor([0.5, 1.5]), "x": torch.ones(2, 3)}
    result = listified(lab, outputs)
    assert isinstance(result["actions"], np.ndarray) and result["actions"].tolist() == [5, 6]
    assert np.asarray(result["action_logp"]).dtype == np.float32 and list(result["action_logp"]) == [0.5, 1.5]
    assert np.asarray(result["x"]).tolist() == [[1.0, 1.0, 1.0]] * 2


def test_rows_follow_the_episodes_whatever_order_a_user_piece_leaves(lab):
    def reverse(batch, episodes):
        batch["actions"] = dict(reversed(batch["actions"].items()))
        batch["names"] = {(episode.id_,): [episode.id_] for episode in episodes}

    result = listified(lab, {"actions": torch.tensor([5, 6]), "x": torch.tensor([1.0, 2.0])}, reverse)
    assert np.asarray(result["actions"]).tolist() == [5, 6] and list(result["names"]) == ["z", "a"]
    assert np.asarray(result["x"]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("behind", [False, True])
def test_a_nested_column_has_rows_behind_a_user_piece_too(lab, behind):
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ListifyDataForVectorEnv()]
    pieces += [lab.user(lambda batch, episodes: None)] * behind
    outputs = {"actions": torch.tensor([5, 6]), "state_out": {"h": torch.tensor([[1.0], [2.0]])}}
    result = lab.env_step([lab.episode(id_, 0, numpy=False) for id_ in "ab"], outputs, pieces)
    assert result["state_out"][1]["h"].tolist() == [2.0]


def unknown(batch, episodes):
    batch["actions"]["nobody",] = [np.int64(0)]


def missing(batch, episodes):
    del batch["actions"]["a",]


@pytest.mark.parametrize(("user", "words"), [(unknown, "nobody"), (missing, r"actions[\s\S]*'a'")])
def test_unknown_and_missing_keys_are_named(lab, user, words):
    with pytest.raises(EpibatchError, match=words):
        listified(lab, {"actions": torch.tensor([5, 6])}, user)


def episodes_of(*ids):
    return [Lab.episode(id_, 1, offset=i, numpy=False) for i, id_ in enumerate(ids)]


def seen_after(lab, episodes, outputs):
    spy = lab.spy()
    lab.env_step(episodes, outputs, [TensorToNumpy(), UnBatchToIndividualItems(), spy])
    return spy.seen


def test_row_i_belongs_to_episode_i(lab):
    outputs = {"actions": torch.tensor([5, 6, 7]), "extra": torch.arange(6.0).reshape(3, 2)}
    seen = seen_after(lab, episodes_of("z", "a", "m"), outputs)
    assert list(seen["actions"]) == [("z",), ("a",), ("m",)]
    assert [len(items) for items in seen["actions"].values()] == [1, 1, 1]
    assert [int(items[0]) for items in seen["actions"].values()] == [5, 6, 7]
    assert [items[0].tolist() for items in seen["extra"].values()] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_chunks_that_share_an_id_get_their_own_rows(lab):
    seen = seen_after(lab, episodes_of("a", "a"), {"actions": torch.tensor([0, 1])})
    assert {key: int(items[0]) for key, items in seen["actions"].items()} == {("a_0",): 0, ("a_1",): 1}


def test_outputs_with_another_number_of_rows_are_named(lab):
    with pytest.raises(EpibatchError, match=r"actions[\s\S]*2[\s\S]*3"):
        seen_after(lab, episodes_of("a", "b"), {"actions": torch.tensor([0, 1, 1])})


def test_a_single_value_in_the_place_of_rows_is_named():
    with pytest.raises(EpibatchError, match=r"column 'mine'[\s\S]*1 rows[\s\S]*a single value"):
        Lab.call(UnBatchToIndividualItems(), {"mine": np.array(1.0)}, episodes=[Lab.episode(numpy=False)])


def seen_after_the_axis(lab, module, outputs):
    episodes = [lab.episode("a", 0, numpy=False, state=1), lab.episode("b", 1, numpy=False, state=1)]
    spy = lab.spy()
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), RemoveSingleTsTimeRankFromBatch(), spy]
    lab.env_step(episodes, outputs, pieces, rl_module=module)
    return spy.seen


def test_recurrent_outputs_lose_the_axis_but_states_keep_their_shape(lab):
    outputs = {
        "actions": torch.tensor([[1], [0]]),
        "nested": {"x": torch.ones(2, 1, 3)},
        "state_out": {"h": torch.arange(2.0).reshape(2, 1)},
    }
    seen = seen_after_the_axis(lab, lab.module(state=1), outputs)
    assert [np.shape(items[0]) for items in seen["actions"].values()] == [(), ()]
    assert [int(items[0]) for items in seen["actions"].values()] == [1, 0]
    assert seen["nested"]["a",][0]["x"].shape == (3,)
    assert [items[0]["h"].tolist() for items in seen["state_out"].values()] == [[0.0], [1.0]]


def test_stateless_outputs_stay_as_they_are(lab):
    seen = seen_after_the_axis(lab, lab.module(), {"actions": torch.tensor([1, 0]), "one": torch.ones(2, 1)})
    assert seen["one"]["a",][0].shape == (1,)
    assert np.shape(seen["actions"]["a",][0]) == ()


def test_a_recurrent_module_without_new_state_is_told_so(lab):
    outputs = {"actions": torch.tensor([[1], [0]])}
    with pytest.raises(ColumnError, match=r"recurrent[\s\S]*'state_out'[\s\S]*_forward"):
        seen_after_the_axis(lab, lab.module(state=1), outputs)


@pytest.mark.parametrize("state", [{"hidden": torch.zeros(2, 1)}, torch.zeros(2, 1)])
def test_a_new_state_with_other_names_is_named(lab, state):
    outputs = {"actions": torch.tensor([[1], [0]]), "state_out": state}
    with pytest.raises(ColumnError, match=r"column 'state_out' of [\s\S]*like get_initial_state[\s\S]*\{h: leaf\}"):
        seen_after_the_axis(lab, lab.module(state=1), outputs)


def test_the_axis_goes_also_when_the_two_sides_share_no_data(lab, tensors):
    episodes = [lab.episode("a", 0, numpy=False, state=1), lab.episode("b", 1, numpy=False, state=1)]
    outputs = {"action_dist_inputs": tensors.recurrent, "state_out": {"h": torch.zeros(2, 1)}}
    pieces = lab.defaults("module_to_env")
    batch = lab.run("module_to_env", pieces, episodes, batch=outputs, rl_module=lab.module(state=1), explore=False)
    assert batch["actions"].tolist() == [1, 0] and batch["action_dist_inputs"].shape == (2, 2)


def test_a_new_state_with_a_time_axis_is_refused(lab):
    outputs = {"actions": torch.tensor([[1], [0]]), "state_out": {"h": torch.zeros(2, 1, 1)}}
    with pytest.raises(ColumnError, match=r"'state_out'[\s\S]*shape \[rows, 1\][\s\S]*\[2, 1, 1\]"):
        seen_after_the_axis(lab, lab.module(state=1), outputs)


def test_a_module_whose_state_grows(lab):
    module = lab.module(state=1)
    for size in (1, 3, 2):
        module.model_config["state"] = size
        states = {"h": torch.arange(2.0 * size).reshape(2, size)}
        seen = seen_after_the_axis(lab, module, {"actions": torch.tensor([[1], [0]]), "state_out": states})
        assert [items[0]["h"].shape for items in seen["state_out"].values()] == [(size,), (size,)]
    with pytest.raises(ColumnError, match=r"expected: shape \[rows, 2\][\s\S]*found: +shape \[2, 3\]"):
        seen_after_the_axis(lab, module, {"actions": torch.tensor([[1], [0]]), "state_out": {"h": torch.zeros(2, 3)}})


MODULES = {"x": "m", "y": "n", "z": "m"}


def game(id_: str, **observations: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: MODULES[agent_id])
    episode.add_env_reset(observations=observations)
    return episode


def back(episodes: list[Any], batch: Any, shared: dict[str, Any] | None = None, between: Any = None) -> Any:
    shared = {} if shared is None else shared
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping(), BatchIndividualItems()]
    EnvToModulePipeline(connectors=pieces)(episodes=episodes, shared_data=shared)
    if between:
        between()
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping(), ListifyDataForVectorEnv()]
    return ModuleToEnvPipeline(connectors=pieces)(episodes=episodes, batch=batch, shared_data=shared)


def test_rows_go_back_to_their_agents() -> None:
    episodes = [game("e", z=1.0, y=2.0, x=3.0), game("f", x=4.0)]
    found = back(episodes, {"m": {"a": np.array([10, 30, 40])}, "n": {"a": np.array([20]), "b": np.array([5])}})
    assert found == {"a": [{"z": 10, "y": 20, "x": 30}, {"x": 40}], "b": [{"y": 5}, {}]}
    assert list(found["a"][0]) == ["z", "y", "x"]


@pytest.mark.parametrize(
    "other", [np.array([2.5], np.float32), np.array([2], np.int8), np.array([[5, 6]]), np.array(["t"], object)]
)
def test_columns_that_differ_between_modules_keep_their_kinds(other: Any) -> None:
    found = back([game("e", y=2.0, x=3.0)], {"m": {"a": np.array([10])}, "n": {"a": other}})["a"][0]
    assert found["x"] == 10 and np.asarray(found["x"]).dtype == np.int64
    assert np.array_equal(found["y"], other[0]) and np.asarray(found["y"]).dtype == np.asarray(other[0]).dtype


def test_agents_that_ended_in_between_get_nothing_and_the_others_their_own() -> None:
    episode = game("e", z=1.0, y=2.0, x=3.0)

    def z_ends() -> None:
        episode.add_env_step({}, {}, {}, terminateds={"z": True})

    found = back([episode], {"m": {"a": np.array([10, 30])}, "n": {"a": np.array([20])}}, between=z_ends)
    assert found == {"a": [{"y": 20, "x": 30}]}


@pytest.mark.parametrize(
    ("agents", "batch", "error", "words"),
    [
        ("xz", {"m": [1]}, ColumnError, r"for module 'm'[\s\S]*expected: 2 rows[\s\S]*found: +1"),
        ("x", {"m": [1], "n": [2]}, BatchLayoutError, r"found: +'n'"),
        ("xy", {"m": [1]}, BatchLayoutError, r"given rows: 'm', 'n'[\s\S]*found: +none of 'n'"),
    ],
)
def test_outputs_of_other_modules_and_rows_are_named(agents: str, batch: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        back([game("e", **dict.fromkeys(agents, 1.0))], {name: {"a": np.array(own)} for name, own in batch.items()})


def test_single_agent_episodes_are_refused() -> None:
    pipeline = ModuleToEnvPipeline(connectors=[TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping()])
    with pytest.raises(BatchLayoutError, match="leave this piece out"):
        pipeline(episodes=[SingleAgentEpisode(observations=[0])], batch={"a": np.array([1])})
