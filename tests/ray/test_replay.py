"""Replay with runners and learners in processes: values of rows in the order of the draw, and a killed runner."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from epibatch.algorithms import DQNConfig, DQNRule
from epibatch.learner import Losses
from fixture_envs import CountingEnv


class ObservedRule(DQNRule):
    """Gives back each row's observation in place of its error."""

    def losses(self, batch, module, own, coefficients):
        losses = super().losses(batch, module, own, coefficients)
        return Losses(losses.losses, losses.metrics, {"td_error": batch["obs"][:, 0]})


class NotingConfig(DQNConfig):
    """DQN in iterations of 120 steps, whose source notes what was drawn, and the values of its rows."""

    rule, min_env_steps_per_iteration = ObservedRule, 120

    def make_source(self, env_runner_group):
        source = super().make_source(env_runner_group)
        drawn, pairs, sample, learned = [], [], source.sample, source.learned

        def noted_sample():
            drawn[:] = [sample()]
            return drawn[0]

        def noted_learned(rows):
            obs = np.array([episode.get_observations(0)[0] for episode in drawn[0]])
            pairs.append((obs, rows["default_policy"]["td_error"].numpy()))
            learned(rows)

        source.sample, source.learned = noted_sample, noted_learned
        self.__dict__.update(source=source, pairs=pairs)
        return source


@pytest.mark.filterwarnings("ignore:(?s).*replaced, ")
def test_prioritised_replay_with_two_runners_and_two_learners(cluster):
    config = (
        NotingConfig()
        .environment(CountingEnv, env_config={"length": 9})
        .env_runners(num_env_runners=2, num_cpus_per_env_runner=0, rollout_fragment_length=20)
        .learners(num_learners=2, num_cpus_per_learner=0)
        .training(
            train_batch_size=5, training_intensity=2, num_steps_sampled_before_learning_starts=40,
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 2000},
        )
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=3)
    )  # fmt: skip
    algo = config.build_algo()
    source = algo.config.__dict__["source"]
    results = algo.train()
    assert results["num_env_steps_sampled_lifetime"] == 120
    assert results["replay_buffer"]["num_env_steps_sampled"] == 2 * 80
    assert results["learners"]["__all_modules__"]["num_gradient_steps"] == 16, "of 10 rows each"
    (pid, *_) = algo.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
    os.kill(pid, signal.SIGKILL)
    results = algo.train()
    assert results["fault_tolerance"]["num_env_runner_restarts"] == 1
    assert results["fault_tolerance"]["num_env_steps_lost"] <= 20
    assert len(source.buffer) == results["num_env_steps_sampled_lifetime"] >= 240
    for expected, values in algo.config.__dict__["pairs"]:
        np.testing.assert_array_equal(values, expected)
    for episode in source.buffer.sample(100):
        before, after = episode.get_observations()
        assert after[0] == before[0] + 1
    algo.stop()
