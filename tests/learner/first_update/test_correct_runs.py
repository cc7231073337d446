"""Correct runs pass the first-update check, which leaves no trace in them."""

from __future__ import annotations

import logging
import random
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core.errors import FirstUpdateError
from epibatch.core.rl_module import TorchRLModule, ValueFunctionAPI


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


class Drawing(TorchRLModule, ValueFunctionAPI):
    """Draws from three generators in training, has batch norm, and changes its observations in place."""

    def setup(self) -> None:
        self.norm, self.drop = torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)
        self.pi = torch.nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.own, self.seen = torch.Generator().manual_seed(3), np.zeros(3)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.pi(self.norm(batch["obs"]))}

    def _forward_train(self, batch: Any, **kwargs: Any) -> Any:
        self.calls = self.calls + 1
        self.seen += batch["obs"].numpy().mean(0)
        batch["obs"].mul_(0.5)
        noise = np.random.normal() + random.random() + torch.rand((), generator=self.own) + float(self.seen.sum())
        return {"action_dist_inputs": self.pi(self.drop(self.norm(batch["obs"]))) + noise}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.pi(batch["obs"])[:, 0]


class Noise(ColumnTransform):
    """Draws from the global generator, for training alone."""

    columns = "obs"
    training_only = True

    def transform(self, x: Any) -> Any:
        return x + np.random.normal(size=x.shape).astype(x.dtype)


class Acted(ColumnTransform):
    """Adds something while acting alone."""

    columns = "obs"

    def transform(self, x: Any) -> Any:
        return x + 1


class Doubled(ConnectorV2):
    """Doubles the episodes' rewards in place, and counts its calls."""

    calls: ClassVar[list[int]] = []

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_rewards(new_data=2.0 * episode.get_rewards())
        if metrics is not None:
            metrics.log_value("doubled", 1, reduce="sum")
        return batch


def pieces(name: str) -> Any:
    return {
        "augmented": lambda *_: [NormalizeReward(), Doubled(), Noise()],
        "plain": lambda *_: [NormalizeReward(), Doubled()],
    }[name]


@pytest.mark.parametrize(
    "change",
    [
        lambda config, parts: config,
        lambda config, parts: config.rl_module(rl_module_spec=parts.spec(Drawing)),
        lambda config, parts: config.learners(learner_connector=pieces("plain"), columns="auto"),
        lambda config, parts: config.learners(learner_connector=pieces("augmented")),
        lambda config, parts: config.rl_module(
            model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5, "burn_in": 2}
        ),
    ],
    ids=["plain", "drawing", "statistics", "augmented", "lstm"],
)
def test_a_run_is_the_same_with_and_without(first_update, change):
    runs = []
    for mode in ("off", "warn"):
        config = first_update.config(check_first_update=mode)
        change(config, first_update)
        config.env_runners(env_to_module_connector=["mean_std_filter"])
        algo, results = config.build_algo(), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(algo.train())
            algo.pipelines["learner"].prepend(Noise())
            algo.pipelines["env_to_module"].insert_before("AddObservationsFromEpisodesToBatch", Acted())
            results += [algo.train(), algo.train()]
        runs.append((without_times(algo.get_state()), [without_times(each) for each in results]))
        algo.stop()
    np.testing.assert_equal(runs[0][1], runs[1][1])
    np.testing.assert_equal(runs[0][0], runs[1][0])


def without_times(tree: Any) -> Any:
    """Nested results without seconds, and with numbers for the random ids of episodes."""
    if not isinstance(tree, dict):
        return tree
    kept = {
        key: value for key, value in tree.items() if not ("time" in str(key) or str(key).endswith(("_s", "sample")))
    }
    return {i if len(str(key)) == 32 else key: without_times(value) for i, (key, value) in enumerate(kept.items())}
