"""DQN and SAC learn; slow."""

from __future__ import annotations

import pytest

from epibatch.algorithms import DQNConfig, SACConfig
from fixture_configs import best_return

PLAIN = {"type": "EpisodeReplayBuffer", "capacity": 50_000}
PRIORITIES = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4}


@pytest.mark.slow
@pytest.mark.parametrize(("n_step", "buffer"), [(1, PLAIN), (3, PRIORITIES)], ids=["plain", "3 steps, prioritised"])
def test_dqn_balances_the_pole(n_step, buffer):
    best = []
    for seed in range(4):
        config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=4).debugging(seed=seed)
        config.training(lr=1e-3, train_batch_size=64, training_intensity=32, n_step=n_step, replay_buffer_config=buffer)
        config.training(epsilon=[[0, 1.0], [8000, 0.04]], target_network_update_freq=100)
        best.append(best_return(config.rl_module(model_config={"fcnet_hiddens": [64, 64]}), 50_000, 475))
        if best[-1] >= 475:
            break
    assert max(best) >= 475, best


@pytest.mark.slow
def test_sac_swings_the_pendulum_up():
    best = []
    for seed in range(4):
        config = SACConfig().environment("Pendulum-v1").debugging(seed=seed)
        config.training(lr=1e-3, train_batch_size=128, num_steps_sampled_before_learning_starts=500, initial_alpha=0.2)
        config.rl_module(model_config={"fcnet_hiddens": [64, 64], "head_fcnet_hiddens": []})
        best.append(best_return(config, 10_000, -200))
        if best[-1] >= -200:
            break
    assert max(best) >= -200, best
