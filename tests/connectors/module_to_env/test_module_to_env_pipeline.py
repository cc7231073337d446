"""From module outputs to a vector environment: the default order as a whole."""

from __future__ import annotations

import numpy as np
import torch

from epibatch.connectors.module_to_env import ModuleToEnvPipeline

LOGITS = torch.tensor([[0.0, 9.0], [9.0, 0.0]])


def two_episodes(lab, state=0):
    return [lab.episode("a", 0, state=state, numpy=False), lab.episode("b", 3, state=state, numpy=False)]


def values(result):
    return {name: np.asarray(column).tolist() for name, column in result.items() if name != "state_out"}


def test_feed_forward(lab):
    outputs = {"action_dist_inputs": LOGITS, "foo": torch.tensor([1, 2]), "bar": torch.ones(2, 3)}
    result = lab.env_step(two_episodes(lab), outputs, lab.defaults("module_to_env"))
    assert values(result) == {
        "action_dist_inputs": LOGITS.tolist(),
        "foo": [1, 2],
        "bar": [[1.0] * 3] * 2,
        "actions": [1, 0],
        "actions_for_env": [1, 0],
        "action_logp": [0, 0],
    }


def test_recurrent(lab):
    outputs = {
        "action_dist_inputs": LOGITS[:, None],
        "bar": torch.ones(2, 1, 3),
        "state_out": {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]])},
    }
    result = lab.env_step(two_episodes(lab, 2), outputs, lab.defaults("module_to_env"), rl_module=lab.module(state=2))
    assert values(result) == {
        "action_dist_inputs": LOGITS.tolist(),
        "bar": [[1.0] * 3] * 2,
        "actions": [1, 0],
        "actions_for_env": [1, 0],
        "action_logp": [0, 0],
    }
    states = result["state_out"]
    rows = states["h"] if isinstance(states, dict) else [state["h"] for state in states]
    assert np.asarray(rows).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_user_pieces_see_the_items_of_each_episode(lab):
    spy = lab.spy()
    pieces = lab.defaults("module_to_env")
    pieces.insert(4, spy)
    lab.env_step(two_episodes(lab), {"action_dist_inputs": LOGITS}, pieces, seen_as="keyword")
    assert set(spy.seen) == {"action_dist_inputs", "actions", "action_logp"}
    assert [int(items[0]) for items in spy.seen["actions"].values()] == [1, 0]
    assert spy.kwargs["seen_as"] == "keyword"
    assert spy.explore is False


def test_a_user_piece_can_change_what_the_environment_gets_and_what_is_stored(lab):
    def flip(batch, episodes):
        for items in batch["actions"].values():
            items[0] = 1 - items[0]

    pieces = lab.defaults("module_to_env")
    pieces.insert(4, lab.user(flip))
    result = lab.env_step(two_episodes(lab), {"action_dist_inputs": LOGITS}, pieces)
    assert np.asarray(result["actions"]).tolist() == [0, 1]
    assert np.asarray(result["actions_for_env"]).tolist() == [0, 1]


def test_an_empty_pipeline_returns_the_batch_and_keeps_its_spaces(lab):
    pipeline = ModuleToEnvPipeline(lab.obs_space, lab.act_space, connectors=[])
    assert pipeline(rl_module=None, batch={"x": 1}, episodes=[]) == {"x": 1}
    assert (pipeline.observation_space, pipeline.action_space) == (lab.obs_space, lab.act_space)
