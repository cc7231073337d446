"""Modules act in evaluation mode and learn in training mode, and frozen pipelines stay as they are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from epibatch import Policy
from epibatch.connectors import ConnectorV2
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from fixture_configs import cart_pole

OBSERVATION = np.array([0.5, -0.3, 0.02, 0.4], np.float32)


class Noted(TorchRLModule, ValueFunctionAPI):
    """A network with dropout, batch norm and a frozen part, which notes in which mode each method was called."""

    def setup(self):
        self.modes = []
        self.encoder = nn.Sequential(nn.BatchNorm1d(4)).eval()
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.pi, self.vf = nn.Linear(4, 2), nn.Linear(4, 1)

    def note(self, method):
        self.modes.append((method, self.training, self.norm.training, self.encoder.training))

    def _forward(self, batch, **kwargs):
        self.note("act")
        return {"action_dist_inputs": self.pi(self.dropout(self.norm(batch["obs"])))}

    def _forward_train(self, batch, **kwargs):
        self.note("train")
        return {"action_dist_inputs": self.pi(self.dropout(self.norm(self.encoder(batch["obs"]))))}

    def compute_values(self, batch, embeddings=None):
        self.note("values" if torch.is_grad_enabled() else "values of the pipeline")
        return self.vf(batch["obs"]).squeeze(-1)


def config(**env_runners):
    made = cart_pole(train_batch_size=64).rl_module(rl_module_spec=RLModuleSpec(module_class=Noted), model_config={})
    return made.env_runners(**env_runners).debugging(check_first_update="off")


@pytest.fixture
def algo():
    algorithm = config().build_algo()
    yield algorithm
    algorithm.stop()


def test_acting_is_in_evaluation_mode_and_gradient_steps_are_not(algo):
    module = algo.get_module()
    algo.train()
    algo.act(OBSERVATION)
    assert set(module.modes) == {
        ("act", False, False, False),
        ("values of the pipeline", False, False, False),
        ("train", True, True, False),
        ("values", True, True, False),
    }
    assert (module.training, module.norm.training, module.encoder.training) == (True, True, False)
    assert module.norm.num_batches_tracked == 2, "statistics move with gradient steps alone"


def test_a_module_in_evaluation_mode_is_left_so(algo):
    algo.get_module().eval()
    algo.train()
    assert {modes for _, *modes in map(list, algo.get_module().modes) for modes in modes} == {False}


def test_the_mode_comes_back_after_an_error(algo):
    with pytest.raises(ValueError, match="observation"):
        algo.act(np.zeros(5, np.float32))
    algo.get_module().pi = nn.Linear(7, 2)
    with pytest.raises(RuntimeError):
        algo.env_runner.sample(num_timesteps=4)
    assert algo.get_module().training and algo.get_module().norm.training


def test_greedy_actions_are_the_same_every_time(algo, tmp_path):
    algo.train()
    algo.save_to_path(tmp_path / "saved")
    for policy in (algo.get_policy(), Policy.from_checkpoint(tmp_path / "saved", config=algo.config)):
        assert len({int(policy.act(OBSERVATION)[0]) for _ in range(20)}) == 1


class Counting(ConnectorV2):
    """Counts its calls; heeds `frozen` if `heeds` is set."""

    heeds, count = False, 0

    def __call__(self, *, batch, **kwargs):
        self.count += not (self.heeds and self.frozen)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


class Heeding(Counting):
    heeds = True


@pytest.mark.parametrize("piece", [Counting, Heeding])
def test_a_frozen_piece_whose_state_moves_is_warned_of_once(piece):
    made = config(env_to_module_connector=lambda env: piece())
    algorithm = made.evaluation(evaluation_duration=1).build_algo()
    for call in (lambda: algorithm.act(OBSERVATION), algorithm.evaluate):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                call()
        told = [str(each.message) for each in caught]
        assert len(told) == (piece is Counting)
        assert all("another state of Counting after a call" in text for text in told)
    algorithm.stop()
