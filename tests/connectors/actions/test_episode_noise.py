"""Random numbers that stay the same for a whole episode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import EpisodeNoise
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode


def episodes(*names):
    return [SingleAgentEpisode(id_=name, observations=[0.0]) for name in names]


def numbers(piece, *names):
    column = piece(batch={}, episodes=episodes(*names))["noise"]
    return {key[0]: items[0] for key, items in column.items()}


def test_numbers_stay_with_their_episode_whoever_else_is_there():
    piece = EpisodeNoise(shape=[2, 3])
    piece.seed(0)
    first = numbers(piece, "a", "b")
    assert first["a"].shape == (2, 3) and first["a"].dtype == np.float32 and not (first["a"] == first["b"]).any()
    only, later = numbers(piece, "b"), numbers(piece, "c", "a", "b")
    assert (only["b"] == first["b"]).all() and (later["b"] == first["b"]).all() and (later["a"] == first["a"]).all()
    assert not (later["c"] == first["a"]).any()
    drawn = np.concatenate([own.ravel() for own in numbers(piece, *map(str, range(2000))).values()])
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0, 1], atol=0.03)


def test_only_as_many_are_kept_as_can_be_running():
    piece = EpisodeNoise(shape=[1])
    running = numbers(piece, *map(str, range(50)))
    for i in range(300):
        numbers(piece, f"ended {i}")
        assert (numbers(piece, *map(str, range(50)))["7"] == running["7"]).all()
    assert len(piece.get_state()["known"]) <= 2 * 51 + 64


class Noisy(TorchRLModule):
    """Acts by the numbers alone, and gives them to be recorded."""

    def _forward(self, batch, **kwargs):
        noise = batch["noise"]
        return {"actions": noise[:, 0].clamp(-1, 1), "action_logp": torch.zeros(len(noise)), "drawn": noise[:, 0]}


def config(env):
    made = PPOConfig().environment(env).debugging(seed=0)
    made.env_runners(
        num_envs_per_env_runner=3, env_to_module_connector=lambda env, spaces, device: EpisodeNoise(shape=[1, 1])
    )
    return made.rl_module(rl_module_spec=RLModuleSpec(module_class=Noisy))


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_runs_draw_once_per_episode(mode):
    def short(env_config):
        return gym.wrappers.TimeLimit(gym.make("Pendulum-v1").unwrapped, max_episode_steps=7)

    runner = SingleAgentEnvRunner(config=config(short).env_runners(gym_env_autoreset_mode=mode))
    seen = {}
    for _ in range(4):  # cuts episodes in between
        for episode in runner.sample(num_timesteps=30):
            seen.setdefault(episode.id_, set()).update(episode.get_extra_model_outputs("drawn").ravel().tolist())
    assert len(seen) > 12 and all(len(own) == 1 for own in seen.values())
    assert len(set.union(*seen.values())) == len(seen)
    runner.stop()


@pytest.mark.parametrize("keywords", [{"shape": 3}, {"shape": [0]}, {"shape": [True]}, {"shape": [1], "column": ""}])
def test_what_cannot_be_meant_is_named(keywords):
    with pytest.raises(ConfigError, match=r"shape=\[64, 2\]"):
        EpisodeNoise(**keywords)
