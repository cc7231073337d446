"""Correct runs, of which the first-update check does not warn; each is checked again after an edit of both sides."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from epibatch.core.errors import FirstUpdateError


def train(config: Any, tanh: Any, edits: bool = True) -> None:
    """Three iterations, the second after an edit; a difference is an error."""
    algo = config.debugging(check_first_update="error").build_algo()
    logging.getLogger("epibatch").setLevel("INFO")
    algo.train()
    for side in ("env_to_module", "learner") if edits else ():
        algo.pipelines[side].insert_before("AddObservationsFromEpisodesToBatch", tanh(factor=0.7))
    algo.train()
    algo.train()
    algo.stop()


@pytest.mark.parametrize("seed", [*range(24), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(24, 300))])
def test_random_configs(first_update, seed, caplog):
    train(first_update.random_config(seed), first_update.tanh)
    assert not [record for record in caplog.records if "no first-update check" in record.message]


@pytest.mark.parametrize("squash", [True, False])
def test_narrow_distributions(first_update, squash):
    """A log standard deviation of -5, or 148 times as large a change of log-probabilities."""
    network = {"fcnet_hiddens": [8], "free_log_std": True, "squash_actions": squash}
    config = first_update.config(check_first_update="error").rl_module(model_config=network)
    algo = config.build_algo()
    with torch.no_grad():
        for name, value in algo.get_module().named_parameters():
            if "log_std" in name:
                value.fill_(-5.0)
    algo.train()
    algo.stop()


@pytest.mark.parametrize("autocast", [False, True])
def test_sixteen_bits(first_update, autocast):
    """Outputs in training are as far from the recorded ones as bfloat16 is from float32; a mistake is still found."""
    config = first_update.config().environment(env_config={"actions": "discrete"})
    train(config.rl_module(rl_module_spec=first_update.spec(first_update.half, autocast=autocast)), first_update.tanh)
    with pytest.raises(FirstUpdateError):
        train(config.learners(learner_connector=lambda *_: first_update.tanh()), first_update.tanh, edits=False)


def test_greedy_actions(first_update):
    """Their recorded log-probability is 0, which is not that of the distribution."""
    train(first_update.config().env_runners(explore=False), first_update.tanh)


def test_waiting_agents_with_memory(first_update):
    config = first_update.config().environment(first_update.turns, env_config={})
    config.multi_agent(policies=["p", "q"], policy_mapping_fn={"a": "p", "*": "q"}).training(train_batch_size=16)
    network = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4, "burn_in": 1}
    train(config.rl_module(model_config=network), first_update.tanh)


def test_a_module_that_comes_later(first_update):
    from epibatch.core.rl_module import RLModuleSpec

    config = first_update.config(check_first_update="error").environment(first_update.turns, env_config={})
    algo = config.multi_agent(policies=["p", "q"], policy_mapping_fn={"a": "p", "*": "q"}).build_algo()
    algo.train()
    spec = RLModuleSpec.from_module(algo.get_module("p"))
    algo.add_module("new", spec, new_agent_to_module_mapping_fn={"a": "new", "*": "q"})
    for _ in range(3):
        algo.train()
    algo.stop()
