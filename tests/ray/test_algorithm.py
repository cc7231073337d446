"""Algorithms whose runners and learners are processes of their own: training, saving, changes while they train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from epibatch import Policy
from epibatch.algorithms import PPOConfig
from epibatch.connectors.views import View
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import RLModuleSpec


def config(num_env_runners=2, num_learners=0, env="CartPole-v1"):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=num_env_runners, num_cpus_per_env_runner=0, env_to_module_connector=["mean_std_filter"]
        )
        .learners(num_learners=num_learners, num_cpus_per_learner=0)
        .training(train_batch_size=100, minibatch_size=50, num_epochs=2, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=3)
        .debugging(seed=3)
    )


@pytest.fixture
def built(cluster):
    algorithms = []

    def build(settings):
        algorithms.append(settings.build_algo())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()


def delivered_to(algorithm):
    """A list that gets the episodes of each iteration from now on."""
    chunks, update = [], algorithm.learner_group.update

    def learn(*, episodes, metrics):
        chunks.append(list(episodes))
        return update(episodes=episodes, metrics=metrics)

    algorithm.learner_group.update = learn
    return chunks


def learned(algorithm):
    """Results of an iteration that must be equal in equal runs."""
    results = algorithm.train()
    names = ("episode_return_mean", "episode_len_mean", "num_episodes_lifetime", "num_env_steps_sampled_lifetime")
    module = results["learners"]["default_policy"]
    losses = [module[name] for name in ("total_loss", "vf_loss", "entropy", "grad_norm", "num_rows")]
    return [results["env_runners"][name] for name in names] + losses


def weights(algorithm):
    return {name: np.array(value) for name, value in algorithm.get_module().get_state().items()}


def statistics(algorithm):
    return algorithm.env_runner.pipelines["env_to_module"].get_state()["mean_std_filter"]


def same(one, other):
    np.testing.assert_equal(one, other)
    return True


# ------------------------------------------------------------------------------------------- train and save


def test_runners_and_learners_train_save_and_go_on_in_other_numbers(built, tmp_path):
    """Two runs of one seed are equal; their checkpoint goes on in one process, and that one's with several again."""
    one, two = built(config(2, 2)), built(config(2, 2))
    delivered = delivered_to(one)
    assert [learned(one) for _ in range(2)] == [learned(two) for _ in range(2)]
    assert same(weights(one), weights(two)) and same(statistics(one), statistics(two))
    two.stop()
    chunks = [chunk for batch in delivered for chunk in batch]
    steps = sum(map(len, chunks))
    assert one.env_runner.num_env_steps_sampled_lifetime == steps >= 400
    seen = steps + sum(chunk.t_started == 0 for chunk in chunks)  # an episode has one observation more than steps
    assert 0 <= sum(statistics(one)[part]["count"] for part in ("synchronised", "since")) - seen <= 2  # just reset

    saved = one.save_to_path(tmp_path / "several")
    alone = built(config(0, 0))
    alone.restore_from_path(saved)
    assert same(weights(one), weights(alone)) and same(statistics(one), statistics(alone))
    assert (
        one.evaluate()["env_runners"]["episode_return_mean"] == alone.evaluate()["env_runners"]["episode_return_mean"]
    )
    observation = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    acted = [algorithm.get_policy().act(observation)[0] for algorithm in (one, alone)]
    assert acted == [Policy.from_checkpoint(saved).act(observation)[0]] * 2

    results = alone.train()
    assert results["training_iteration"] == 3 and "fault_tolerance" not in results
    one.restore_from_path(alone.save_to_path(tmp_path / "alone"))
    assert same(weights(one), weights(alone)) and same(statistics(one), statistics(alone))
    results = one.train()
    assert results["training_iteration"] == 4
    names = ("num_env_runners", "num_healthy_env_runners", "num_learners", "num_healthy_learners")
    assert [results["fault_tolerance"][name] for name in names] == [2, 2, 2, 2]

    one.add_view("prev_rewards", View("rewards", shift=-1))
    one.pipelines["env_to_module"].remove("mean_std_filter")
    one.train()
    firsts = [chunk.get_observations(0) for chunk in delivered[-1] if chunk.t_started == 0]
    assert np.abs(firsts).max() <= 0.05  # CartPole's own, which nothing normalises any more
    assert (
        one.env_runner_group.foreach_env_runner(
            lambda runner: [list(piece.views) for piece in runner.pipelines["env_to_module"] if hasattr(piece, "views")]
        )
        == [[["prev_rewards"]]] * 3
    )


def cart_poles(env_config):
    from epibatch.env_runner.multi_agent_env import make_multi_agent

    return make_multi_agent("CartPole-v1")(env_config)


def test_modules_that_come_and_go_reach_the_runner(built):
    settings = config(1, env=lambda env_config: cart_poles(env_config)).environment(env_config={"num_agents": 2})
    algorithm = built(settings.multi_agent(policies=["main"]))
    delivered = delivered_to(algorithm)

    def acting():
        algorithm.train()
        return {agent.module_id for episode in delivered[-1] for agent in episode.agent_episodes.values()}

    assert acting() == {"main"}
    spec = RLModuleSpec.from_module(algorithm.get_module("main"))
    algorithm.add_module("past", spec, new_agent_to_module_mapping_fn={"0": "main", "*": "past"})
    assert acting() == {"main", "past"}
    algorithm.remove_module("past", new_agent_to_module_mapping_fn={"*": "main"})
    assert acting() == {"main"}


def test_one_runner_goes_on_with_the_streams_of_a_checkpoint_of_one(built, tmp_path):
    """A run that was restored goes on as the one that saved, as with one process."""
    first = built(config(1))
    first.train()
    first.save_to_path(tmp_path, end_episodes=True)
    after = [learned(first) for _ in range(2)]
    first.restore_from_path(tmp_path)
    assert [learned(first) for _ in range(2)] == after


# ------------------------------------------------------------------------------------------- wrong settings


@pytest.mark.parametrize(
    ("place", "value"),
    [("environment.env", CartPoleEnv), ("callbacks.on_episode_end", dict), ("learners.learner_connector", list)],
)
def test_a_setting_that_cannot_be_sent_is_named(tmp_path, place, value):
    section, name = place.split(".")
    with open(tmp_path / "log.txt", "w") as file:

        def writes(*_, **__):
            file.write("called")
            return value()

        settings = getattr(config(), section)(**{name: writes})
        with pytest.raises(ConfigError, match=rf"(?s)^{place}.*TextIOWrapper at {place} > .*file"):
            settings.build_algo()


# ------------------------------------------------------------------------------------------- the command


def processes():
    """Process id -> its parent, of all processes that run."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(folder.name)] = int(parent)
    return found


def below(pid):
    """The ids of a process's children, and of theirs."""
    parents, found = processes(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def test_ctrl_c_saves_and_leaves_no_process(tmp_path):
    (tmp_path / "run.yaml").write_text(config(0).to_yaml())
    command = [sys.executable, "-m", "epibatch", "train", tmp_path / "run.yaml", "--run", tmp_path / "run"]
    command += ["--set", "env_runners.num_env_runners=2"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    end = time.monotonic() + 90
    while not (tmp_path / "run" / "metrics.jsonl").exists() and run.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    children = below(run.pid)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT, output
    assert "runners 2/2" in output and "finishing this iteration" in output
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    while (left := children & processes().keys()) and time.monotonic() < end:
        time.sleep(0.1)
    assert len(children) > 3 and not left
