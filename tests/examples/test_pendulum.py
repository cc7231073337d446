"""Pendulum: what the environment is given, what is stored and trained on, and a run's first iteration."""

from __future__ import annotations

import numpy as np
import torch

from epibatch.episodes import SingleAgentEpisode


def test_actions_are_stretched_and_clipped_for_the_environment_alone(load_example, monkeypatch):
    example = load_example("pendulum")
    algorithm = example.config_for(example.Options()).build_algo()
    env, sent = algorithm.env_runner.env, []
    step = env.step
    monkeypatch.setattr(env, "step", lambda actions: sent.append(actions.copy()) or step(actions))
    episodes = algorithm.env_runner.sample(num_timesteps=800)  # 100 in each of eight environments: no episode ends
    own = np.stack([episode.get_actions() for episode in episodes], 1)
    assert np.abs(own).max() > 1  # the Gaussian knows no bounds
    np.testing.assert_allclose(sent, np.clip(2 * own, -2, 2), rtol=1e-6, atol=1e-6)
    inputs = torch.tensor(np.stack([episode.get_extra_model_outputs("action_dist_inputs") for episode in episodes], 1))
    logp = np.stack([episode.get_extra_model_outputs("action_logp") for episode in episodes], 1)
    normal = torch.distributions.Normal(inputs[..., 0], inputs[..., 1].exp())
    np.testing.assert_allclose(logp, normal.log_prob(torch.tensor(own[..., 0])), rtol=1e-4, atol=1e-5)
    algorithm.stop()


def test_observations_are_filtered_and_rewards_scaled(load_example):
    example = load_example("pendulum")
    algorithm = example.config_for(example.Options()).build_algo()
    episodes = algorithm.env_runner.sample(num_timesteps=1600)
    speeds = np.concatenate([episode.get_observations()[-100:, 2] for episode in episodes])
    assert np.abs(speeds).mean() < 2.5 and np.abs(speeds).max() < 8  # -8 to 8 unfiltered
    rewards = [episode.get_rewards().copy() for episode in episodes]
    (batch,) = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
    np.testing.assert_allclose(batch["rewards"][batch["loss_mask"]], 0.1 * np.concatenate(rewards), rtol=1e-5)
    algorithm.stop()


def test_the_piece_by_itself(load_example):
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[-4.0, 2.0], len_lookback_buffer=0)
    piece = load_example("pendulum").ScaleRewards(scale=0.5)
    assert piece(batch={}, episodes=[episode]) == {}
    assert episode.get_rewards().tolist() == [-2.0, 1.0]
