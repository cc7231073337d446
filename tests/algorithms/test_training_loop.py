"""`train` is equal, to the bit, to a loop written by hand from public parts: sample, pipeline, minibatches, Adam."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch

from epibatch.algorithms.algorithm import StepResult
from epibatch.algorithms.ppo import PPO, PPOConfig
from epibatch.core.errors import CheckpointError
from epibatch.env_runner.multi_agent_env import make_multi_agent
from epibatch.learner import Minibatches, PPOLoss, PPOSettings

ITERATIONS = 5
LSTM = {"use_lstm": True, "max_seq_len": 10, "lstm_cell_size": 8}
RUNNER_KEYS = {"num_env_steps_sampled", "num_env_steps_sampled_lifetime", "episode_return_mean", "num_episodes"}
LEARNER_KEYS = {
    *("total_loss", "policy_loss", "vf_loss", "vf_loss_unclipped", "entropy", "mean_kl"),
    *("grad_norm", "explained_variance", "lr", "kl_coeff", "num_rows", "num_minibatches"),
}


def config(case):
    """The config of a case, with small networks."""
    model = {"fcnet_hiddens": [16], **(LSTM if case.endswith("lstm") else {})}
    made = PPOConfig().debugging(seed=5).rl_module(model_config=model)
    made.training(train_batch_size=128, minibatch_size=32, num_epochs=2, lr=1e-2, grad_clip=0.5, kl_target=1e-3)
    if case.startswith("agents"):
        made.environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 3})
        return made.multi_agent(policies=["left", "right"], policy_mapping_fn={"0": "left", "*": "right"})
    return made.environment("CartPole-v1").env_runners(num_envs_per_env_runner=4)


class HandLoop:
    """PPO's update of one module as the paper has it, with the gradients scaled to the bound of their norm."""

    def __init__(self, module, row_order):
        self.module, self.kl_coeff = module, 0.2
        self.generator = torch.Generator()
        self.generator.set_state(torch.from_numpy(row_order))
        self.parameters = list(module.parameters())
        self.adam = torch.optim.Adam(self.parameters, lr=1e-2, fused=True)
        self.loss = PPOLoss(PPOSettings(kl_target=1e-3))

    def update(self, columns):
        minibatches = Minibatches(columns, size=32, epochs=2, shuffle="epoch", generator=self.generator)
        for epoch in minibatches.by_epoch():
            divergences = [self.step(minibatch) for minibatch in epoch]
        divergence = sum(value * rows for value, rows in divergences) / sum(rows for _, rows in divergences)
        self.kl_coeff *= 1.5 if divergence > 2e-3 else 0.5 if divergence < 5e-4 else 1.0

    def step(self, minibatch):
        outputs = self.module.forward_train(minibatch)
        outputs["vf_preds"] = self.module.compute_values(minibatch, embeddings=outputs.get("embeddings"))
        distribution = self.module.get_train_action_dist_cls()
        loss, metrics = self.loss(minibatch, outputs, distribution, {"kl_coeff": self.kl_coeff})
        self.adam.zero_grad()
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in self.parameters]))
        if norm > 0.5:
            for parameter in self.parameters:
                parameter.grad.mul_(0.5 / (norm + 1e-6))
        self.adam.step()
        mask = minibatch.get("loss_mask")
        rows = int(mask.sum()) if mask is not None and mask.ndim > 1 else len(minibatch["advantages"])
        return float(metrics["mean_kl"]), rows


def by_hand(case):
    """Weights after each iteration, the KL coefficients at the end, and environment steps."""
    algo = config(case).build_algo()
    modules, order = algo.learner.module, algo.learner.get_state()["generators"]
    loops = {key: HandLoop(module, order[key]) for key, module in modules.items()}
    weights, steps = [], 0
    for _ in range(ITERATIONS):
        episodes = algo.env_runner.sample(num_timesteps=128)
        steps += sum(len(episode) for episode in episodes)
        batch = algo.pipelines["learner"](rl_module=modules, batch={}, episodes=episodes, shared_data={})
        for key, columns in batch.items():
            loops[key].update(columns)
        algo.env_runner.weights_updated()
        weights.append(copy.deepcopy({key: module.get_state() for key, module in modules.items()}))
    algo.stop()
    return weights, {key: loop.kl_coeff for key, loop in loops.items()}, steps


@pytest.mark.parametrize("case", ["mlp", "lstm", "agents", pytest.param("agents-lstm", marks=pytest.mark.slow)])
def test_train_takes_the_steps_of_a_loop_by_hand(case):
    weights, coefficients, steps = by_hand(case)
    algo = config(case).build_algo()
    for iteration in range(ITERATIONS):
        results = algo.train()
        for key, module in algo.learner.module.items():
            for name, value in module.get_state().items():
                assert np.array_equal(value, weights[iteration][key][name]), (iteration, key, name)
            assert results["learners"][key].keys() >= LEARNER_KEYS
        assert results["env_runners"].keys() >= RUNNER_KEYS
        assert results["timers"].keys() == {"sample", "learn"}
    assert results["num_env_steps_sampled_lifetime"] == steps
    assert results["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"] == steps
    state = algo.get_state()
    assert {key: values["kl_coeff"] for key, values in state["learner"]["coefficients"].items()} == coefficients
    assert state["counters"]["training_iteration"] == ITERATIONS
    assert state.keys() == {"learner", "env_runner", "counters", "evaluation", "added_views", "random"}
    parts = {"module", "optimizers", "coefficients", "generators", "connector"}
    assert state["learner"].keys() == {*parts, "num_updates", "num_gradient_steps", "num_env_steps"}
    algo.stop()


class TwoBatches(PPO):
    """PPO that learns twice from what it sampled, and counts that."""

    passes = 0

    def training_step(self):
        episodes = self.env_runner.sample(num_timesteps=64)
        for _ in range(2):
            results = self.learner_group.update(episodes=episodes)
            self.passes += 1
        self.env_runner.weights_updated()
        return StepResult(results, sum(map(len, episodes)), {"first": 0.25, "second": 0.0})

    def state_parts(self):
        return {**super().state_parts(), "passes": (lambda: self.passes, self.set_passes)}

    def set_passes(self, passes):
        self.passes = int(passes)


def test_a_training_step_of_ones_own_is_counted_reported_and_saved(tmp_path):
    with contextlib.ExitStack() as stack:
        algo = TwoBatches(config("mlp").training(num_epochs=1))
        stack.callback(algo.stop)
        results = [algo.train() for _ in range(2)][-1]
        steps = results["num_env_steps_sampled_lifetime"]
        assert results["training_iteration"] == 2 and steps >= 128
        assert results["timers"] == {"first": 0.25, "second": pytest.approx(results["time_this_iter_s"] - 0.25)}
        learned = results["learners"]["__all_modules__"]
        assert (learned["num_updates"], learned["num_env_steps_trained_lifetime"]) == (4, 2 * steps)
        algo.save_to_path(tmp_path / "saved")
        algo.train()
        algo.restore_from_path(tmp_path / "saved")
        assert (algo.passes, algo.training_iteration) == (4, 2)
        with pytest.raises(CheckpointError) as raised:
            algo.set_state({**algo.get_state(), "passes": "many"})
        assert "'passes'" in raised.value.expected
        assert algo.passes == 4
