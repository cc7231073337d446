"""Correct runs pass the first-update check, which leaves no trace in them."""

from __future__ import annotations

import logging
import random
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fixture_cases import slow

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.env_to_module import MeanStdFilter, WriteObservationsToEpisodes
from epibatch.connectors.images import RandomCrop
from epibatch.connectors.observations import Clip
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core.errors import FirstUpdateError
from epibatch.core.rl_module import TorchRLModule, ValueFunctionAPI

STACK = {"piece": "frame_stacking", "num_frames": 2, "axis": -1}


def both(config: Any, acting: Any, training: Any) -> Any:
    config.env_runners(env_to_module_connector=lambda *_: acting())
    return config.learners(learner_connector=lambda *_: training())


class Shift(ColumnTransform):
    """Subtracts what was measured elsewhere, which is neither argument nor state."""

    columns = "obs"

    def transform(self, x: Any) -> Any:
        return x - vars(self)["measured"]


SHIFT = Shift()
vars(SHIFT)["measured"] = np.float32(2.0)
SHIFT.share()


class Images(ColumnTransform):
    columns = "obs"

    def transform(self, x: Any) -> Any:
        return np.tile(x[:, :, None, None], (1, 2, 6, 1)).astype(np.float32)


class Flat(ColumnTransform):
    columns = "obs"

    def transform(self, x: Any) -> Any:
        return x.reshape(len(x), -1)


def train(config: Any, tanh: Any, edits: bool = True) -> None:
    """Three iterations, the second after an edit; a difference is an error."""
    algo = config.debugging(check_first_update="error").build_algo()
    logging.getLogger("epibatch").setLevel("INFO")
    algo.train()
    for side in ("env_to_module", "learner") if edits else ():
        algo.pipelines[side].insert_before("AddObservationsFromEpisodesToBatch", tanh(factor=0.7))
    for _ in range(2 if edits else 1):
        algo.train()
    algo.stop()


@pytest.mark.parametrize("seed", [0, 2, 6, *map(slow, sorted({*range(300)} - {0, 2, 6}))])
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


@pytest.mark.parametrize(
    "same",
    [
        lambda config, parts: config.env_runners(explore=False),  # greedy actions are recorded with 0, not their logp
        lambda config, parts: both(config, lambda: [parts.tanh(factor=2)], lambda: [parts.tanh(factor=2.0)]),
        lambda config, parts: both(config, lambda: [MeanStdFilter(), STACK], lambda: [STACK]),
        lambda config, parts: both(
            config, lambda: [parts.tanh(), WriteObservationsToEpisodes(), Clip(low=0.0)], lambda: [Clip(low=0.0)]
        ),
        lambda config, parts: both(config, lambda: [parts.frozen(0)], lambda: [parts.frozen(0)]),
        lambda config, parts: both(config, lambda: [], lambda: [parts.noise()]),
        lambda config, parts: both(config, lambda: [parts.tanh()], lambda: [parts.tanh(), parts.noise()]),
        lambda config, parts: both(config, lambda: [SHIFT], lambda: [SHIFT, parts.noise()]),
        *(
            lambda config, parts, size=size: both(config, *[lambda: [Images(), RandomCrop(**size), Flat()]] * 2)
            for size in ({"pad": 2}, {"height": 4, "width": 4})
        ),
    ],
    ids=["greedy", "arguments", "filter", "written", "weights", "training only", "both", "unshared", "pad", "crop"],
)
def test_two_sides_that_compute_the_same(first_update, same):
    train(same(first_update.config(), first_update), first_update.tanh, edits=False)


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


def rewards(*more: Any) -> Any:
    return lambda *_: [NormalizeReward(), Doubled(), *[piece() for piece in more]]


@pytest.mark.parametrize(
    "change",
    [
        lambda config, parts: config.rl_module(rl_module_spec=parts.spec(Drawing)),
        lambda config, parts: config.learners(learner_connector=rewards(), columns="auto"),
        lambda config, parts: config.learners(learner_connector=rewards(parts.noise)),
        lambda config, parts: config.rl_module(
            model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5, "burn_in": 2}
        ),
    ],
    ids=["drawing", "statistics", "augmented", "lstm"],
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
            algo.pipelines["learner"].prepend(first_update.noise())
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
