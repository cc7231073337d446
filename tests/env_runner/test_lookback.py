"""Chunks keep what pieces read of earlier steps, and the spaces of what they make."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.columns import Columns
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner
from fixture_envs import CountingEnv


def stacking(num_frames):
    """An undeclared stacking piece, as users write it."""

    class Stack(ConnectorV2):
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return gym.spaces.Box(-np.inf, np.inf, (2 * num_frames,), np.float32)

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                frames = episode.get_observations(list(range(-num_frames, 0)), fill=0.0)
                self.add_batch_item(batch, Columns.OBS, np.concatenate(frames), episode)
            return batch

    return Stack()


class Still(TorchRLModule):
    """Keeps what it is given."""

    def setup(self):
        self.calls = []

    def _forward(self, batch, **kwargs):
        self.calls.append(batch[Columns.OBS].numpy().copy())
        return {Columns.ACTIONS: torch.zeros(len(batch[Columns.OBS]), dtype=torch.int64)}


@pytest.mark.parametrize(("num_frames", "lookback"), [(1, 1), (2, 1), (4, 3)])
def test_chunks_carry_what_an_undeclared_piece_was_seen_to_read(toys, num_frames, lookback):
    config = toys.config(2, env_to_module_connector=lambda env, spaces, device: stacking(num_frames))
    runner = toys.runner(config=config.rl_module(rl_module_spec=RLModuleSpec(module_class=Still)))
    assert runner.get_spaces()["default_policy"][0].shape == (2 * num_frames,)
    for _ in range(8):
        for chunk in runner.sample(num_timesteps=2):
            assert chunk.lookback == min(chunk.t_started, lookback)
    for rows in runner.module.calls:  # no stack has zeros where frames exist: its times go up one by one
        for times in rows.reshape(2, num_frames, 2)[..., 1].astype(int):
            assert times.tolist() == [max(0, times[-1] - back) for back in reversed(range(num_frames))]


@pytest.mark.parametrize(
    ("fragment", "horizon", "required", "lookback"),
    [(1, 1, 0, 3), (2, 1, 0, 3), (3, 1, 0, 3), (5, 1, 0, 3), (1, 6, 0, 6), (1, 1, 5, 5), (1, 0, None, 99)],
)
def test_chunks_carry_the_largest_of_what_is_declared_set_and_required(fragment, horizon, required, lookback):
    """Frame stacking declares 3 steps; None: whatever there is."""
    config = PPOConfig().environment(lambda config: gym.wrappers.ReshapeObservation(CountingEnv(9), (1, 1)))
    stack = [{"piece": "frame_stacking", "num_frames": 4}]
    config.env_runners(num_envs_per_env_runner=2, env_to_module_connector=stack, episode_lookback_horizon=horizon)
    runner = SingleAgentEnvRunner(config=config.rl_module(rl_module_spec=RLModuleSpec(module_class=Still)))
    runner.require_lookback(required)
    seen = []
    for _ in range(12):
        for chunk in runner.sample(num_timesteps=2 * fragment):
            seen.append(chunk.t_started)
            assert chunk.lookback == min(chunk.t_started, lookback)
            rows = chunk.get_observations(slice(-chunk.lookback, None), neg_index_as_lookback=True)[:, 0, 0]
            np.testing.assert_array_equal(rows, np.arange(chunk.t_started - chunk.lookback, chunk.t + 1))
    assert max(seen) >= 3
    for rows in runner.module.calls:
        stacks = rows.reshape(2, 4)
        np.testing.assert_array_equal(stacks, np.maximum(stacks[:, 3:] + np.arange(-3, 1), 0))
    runner.stop()


def test_spaces_by_name(toys):
    spaces = toys.runner(2).get_spaces()
    assert spaces["__env__"][0].shape == (2, 2) and spaces["__env_single__"][0].shape == (2,)
    assert spaces["default_policy"][1] == gym.spaces.Discrete(2)
