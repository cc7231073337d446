"""The bonus of random network distillation, against a loop in NumPy."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from fixture_together import learners_in_threads, together

from epibatch.algorithms import PPOConfig
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.rewards import RandomNetworkDistillation
from epibatch.core.errors import CheckpointError, ColumnError, ConfigError, EpibatchError, StateError
from epibatch.core.registry import build_piece
from epibatch.episodes import SingleAgentEpisode
from epibatch.learner import Learner

KEY = "default_policy"
SIZES = {"hiddens": (16, 4), "lr": 1e-2}


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


class Network:
    """A perceptron with ELUs whose gradients are written out, and Adam (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self, state):
        self.weights = [np.float64(state[name]) for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
        self.moments = [(np.zeros_like(w), np.zeros_like(w)) for w in self.weights]
        self.steps = 0

    def __call__(self, x):
        w, b, v, c = self.weights
        return elu(x @ w.T + b) @ v.T + c

    def step(self, x, goal, lr):
        w, b, v, _ = self.weights
        inner = x @ w.T + b
        error = 2 * (self(x) - goal) / goal.size
        back = (error @ v) * np.where(inner > 0, 1, np.exp(np.minimum(inner, 0)))
        self.steps += 1
        for i, g in enumerate((back.T @ x, back.sum(0), error.T @ elu(inner), error.sum(0))):
            first, second = self.moments[i]
            self.moments[i] = first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            first, second = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
            self.weights[i] = self.weights[i] - lr * first / (np.sqrt(second) + 1e-8)


class ByHand:
    """The piece, row after row."""

    def __init__(self, state, piece):
        self.target, self.predictor, self.piece = Network(state["target"]), Network(state["predictor"]), piece
        self.seen, self.errors = [], []

    def error(self, rows):
        if self.piece.state_normalization and len(self.seen) > 1:
            rows = (rows - np.mean(self.seen, 0)) / np.maximum(np.std(self.seen, 0, ddof=1), 1e-8)
            rows = rows.clip(-5, 5)
        return rows, ((self.predictor(rows) - self.target(rows)) ** 2).mean(1)

    def rewards_of(self, rows):
        _, errors = self.error(rows)
        if self.piece.reward_normalization:
            self.errors += list(errors)
            errors = errors / np.std(self.errors, ddof=1)
        return self.piece.weight * errors

    def train_on(self, rows):
        self.seen += list(rows)
        count = -(-len(rows) // self.piece.minibatch_size)
        for first in range(count):
            x, _ = self.error(rows[first::count])
            self.predictor.step(x, self.target(x), self.piece.lr)


def rows_of(length, seed):
    return np.random.default_rng(seed).standard_normal((length + 1, 3)).astype(np.float32)


def episode(length, seed):
    rows = [{"rnd": row, "other": row} for row in rows_of(length, seed)]
    rewards = np.arange(1.0, length + 1).tolist()
    return SingleAgentEpisode(observations=rows, actions=[0] * length, rewards=rewards, len_lookback_buffer=0)


@pytest.mark.parametrize("bootstraps", [False, True])
@pytest.mark.parametrize("normalization", [False, True])
def test_a_pipeline_equals_a_slow_loop(normalization, bootstraps):
    both = {"state_normalization": normalization, "reward_normalization": normalization}
    piece = RandomNetworkDistillation(columns="obs/rnd", weight=0.5, minibatch_size=8, **SIZES, **both)
    fresh = copy.deepcopy(piece)
    fresh.rewards_of(torch.zeros(1, 3))
    by_hand = ByHand(fresh.get_state()["modules"][KEY], piece)
    pieces = [AddOneTsToEpisodesAndTruncate()] * bootstraps + [piece, BatchIndividualItems()]
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    for call in range(4):
        episodes = [episode(9, 10 * call), episode(4, 10 * call + 1)]
        rows = np.concatenate([rows_of(9, 10 * call)[:-1], rows_of(4, 10 * call + 1)[:-1]])
        raw = np.concatenate([np.arange(1.0, 10), np.arange(1.0, 5)])
        batch = pipeline(rl_module=None, batch={}, episodes=episodes, shared_data={})
        expected = by_hand.rewards_of(np.float64(rows))
        by_hand.train_on(np.float64(rows))
        real = np.delete(np.arange(len(batch["rewards"])), [9, 14]) if bootstraps else slice(None)
        np.testing.assert_allclose(batch["intrinsic_rewards"][real], expected, rtol=2e-3, atol=1e-5)
        np.testing.assert_allclose(batch["rewards"][real], raw + expected, rtol=2e-3, atol=1e-5)
        if bootstraps:
            assert not batch["intrinsic_rewards"][[9, 14]].any() and not batch["rewards"][[9, 14]].any()


def test_new_rows_get_more_than_rows_trained_on_whose_error_falls():
    piece, torch_rows = (
        RandomNetworkDistillation(**SIZES),
        torch.randn(256, 5, generator=torch.Generator().manual_seed(0)),
    )
    familiar, new = torch_rows[:128] * 0.3, torch_rows[128:] * 0.3 + 2.0
    errors = [float(piece.train_on(familiar)) for _ in range(200)]
    assert errors[-1] < errors[100] < errors[10] < errors[0] / 2
    assert piece.rewards_of(new).min() > 2 * piece.rewards_of(familiar).mean()


def test_weights_add_and_columns():
    one, two = (
        LearnerConnectorPipeline(connectors=[RandomNetworkDistillation(**options), BatchIndividualItems()])(
            rl_module=None, batch={}, episodes=[episode(6, 0)]
        )
        for options in ({"columns": ["obs/rnd", "obs/other"], "add": False}, {"weight": 3.0, "columns": "obs"})
    )
    assert "rewards" not in one and "rewards" in two
    np.testing.assert_allclose(two["intrinsic_rewards"], 3 * one["intrinsic_rewards"], rtol=1e-5)
    following = LearnerConnectorPipeline(
        connectors=[RandomNetworkDistillation(columns="new_obs"), BatchIndividualItems()]
    )(rl_module=None, batch={}, episodes=[episode(6, 0)])
    np.testing.assert_allclose(following["intrinsic_rewards"][:-1] * 3, two["intrinsic_rewards"][1:], rtol=1e-5)


def test_seeds_decide_the_networks_and_leave_torchs_generator_alone():
    rows = torch.ones(2, 3)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    pieces = [RandomNetworkDistillation(**SIZES) for _ in range(3)]
    pieces[1].seed(np.random.SeedSequence(7)), pieces[2].seed(7)
    values = [float(piece.rewards_of(rows)[0]) for piece in pieces]
    assert values[0] != values[1] == values[2]
    assert torch.equal(torch.rand(3), expected)


def trained(rows, normalization=True):
    piece = RandomNetworkDistillation(**SIZES, state_normalization=normalization, reward_normalization=normalization)
    piece.train_on(rows), piece.rewards_of(rows)
    return piece


def test_a_state_is_data_and_goes_on_bit_for_bit():
    rows = torch.randn(3, 40, 3, generator=torch.Generator().manual_seed(0))
    piece = trained(rows[0])
    state = copy.deepcopy(piece.get_state())
    other = RandomNetworkDistillation(**SIZES, state_normalization=True, reward_normalization=True)
    other.seed(99)
    other.set_state(state)
    np.testing.assert_equal(other.get_state(), state)
    for part in rows[1:]:
        assert torch.equal(piece.rewards_of(part), other.rewards_of(part))
        assert piece.train_on(part) == other.train_on(part)
    np.testing.assert_equal(other.get_state(), piece.get_state())
    assert not np.array_equal(
        state["modules"][KEY]["predictor"]["0.bias"], piece.get_state()["modules"][KEY]["predictor"]["0.bias"]
    )
    piece.reset_state()
    assert piece.get_state() == {}


def test_frozen_pieces_and_acting_copies_do_not_train():
    rows, piece = torch.randn(30, 3), RandomNetworkDistillation(columns="obs/rnd", reward_normalization=True, **SIZES)
    piece.train_on(rows), piece.rewards_of(rows)
    piece.freeze()
    before = copy.deepcopy(piece.get_state())
    LearnerConnectorPipeline(connectors=[piece])(rl_module=None, batch={}, episodes=[episode(5, 0)])
    np.testing.assert_equal(piece.get_state(), before)


def test_merged_predictors_are_means_weighted_by_rows():
    rows = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    copies = [trained(rows[:48]), trained(rows[48:])]
    states = [piece.get_state() for piece in copies]
    merged = copies[0].merge_states(states)
    left, right, out = (state["modules"][KEY] for state in (*states, merged))
    for part in ("0.weight", "2.bias"):
        np.testing.assert_allclose(
            out["predictor"][part], 0.75 * left["predictor"][part] + 0.25 * right["predictor"][part], atol=1e-7
        )
        np.testing.assert_array_equal(out["target"][part], left["target"][part])
    every = rows.double().numpy()
    np.testing.assert_allclose(out["inputs"]["synchronised"]["mean"], every.mean(0))
    assert out["inputs"]["synchronised"]["count"] == 64 and out["num_rows"] == 0
    for piece in copies:
        piece.set_state(merged)
    assert torch.equal(*(piece.rewards_of(rows) for piece in copies))
    stranger = RandomNetworkDistillation(**SIZES)
    stranger.seed(3)
    stranger.rewards_of(rows)
    with pytest.raises(StateError, match="target"):
        copies[0].merge_states([merged, stranger.get_state()])


def test_wrong_rows_states_and_arguments_are_named():
    piece = trained(torch.randn(8, 3))
    with pytest.raises(ColumnError, match="3 entries"):
        piece.rewards_of(torch.zeros(2, 4))
    with pytest.raises(ColumnError, match="float tensor"):
        piece.train_on(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ColumnError, match=r"found:    dict\n.*one tensor"):
        piece.rewards_of({"policy": torch.zeros(2, 3)})
    state = piece.get_state()["modules"][KEY]
    wider = {**state, "predictor": {**state["predictor"], "0.bias": np.zeros(9, np.float32)}}
    for broken in ({}, {**state, "optimizer": {"x": 1}}, wider, {**state, "inputs": 3}, {**state, "num_rows": "many"}):
        before = copy.deepcopy(piece.get_state())
        with pytest.raises(EpibatchError):
            piece.set_state({"modules": {KEY: broken}})
        np.testing.assert_equal(piece.get_state(), before)
    assert issubclass(CheckpointError, EpibatchError)
    for arguments in ({"hiddens": ()}, {"hiddens": (0,)}, {"lr": 0.0}, {"weight": -1.0}, {"minibatch_size": 0}):
        with pytest.raises(ConfigError):
            RandomNetworkDistillation(**arguments)


def test_observations_that_are_not_finite_are_named_and_not_learned():
    piece = RandomNetworkDistillation(columns="obs/rnd", **SIZES)
    pipeline = LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])
    pipeline(rl_module=None, batch={}, episodes=[episode(4, 0)])
    before = copy.deepcopy(piece.get_state())
    broken = episode(4, 0)
    broken.get_observations()["rnd"][1] = np.nan
    with pytest.raises(ColumnError, match="in 1 of 4 rows, first in row 1"):
        pipeline(rl_module=None, batch={}, episodes=[broken])
    np.testing.assert_equal(piece.get_state(), before)


def test_a_config_trains_with_it_and_learners_keep_it_equal():
    spec = {"piece": "random_network_distillation", "weight": 0.1, "hiddens": [8, 4]}
    assert build_piece(spec) == RandomNetworkDistillation(weight=0.1, hiddens=[8, 4])
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=128, num_epochs=1).debugging(seed=0)
    algo = config.learners(learner_connector=[spec]).build_algo()
    algo.train()
    parts = algo.learner_group.learner.parts()

    def member(learners):
        own = {name: copy.deepcopy(parts[name]) for name in ("module", "connector")}
        return Learner(**{**parts, **own}, learners=learners)

    members = [member(learners) for learners in learners_in_threads(2)]
    for _ in range(2):
        shares = [list(algo.env_runner.sample(num_timesteps=50)) for _ in members]
        results = together([lambda own=own, x=x: own.update(episodes=x) for own, x in zip(members, shares)])
        assert all(isinstance(result, dict) for result in results), results
        states = [own.get_state()["connector"] for own in members]
        np.testing.assert_equal(states[0], states[1])
    before = algo.learner.connector.get_state()["random_network_distillation"]["modules"][KEY]
    after = states[0]["random_network_distillation"]["modules"][KEY]
    np.testing.assert_equal(after["target"], before["target"])
    assert not np.array_equal(after["predictor"]["0.bias"], before["predictor"]["0.bias"])
    algo.stop()


def test_the_package_loads_no_torch():
    code = (
        "import sys, epibatch.connectors.rewards as r; r.RandomNetworkDistillation(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_running_moments_are_those_of_all_rows_in_any_split():
    piece = RandomNetworkDistillation(state_normalization=True, reward_normalization=True, **SIZES)
    plain = RandomNetworkDistillation(**SIZES)
    generator, seen, errors = torch.Generator().manual_seed(0), [], []
    for _ in range(4):
        rows = torch.randn((30, 3), generator=generator) * 3 + 7
        scaled = rows
        if seen:
            all_rows = np.concatenate(seen)
            scaled = (rows - torch.tensor(all_rows.mean(0))) / torch.tensor(all_rows.std(0, ddof=1))
            scaled = scaled.clamp(-5, 5).float()
        plain.set_state(piece.get_state()) if seen else None
        errors.append(plain.rewards_of(scaled).numpy().astype(np.float64))
        expected = errors[-1] / np.concatenate(errors).std(ddof=1)
        assert piece.rewards_of(rows).numpy() == pytest.approx(expected, rel=1e-5)
        piece.train_on(rows)
        seen.append(rows.numpy().astype(np.float64))
        again = RandomNetworkDistillation(state_normalization=True, reward_normalization=True, **SIZES)
        again.set_state(copy.deepcopy(piece.get_state()))
        piece = again
    state = piece.get_state()
    assert "torch" not in str(type(state)) and "tensor(" not in repr(state), "a state has arrays"


def test_no_rows_have_no_bonus():
    piece = RandomNetworkDistillation(reward_normalization=True, **SIZES)
    assert piece.rewards_of(torch.zeros(0, 3)).shape == (0,)
