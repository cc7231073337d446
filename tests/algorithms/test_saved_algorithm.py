"""A state that does not fit is refused, and everything is as it was."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core.errors import CheckpointError, EpibatchError


def built(hiddens=4, *, seed=0):
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [hiddens]})
    config.env_runners(env_to_module_connector=["mean_std_filter"], num_envs_per_env_runner=2)
    return config.training(train_batch_size=40, minibatch_size=20, num_epochs=1).debugging(seed=seed).build_algo()


def steps_of(algo):
    """Numbers of the next iteration, which show any difference of weights, filters, environments and generators."""
    results = algo.train()
    return results["learners"]["default_policy"]["total_loss"], results["env_runners"]["num_env_steps_sampled_lifetime"]


def spoil_network(state):
    return {**state, "learner": built(6).get_state()["learner"]}


def spoil_filter(state):
    state["env_runner"]["env_to_module_connector"]["mean_std_filter"] = {"count": "many"}
    return state


def spoil_other_piece(state):
    state["env_runner"]["module_to_env_connector"]["unknown_piece"] = {"a": 1}
    return state


def spoil_counts(state):
    state["env_runner"]["num_env_steps_sampled_lifetime"] = "many"
    return state


def spoil_random(state):
    state["random"]["python"] = None
    return state


@pytest.mark.parametrize("spoil", [spoil_network, spoil_filter, spoil_other_piece, spoil_counts, spoil_random])
def test_what_is_refused_changes_nothing(spoil):
    other = built(seed=5)
    other.train()
    state = spoil(copy.deepcopy(other.get_state()))
    other.stop()
    found = []
    for refused in (False, True):
        algo = built()
        algo.train()
        if refused:
            before = algo.get_state()
            with pytest.raises(EpibatchError):
                algo.set_state(copy.deepcopy(state))
            np.testing.assert_equal(algo.get_state(), before)
        found.append([steps_of(algo) for _ in range(2)])  # running episodes go on, too
        algo.stop()
    assert found[0] == found[1]


def test_a_checkpoint_that_is_refused_changes_nothing(tmp_path):
    path = (other := built(6)).save_to_path(tmp_path / "other")
    other.stop()
    algo = built()
    algo.train()
    before = algo.get_state()
    with pytest.raises(CheckpointError):
        algo.restore_from_path(path)
    np.testing.assert_equal(algo.get_state(), before)
    algo.stop()


def test_what_was_saved_before_the_first_update_knows_nothing_after_it(tmp_path):
    config = PPOConfig().environment("CartPole-v1").learners(learner_connector=lambda *_: NormalizeReward())
    algo = config.training(train_batch_size=40, minibatch_size=20, num_epochs=1).build_algo()
    algo.save_to_path(tmp_path)
    algo.train()
    known = algo.learner.get_state()["connector"]["normalize_reward"]["modules"]
    assert known["default_policy"]["since"]["count"] == 40
    algo.restore_from_path(tmp_path)
    assert algo.learner.get_state()["connector"]["normalize_reward"] == {}
    algo.stop()
