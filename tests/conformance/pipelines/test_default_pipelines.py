"""Default pieces and pipelines beside RLlib's: after each piece, at the end, and alone."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from batches.acting import acting_calls, hold_acting
from batches.chunks import BatchChunk, build_all, built
from batches.learner import WAYS, LearnerCall, hold_learner, learner_calls
from batches.stages import flat_mismatches, snapshot
from oracle.cases import random_cases
from oracle.libraries import BOTH, EPIBATCH
from oracle.makers import OBS, acting, chunk, module, user
from oracle.probes import holds


@holds("C40", "C44", "C45", "C47")
@random_cases(call=learner_calls(False))
def test_train_batches(call):
    hold_learner(call, (*WAYS, "two pipelines"))


@holds("C40", "C43", "C44", "C54")
@random_cases(call=learner_calls(True))
def test_train_batches_with_bootstrap_rows_and_advantages(call):
    hold_learner(call)


@holds("C40", "C45", "C46", "C47", "C53")
@random_cases(call=acting_calls())
def test_a_vector_step(call):
    hold_acting(call)


@random_cases(call=learner_calls(False, front=(), columns=(), batched=()))
def test_pieces_of_a_learner_pipeline(call):
    hold_learner(call, ("alone",))


@random_cases(call=acting_calls(users=()))
def test_pieces_of_acting_pipelines(call):
    hold_acting(call, ("alone",))


def test_stacked_frames():
    """Images in stacks of four."""
    spaces = gym.spaces.Box(0, 255, (12, 12, 1), np.uint8), gym.spaces.Discrete(4)
    made = tuple(BatchChunk(*spaces, 7 + i, min(5 * i, 4), 5 * i, seed=i, id_=f"e{i}") for i in range(4))
    call, out = LearnerCall(made), []
    for library in BOTH:
        stack = library.module("connectors.common.frame_stacking").FrameStacking
        pieces = [stack(num_frames=4, as_learner_connector=True), *call.pieces(library)]
        pipeline = library.learner.LearnerConnectorPipeline(*call.spaces, connectors=pieces)
        modules = built(library, call.spaces, "", multi=True)
        out.append(snapshot(pipeline(rl_module=modules, batch={}, episodes=build_all(library, made), shared_data={})))
    assert flat_mismatches(*out) == []
    assert out[1]["default_policy", "obs"].shape == (sum(chunk.length for chunk in made), 12, 12, 4)


# -- programs around the acting pipelines that RLlib runs ------------------------------------------


def acted(library, pipeline, outputs, **options):
    """The columns of one step in environments "a", "b", ..."""
    ids = "abc"[: len(outputs["actions"])]
    episodes = [chunk(library, id_, 1, arrays=library is EPIBATCH, **options) for id_ in ids]
    rl_module, shared = module(library, state=options.get("state", False)), {"memorized_map_structure": list(ids)}
    return pipeline(rl_module=rl_module, batch=outputs, episodes=episodes, explore=False, shared_data=shared)


@pytest.mark.parametrize("library", BOTH, ids=str)
def test_the_values_of_one_environment_are_taken_by_its_index(library):
    """As in RLlib's example `policy_inference_after_training_w_connector.py`, here for a recurrent module."""
    outputs = {
        "actions": torch.tensor([[1], [2]]),
        "state_out": {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "c": torch.zeros(2, 2)},
        "values": torch.tensor([5.0, 6.0]),
    }
    columns = acted(library, acting(library)[1], outputs, state=True)
    columns.pop("actions_for_env", None)
    episode = library.SingleAgentEpisode(id_="n")
    episode.add_env_reset(np.zeros(2, np.float32))
    row = {name: column[1] for name, column in columns.items()}
    episode.add_env_step(np.ones(2, np.float32), row.pop("actions"), 1.0, extra_model_outputs=row)
    state = episode.get_extra_model_outputs("state_out", -1)
    assert {name: leaf.tolist() for name, leaf in state.items()} == {"h": [3.0, 4.0], "c": [0.0, 0.0]}
    assert float(episode.get_extra_model_outputs("values", -1)) == 6.0


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("library", BOTH, ids=str)
def test_integer_actions_that_are_not_normalised_reach_the_environment(library, clip):
    space = gym.spaces.Box(-7, 9, (1,), np.int32)
    _, pipeline = acting(library, OBS, space, normalize_actions=False, clip_actions=clip)
    columns = acted(library, pipeline, {"actions": torch.tensor([[3], [9]])})
    assert np.asarray(columns.get("actions_for_env", columns["actions"])).tolist() == [[3], [9]]


def doubled(piece, batch, episodes):
    if isinstance(batch["actions"], dict):
        batch["actions"] = {key: [2 * row for row in rows] for key, rows in batch["actions"].items()}
    else:
        batch["actions"] = 2 * batch["actions"]


@pytest.mark.parametrize("place", ["NormalizeAndClipActions", "ListifyDataForVectorEnv"])
@pytest.mark.parametrize(
    ("settings", "expected"), [({}, [[1.0], [5.0]]), ({"normalize_actions": False}, [[0.0], [1.0]])]
)
@pytest.mark.parametrize("library", BOTH, ids=str)
def test_a_late_piece_changes_what_the_environment_gets_if_actions_are_neither_scaled_nor_clipped(
    library, place, settings, expected
):
    _, pipeline = acting(library, OBS, gym.spaces.Box(-7, 9, (1,), np.float32), **settings)
    pipeline.insert_after(getattr(library.module_to_env, place), user(library, doubled))
    columns = acted(library, pipeline, {"actions": torch.tensor([[0.0], [0.5]])})
    assert np.asarray(columns["actions"]).tolist() == [[0.0], [1.0]]
    assert np.asarray(columns.get("actions_for_env", columns["actions"])).tolist() == expected
