"""The log of a run: rows equal what was sampled, whoever samples; resumed and killed runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from fake_actors import FakeActors

from epibatch.algorithms import DQNConfig, PPOConfig, TrainingRun
from epibatch.core.errors import DataError
from epibatch.env_runner import EnvRunnerGroup, make_multi_agent
from epibatch.offline import check_episodes, read_episodes, verify, write_episodes

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
env_runners: {num_envs_per_env_runner: 1}
training: {train_batch_size: 60, minibatch_size: 60, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
offline_data: {output: data/}
checkpointing: {checkpoint_frequency: 1}
debugging: {seed: 1}
"""


@pytest.fixture
def sampled(monkeypatch, tmp_path):
    """Rows by column of each episode that groups returned, gathered step by step; the test runs in a folder."""
    monkeypatch.chdir(tmp_path)
    rows = {}

    def note(episodes):
        for chunk in episodes:
            found = rows.setdefault(chunk.id_, {"obs": [chunk.get_observations(0)], "actions": [], "rewards": []})
            assert len(found["actions"]) == chunk.t_started
            for t in range(len(chunk)):
                found["obs"].append(chunk.get_observations(t + 1))
                found["actions"].append(chunk.get_actions(t))
                found["rewards"].append(chunk.get_rewards(t))
                for name in chunk.extra_model_outputs:
                    found.setdefault(name, []).append(chunk.get_extra_model_outputs(name, t))

    sample, ready = EnvRunnerGroup.sample, EnvRunnerGroup.ready

    def noted_sample(self, **arguments):
        episodes = sample(self, **arguments)
        note(episodes)
        return episodes

    def noted_ready(self, timeout=None):
        parts = ready(self, timeout)
        for _, episodes in parts:
            note(episodes)
        return parts

    monkeypatch.setattr(EnvRunnerGroup, "sample", noted_sample)
    monkeypatch.setattr(EnvRunnerGroup, "ready", noted_ready)
    return rows


def trained(config, iterations=3):
    algo = config.rl_module(model_config={"fcnet_hiddens": [4]}).debugging(seed=1).build_algo()
    for _ in range(iterations):
        algo.train()
    algo.stop()


def ppo(env="CartPole-v1", **runners):
    config = PPOConfig().environment(env).env_runners(**{"num_envs_per_env_runner": 3, **runners})
    return config.training(train_batch_size=90, minibatch_size=90, num_epochs=1).offline_data(output="log")


def assert_logged(rows, columns):
    data = read_episodes("log")
    assert sorted(data.ids) == sorted(name for name, found in rows.items() if found["actions"])
    assert {*data[0].extra_model_outputs, "obs", "actions", "rewards"} == columns
    for episode in data:
        found = rows[episode.id_]
        np.testing.assert_array_equal(episode.get_observations(), found["obs"])
        np.testing.assert_array_equal(episode.get_actions(), found["actions"])
        np.testing.assert_array_equal(episode.get_rewards(), found["rewards"])
        for name in episode.extra_model_outputs:
            np.testing.assert_array_equal(episode.get_extra_model_outputs(name), found[name])
    assert [fault for fault in check_episodes(data) if fault.is_error] == []


STEP = {"obs", "actions", "rewards", "weights_seq_no", "actions_for_env"}


@pytest.mark.parametrize("how", ["one", "vector", "complete", "processes", "processes ahead"])
def test_the_log_has_what_was_sampled(sampled, monkeypatch, how):
    runners = {
        "one": {"num_envs_per_env_runner": 1},
        "vector": {},
        "complete": {"batch_mode": "complete_episodes"},
        "processes": {"num_env_runners": 2},
        "processes ahead": {"num_env_runners": 2, "sample_while_learning": True},
    }[how]
    monkeypatch.setitem(EnvRunnerGroup.__init__.__kwdefaults__, "make_actors", FakeActors)
    trained(ppo(**runners))
    assert_logged(sampled, STEP | {"action_dist_inputs", "action_logp"})
    assert sum(len(found["actions"]) for found in sampled.values()) >= 270


def test_actions_are_logged_as_the_module_and_as_the_environment_have_them(sampled):
    trained(ppo("Pendulum-v1"), 1)
    episode = read_episodes("log")[0]
    sent = episode.get_extra_model_outputs("actions_for_env")
    np.testing.assert_allclose(sent, 2 * np.clip(episode.get_actions(), -1, 1), atol=1e-6)


@pytest.mark.parametrize("random_actions", [False, True])
def test_runners_of_several_agents_keep_both_too(tmp_path, random_actions):
    env = make_multi_agent("Pendulum-v1")
    config = ppo(env).environment(env_config={"num_agents": 2}).multi_agent(policies=["main"])
    algo = config.offline_data(output=str(tmp_path / "log")).build_algo()
    for chunk in algo.env_runner.sample(num_timesteps=60, random_actions=random_actions):
        for agent in chunk.agent_episodes.values():
            sent = agent.get_extra_model_outputs("actions_for_env")
            np.testing.assert_allclose(sent, 2 * np.clip(agent.get_actions(), -1, 1), atol=1e-6)
            assert len(agent) > 10
    algo.stop()


def test_the_log_of_several_agents_has_every_part_that_was_sampled(tmp_path, monkeypatch):
    parts, sample = [], EnvRunnerGroup.sample
    monkeypatch.setattr(EnvRunnerGroup, "sample", lambda group, **how: parts.append(sample(group, **how)) or parts[-1])
    config = ppo(make_multi_agent("CartPole-v1")).environment(env_config={"num_agents": 2})
    config.multi_agent(policies=["main"]).offline_data(output=str(tmp_path / "log"))
    trained(config)
    sampled = [chunk for part in parts for chunk in part if len(chunk)]
    logged = read_episodes(tmp_path / "log")
    assert len(sampled) > 5 and all(a.equals(b) for a, b in zip(logged, sampled, strict=True))


def test_replay_is_logged_from_the_first_random_steps_on(sampled):
    config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=3)
    config.training(num_steps_sampled_before_learning_starts=500, training_intensity=8)
    trained(config.offline_data(output="log"), 1)
    assert_logged(sampled, STEP)


def test_without_an_output_nothing_is_written_and_no_column_is_kept(sampled, tmp_path):
    trained(ppo().offline_data(output=None), 1)
    assert not any(tmp_path.iterdir())
    assert {name for found in sampled.values() for name in found} == STEP - {"actions_for_env"} | {
        "action_dist_inputs",
        "action_logp",
    }


def test_the_losses_are_the_same_with_a_log(sampled):
    losses = []
    for config in (ppo(), ppo().offline_data(output=None)):
        algo = config.debugging(seed=1).build_algo()
        losses.append([algo.train()["learners"]["default_policy"]["total_loss"] for _ in range(2)])
        algo.stop()
    assert losses[0] == losses[1]


def test_a_run_logs_into_its_folder_and_goes_on_there(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert TrainingRun.start(tmp_path / "config.yaml", tmp_path / "run").run(2) == 0
    first = read_episodes(tmp_path / "run" / "data")
    assert first.num_steps == 120 and first.env == "CartPole-v1"
    assert TrainingRun.resume(tmp_path / "run").run(2) == 0
    # the second run began again before: what it sampled anew comes on top
    assert TrainingRun.resume(tmp_path / "run" / "checkpoints" / "000003").run(1) == 0
    both = read_episodes(tmp_path / "run" / "data")
    assert both.num_steps == 300
    for before, after in zip(first, both[: len(first)], strict=True):
        assert before.equals(after)
    assert len(set(both.ids)) == len(both)


def test_what_an_iteration_sampled_that_failed_is_not_logged(sampled):
    class Stop(Exception):
        pass

    def stop_later(*, result, **keywords):
        if result["training_iteration"] == 2:
            raise Stop

    algo = ppo(num_envs_per_env_runner=1).callbacks(on_train_result=stop_later).build_algo()
    algo.train()
    with pytest.raises(Stop):
        algo.train()  # it is finished: its episodes count
    algo.env_runner_group.sample()
    algo.stop()
    assert read_episodes("log").num_steps == 180


def test_a_folder_with_something_else_is_refused(sampled, tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "note.txt").write_text("mine")
    with pytest.raises(DataError, match=r"note\.txt"):
        trained(ppo(), 1)
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["note.txt"]


def test_a_log_can_be_learned_from(sampled):
    trained(ppo(), 2)
    data = read_episodes("log")
    whole = data.filter(data.terminateds)
    write_episodes(whole, "whole")
    assert read_episodes("whole").num_steps == whole.num_steps > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_runs_leave_a_log_that_can_be_read_and_gone_on_with(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    draw, run, log = random.Random(0), tmp_path / "run", tmp_path / "run" / "data"
    command, commits = [sys.executable, "-m", "epibatch", "train"], log / "commits.jsonl"
    steps = size = 0
    for _attempt in range(8):
        begin = ["--resume", run] if run.exists() else ["config.yaml", "--run", "run"]
        process = subprocess.Popen([*command, *begin], cwd=tmp_path, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not commits.exists() or commits.stat().st_size <= size):
            time.sleep(0.01)
        time.sleep(draw.random())
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert all("after the last commit" in sentence for sentence in verify(log))
        data = read_episodes(log)
        assert data.num_steps % 60 == 0 and data.num_steps > steps
        steps, size = data.num_steps, commits.stat().st_size
        assert [fault for fault in check_episodes(data) if fault.is_error] == []
