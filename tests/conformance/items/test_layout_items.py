"""Behaviours C40 and C42 to C47: layouts behind every piece, bootstrap rows, padding, recurrent states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from items.behaviours import behaviour, listed, plain
from items.lab import acting, chunk, learner, module, run, stages, user

COLUMNS = {"actions": "int64 (8,)", "rewards": "float64 (8,)", "action_logp": "float32 (8,)"}
FLAGS = dict.fromkeys(("loss_mask", "terminateds", "truncateds"), "bool (8,)")
PADDED = {
    "obs": "float32 (2, 4, 2)",
    **{name: kind.replace("(8,)", "(2, 4)") for name, kind in (COLUMNS | FLAGS).items()},
    "seq_lens": "int64 (2,)",
}
BATCHED = {
    "obs": "float32 (3, 4, 2)",
    **{name: kind.replace("(8,)", "(3, 4)") for name, kind in (COLUMNS | FLAGS).items()},
    "seq_lens": "int64 (3,)",
}


def of_chunk(library, stage, name="a", number=0):
    """One chunk's part of every column of a stage."""
    return {
        column: groups[listed("batch-keys", library, rllib=f"{name}_{number}", epibatch=name),]
        for column, groups in stage.items()
    }


def tensors(columns):
    """The same columns as tensors, 64-bit floats halved."""
    return {name: f"tensor {kind.replace('float64', 'float32')}" for name, kind in columns.items()}


@behaviour("C40", "C47")
def test_layouts_of_env_to_module_without_memory(library):
    episodes = [chunk(library, "a", 2, arrays=False), chunk(library, "b", 0, arrays=False)]
    seen = stages(library, acting(library)[0], episodes, rl_module=module(library))
    own = {"obs": {("a",): "float32 (1, 2)", ("b",): "float32 (1, 2)"}}
    for piece in ("AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch"):
        assert seen[piece] == own
    assert seen["BatchIndividualItems"] == {"obs": "float32 (2, 2)"}
    assert seen["NumpyToTensor"] == {"obs": "tensor float32 (2, 2)"}


@behaviour("C40", "C46", "C47")
def test_layouts_of_env_to_module_with_memory(library):
    episodes = [chunk(library, "a", 2, arrays=False, state=True), chunk(library, "b", 0, arrays=False, state=True)]
    seen = stages(library, acting(library)[0], episodes, rl_module=module(library, state=True))
    keys = [("a",), ("b",)]
    assert seen["AddObservationsFromEpisodesToBatch"] == {"obs": dict.fromkeys(keys, "float32 (1, 2)")}
    assert seen["AddTimeDimToBatchAndZeroPad"] == {"obs": dict.fromkeys(keys, "float32 (1, 1, 2)")}
    state = {"h": "float32 (1, 2)", "c": "float32 (1, 2)"}
    with_state = {"obs": dict.fromkeys(keys, "float32 (1, 1, 2)"), "state_in": dict.fromkeys(keys, state)}
    assert seen["AddStatesFromEpisodesToBatch"] == with_state
    state = {"h": "float32 (2, 2)", "c": "float32 (2, 2)"}
    assert seen["BatchIndividualItems"] == {"obs": "float32 (2, 1, 2)", "state_in": state}
    assert seen["NumpyToTensor"] == {"obs": "tensor float32 (2, 1, 2)", "state_in": tensors(state)}


@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "with memory"])
@behaviour("C40", "C46")
def test_layouts_of_module_to_env(library, memory):
    to_module, to_env = acting(library)
    episodes = [chunk(library, name, 0, arrays=False, state=memory) for name in "ab"]
    call = {"rl_module": module(library, state=memory), "shared_data": {}}
    run(to_module, episodes, **call)
    outputs = {"action_dist_inputs": torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]), "vf_preds": torch.ones(2)}
    if memory:
        outputs = {name: value[:, None] for name, value in outputs.items()}
        outputs["state_out"] = {"h": torch.zeros(2, 2), "c": torch.ones(2, 2)}
    seen = stages(library, to_env, episodes, batch=outputs, explore=True, **call)
    integer = listed("action-dtype", library, rllib="int32", epibatch="int64")
    time = ", 1" if memory else ""

    def columns(rows, time, integer):
        comma = "" if time else ","
        flat = {"action_logp": "float32", "vf_preds": "float32", "actions": integer}
        kinds = {name: f"{kind} ({rows}{time}{comma})" for name, kind in flat.items()}
        state = {"state_out": dict.fromkeys("hc", f"float32 ({rows}, 2)")} if memory else {}
        return {"action_dist_inputs": f"float32 ({rows}{time}, 3)", **kinds, **state}

    def by_key(columns):
        return {name: dict.fromkeys([("a",), ("b",)], kind) for name, kind in columns.items()}

    with_tensors = columns(2, time, "int64")
    state = with_tensors.pop("state_out", None)
    expected = {**tensors(with_tensors), **({"state_out": tensors(state)} if state else {})}
    assert seen["GetActions"] == expected
    assert seen["TensorToNumpy"] == columns(2, time, integer)
    assert seen["UnBatchToIndividualItems"] == by_key(columns(1, time, integer))
    assert seen["RemoveSingleTsTimeRankFromBatch"] == by_key(columns(1, "", integer))
    for_env = {"actions_for_env": f"{integer} (1,)"}
    assert seen["NormalizeAndClipActions"] == by_key({**columns(1, "", integer), **for_env})
    # lists of one item per environment there, arrays with the environment axis first here: the same once joined
    assert seen["ListifyDataForVectorEnv"] == {**columns(2, "", integer), "actions_for_env": f"{integer} (2,)"}


@behaviour("C27", "C40", "C47")
def test_layouts_of_the_learner_without_memory(library):
    episodes = [chunk(library, "a", 7), chunk(library, "b", 2, end="terminated")]
    seen = stages(library, learner(library, ppo=True), episodes, rl_module=module(library, multi=True))
    assert of_chunk(library, seen["AddOneTsToEpisodesAndTruncate"]) == FLAGS
    observations = {**FLAGS, "obs": "float32 (8, 2)"}
    assert of_chunk(library, seen["AddObservationsFromEpisodesToBatch"]) == observations
    for piece in ("AddColumnsFromEpisodesToTrainBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch"):
        assert of_chunk(library, seen[piece]) == {**observations, **COLUMNS}
    rows = {name: kind.replace("8", "11") for name, kind in {**observations, **COLUMNS}.items()}
    assert seen["BatchIndividualItems"] == {"default_policy": rows}
    assert seen["NumpyToTensor"] == {"default_policy": tensors(rows)}
    added = dict.fromkeys(("advantages", "value_targets"), "tensor float32 (11,)")
    assert seen["GeneralAdvantageEstimation"] == {"default_policy": {**tensors(rows), **added}}


@behaviour("C40", "C47")
def test_layouts_of_the_learner_with_memory(library):
    episodes = [chunk(library, "a", 7, state=True), chunk(library, "b", 2, end="terminated", state=True)]
    seen = stages(library, learner(library, ppo=True), episodes, rl_module=module(library, state=True, multi=True))
    assert of_chunk(library, seen["AddColumnsFromEpisodesToTrainBatch"]) == {
        **FLAGS,
        **COLUMNS,
        "obs": "float32 (8, 2)",
    }
    assert of_chunk(library, seen["AddTimeDimToBatchAndZeroPad"]) == PADDED
    state = {"h": "float32 (2, 2)", "c": "float32 (2, 2)"}
    assert of_chunk(library, seen["AddStatesFromEpisodesToBatch"]) == {**PADDED, "state_in": state}
    state = {"h": "float32 (3, 2)", "c": "float32 (3, 2)"}
    assert seen["BatchIndividualItems"] == {"default_policy": {**BATCHED, "state_in": state}}
    expected = {**tensors(BATCHED), "state_in": tensors(state)}
    assert seen["NumpyToTensor"] == {"default_policy": expected}
    added = dict.fromkeys(("advantages", "value_targets"), "tensor float32 (3, 4)")
    assert seen["GeneralAdvantageEstimation"] == {"default_policy": {**expected, **added}}


def add_infos(library):
    """A piece of a user that adds every step's info."""

    def add(batch, episodes):
        for episode in episodes:
            count = len(episode)
            library.ConnectorV2.add_n_batch_items(batch, "infos", episode.get_infos(slice(0, count)), count, episode)

    return user(library, add)


@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "with memory"])
@pytest.mark.parametrize("own", [False, True], ids=["built-in piece", "a user's piece"])
@behaviour("C42")
def test_infos_stay_a_list_of_dicts(library, memory, own):
    pipeline = learner(library)
    piece = add_infos(library) if own else library.learner.AddInfosFromEpisodesToTrainBatch()
    pipeline.insert_after("AddObservationsFromEpisodesToBatch", piece)
    episodes = [chunk(library, "a", 3, state=memory), chunk(library, "b", 1, state=memory)]
    batch = run(pipeline, episodes, rl_module=module(library, state=memory, multi=True))["default_policy"]
    assert batch["infos"] == [{"t": 0}, {"t": 1}, {"t": 2}, {"t": 0}]
    assert isinstance(batch["rewards"], torch.Tensor) and batch["rewards"].numel() == (8 if memory else 4)


@pytest.mark.parametrize("end", ["terminated", "truncated", ""])
@behaviour("C43")
def test_flags_and_mask_beside_the_bootstrap_row(library, end):
    episodes = [chunk(library, "a", 3, end=end), chunk(library, "b", 1, end="terminated")]
    batch = run(learner(library, ppo=True), episodes, rl_module=module(library, multi=True))["default_policy"]
    over = end == "terminated"
    assert plain(batch["loss_mask"]) == [True, True, True, False, True, False]
    assert plain(batch["terminateds"]) == [False, False, over, False, True, False]
    assert plain(batch["truncateds"]) == [False, False, not over, False, False, False]
    assert plain(batch["rewards"]) == [0.5, 1.5, 2.5, 0.0, 0.5, 0.0]
    assert plain(batch["obs"][:, 0]) == [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]
    assert plain(batch["actions"]) == [0, 1, 2, 2, 0, 0]


def padded(library, max_seq_len, *chunks, ppo=False):
    """The train batch of recurrent chunks."""
    network = module(library, state=True, max_seq_len=max_seq_len, multi=True)
    return run(learner(library, ppo=ppo), list(chunks), rl_module=network)["default_policy"]


@behaviour("C44")
def test_sequences_are_padded_on_the_right_per_episode(library):
    batch = padded(library, 4, chunk(library, "a", 7, state=True), chunk(library, "b", 1, state=True))
    assert plain(batch["seq_lens"]) == [4, 3, 1]
    assert plain(batch["loss_mask"]) == [[True] * 4, [True, True, True, False], [True, False, False, False]]
    assert plain(batch["rewards"]) == [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5, 6.5, 0.0], [0.5, 0.0, 0.0, 0.0]]
    assert plain(batch["obs"][1]) == [[4.0, 14.0], [5.0, 15.0], [6.0, 16.0], [0.0, 0.0]]
    assert plain(batch["actions"][1]) == [1, 2, 0, 0]


@behaviour("C44")
def test_the_state_of_a_sequence_is_the_one_before_it(library):
    batch = padded(library, 3, chunk(library, "a", 7, state=True))
    assert plain(batch["seq_lens"]) == [3, 3, 1]
    assert plain(batch["state_in"]) == {
        "h": [[-1.0, -1.0], [2.25, 2.25], [5.25, 5.25]],
        "c": [[2.0, 2.0], [-2.0, -2.0], [-5.0, -5.0]],
    }
    assert "state_out" not in batch


@behaviour("C44")
def test_lengths_of_sequences_with_the_bootstrap_row(library):
    batch = padded(library, 4, chunk(library, "a", 7, state=True), ppo=True)
    assert plain(batch["seq_lens"]) == listed("O29", library, rllib=[4, 4], epibatch=[4, 3])
    assert plain(batch["loss_mask"]) == [[True] * 4, [True, True, True, False]]
    assert plain(batch["obs"][1, :, 0]) == [4.0, 5.0, 6.0, 7.0]


@behaviour("C45")
def test_a_later_chunk_begins_with_the_state_of_its_lookback(library):
    batch = padded(library, 2, chunk(library, "a", 3, t_started=4, lookback=1, state=True))
    assert plain(batch["state_in"]["h"]) == [[3.25, 3.25], [5.25, 5.25]]
    acted = acting(library)[0]
    episode = chunk(library, "a", 0, t_started=4, lookback=1, state=True, arrays=False)
    state = run(acted, [episode], rl_module=module(library, state=True))["state_in"]
    assert plain(state) == {"h": [[3.25, 3.25]], "c": [[-3.0, -3.0]]}


@behaviour("C46")
def test_acting_with_memory(library):
    to_module, to_env = acting(library)
    episodes = [
        chunk(library, "a", 2, arrays=False, state=True),
        chunk(library, "b", 0, arrays=False, state=True),
    ]
    call = {"rl_module": module(library, state=True), "shared_data": {}}
    batch = run(to_module, episodes, **call)
    assert plain(batch["obs"]) == [[[2.0, 12.0]], [[0.0, 10.0]]]
    assert plain(batch["state_in"]) == {"h": [[1.25, 1.25], [-1.0, -1.0]], "c": [[-1.0, -1.0], [2.0, 2.0]]}
    logits = torch.tensor([[[0.0, 9.0, 0.0]], [[9.0, 0.0, 0.0]]])
    state = {"h": torch.tensor([[3.0, 4.0], [5.0, 6.0]]), "c": torch.tensor([[7.0, 7.0], [8.0, 8.0]])}
    outputs = {"action_dist_inputs": logits, "state_out": dict(state)}
    step = run(to_env, episodes, batch=outputs, **call)
    assert plain(step["actions"]) == plain(step["actions_for_env"]) == [1, 0]
    assert plain(step["action_dist_inputs"]) == [[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]
    assert plain(step["state_out"]) == plain(state)
    assert np.shape(step["action_logp"]) == (2,)
