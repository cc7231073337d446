"""`epibatch record`: whole episodes of what a run has trained."""

from __future__ import annotations

import re

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from epibatch.algorithms import BCConfig, DQNConfig, PPOConfig
from epibatch.cli import app
from epibatch.core.errors import ConfigError
from epibatch.core.registry import register_env
from epibatch.env_runner import make_multi_agent
from epibatch.offline import EpisodeBatches, check_episodes, read_episodes


class Fickle(gym.Env):
    """Episodes of 2 or of 40 steps, both equally likely; actions from -3 to 3, which observations repeat."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Box(-3, 3, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.choice([2, 40]))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._left -= 1
        return action.astype(np.float32), 1.0, self._left == 0, False, {}


register_env("recorded_fickle", lambda config: Fickle())


@pytest.fixture
def record(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = (
        PPOConfig()
        .environment("recorded_fickle")
        .env_runners(num_envs_per_env_runner=4, env_to_module_connector=["mean_std_filter"])
    )
    config.training(train_batch_size=40, minibatch_size=40, num_epochs=1).debugging(seed=1)
    algo = config.rl_module(model_config={"fcnet_hiddens": [4]}).build_algo()
    algo.train()
    algo.save_to_path("run/checkpoints/000001")
    algo.stop()
    return lambda *words: CliRunner().invoke(app, ["record", *map(str, words)])


def test_whole_episodes_are_recorded_and_a_seed_repeats_them(record):
    result = record("run", "--episodes", 50, "--to", "data", "--seed", 3)
    assert result.exit_code == 0, result.output
    data = read_episodes("data")
    assert len(data) == 50 and set(data.lengths.tolist()) == {2, 40}
    assert check_episodes(data) == [] and data.terminateds.all() and not data.starts.any()
    assert data.env == "recorded_fickle"
    mean = f"{data.returns.mean():,.6g}"
    assert result.stdout == f"50 episodes, {data.num_steps:,} steps, mean return {mean}: data\n"
    for episode in data:
        acted, sent = episode.get_actions(), episode.get_extra_model_outputs("actions_for_env")
        np.testing.assert_allclose(sent, 3 * np.clip(acted, -1, 1), atol=1e-6)
        assert acted == pytest.approx(episode.get_extra_model_outputs("action_dist_inputs")[:, :1])  # the mean
    record("run", "--episodes", 50, "--to", "again", "--seed", 3)
    record("run", "--episodes", 50, "--to", "other", "--seed", 4)
    again, other = (read_episodes(name) for name in ("again", "other"))
    assert all(np.array_equal(a.get_actions(), b.get_actions()) for a, b in zip(data, again, strict=True))
    assert data.lengths.tolist() != other.lengths.tolist()


def test_short_episodes_are_not_favoured(record):
    """Of each environment as many: those of 40 steps are half of all; by who ends first they would be a tenth."""
    record("run", "--episodes", 40, "--to", "data", "--seed", 0)
    assert 12 <= (read_episodes("data").lengths == 40).sum() <= 28


def test_actions_are_drawn_if_asked_for(record):
    record("run", "--episodes", 3, "--to", "data", "--explore")
    episode = read_episodes("data")[0]
    assert np.abs(episode.get_actions() - episode.get_extra_model_outputs("action_dist_inputs")[:, :1]).min() > 0


def test_wrong_use_leaves_nothing(record, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    for words, message in [
        (["nowhere", "--to", "data"], "nowhere"),
        (["run", "--to", "full"], "a path where nothing is"),
        (["run", "--to", "data", "--format", "parket"], "parquet"),
    ]:
        result = record(*words)
        assert result.exit_code == 2 and message in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "run"]


class Broken(Fickle):
    """Raises in its second episode."""

    episodes = 0

    def reset(self, **arguments):
        Broken.episodes += 1
        return super().reset(**arguments)

    def step(self, action):
        if Broken.episodes > 2:
            raise RuntimeError("the motor is off")
        return super().step(action)


def test_an_environment_that_fails_is_reported_and_nothing_is_written(record, tmp_path):
    register_env("recorded_fickle", lambda config: Broken())
    try:
        result = record("run", "--episodes", 50, "--to", "data")
    finally:
        register_env("recorded_fickle", lambda config: Fickle())
    assert result.exit_code == 3 and re.search("RuntimeError.*the motor is off", result.stderr)
    assert not (tmp_path / "data").exists()


def test_a_run_with_a_replay_buffer_that_was_not_saved_is_recorded_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = DQNConfig().environment("CartPole-v1").training(num_steps_sampled_before_learning_starts=990)
    algo = config.debugging(seed=1).build_algo()
    algo.train()
    algo.save_to_path("run/checkpoints/000001")
    algo.stop()
    result = CliRunner().invoke(app, ["record", "run", "--episodes", "2", "--to", "data"])
    assert result.exit_code == 0 and "replay buffer" not in result.output, result.output


def test_whole_episodes_of_several_agents_are_recorded_and_learned_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    register_env("recorded_agents", make_multi_agent("CartPole-v1"))
    config = PPOConfig().environment("recorded_agents", env_config={"num_agents": 2}).multi_agent(policies=["main"])
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=5)
    algo = config.training(train_batch_size=40, minibatch_size=40, num_epochs=1).debugging(seed=1).build_algo()
    algo.train()
    algo.save_to_path("run/checkpoints/000001")
    algo.stop()
    result = CliRunner().invoke(app, ["record", "run", "--episodes", "6", "--to", "data"])
    assert result.exit_code == 0, result.output
    data = read_episodes("data")
    assert len(data) == 6 and check_episodes(data) == []
    assert all(episode.is_done and not episode.env_t_started for episode in data)
    rewards = [sum(agent.get_rewards().sum() for agent in episode.agent_episodes.values()) for episode in data]
    assert data.returns.tolist() == rewards and f"mean return {np.mean(rewards):,.6g}" in result.stdout
    learner = BCConfig().multi_agent(policies=["main"]).offline_data(input_="data").training(train_batch_size=40)
    algo = learner.build_algo()
    assert np.isfinite(algo.train()["learners"]["main"]["policy_loss"])
    batches = EpisodeBatches(data, algo.pipelines["learner"], batch_size=10, rl_module=algo.learner.module, seed=0)
    steps = sum(len(batch["main"]["actions"]) for batch in batches)
    assert steps == sum(len(agent) for episode in data for agent in episode.agent_episodes.values())
    with pytest.raises(ConfigError, match="several"):
        EpisodeBatches(data, algo.pipelines["learner"], batch_size=10, draw={})
    algo.stop()
