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
from epibatch.algorithms import BCConfig, PPOConfig
from epibatch.connectors.views import View
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import RLModuleSpec
from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner
from epibatch.episodes import SingleAgentEpisode


def config(num_env_runners=2, num_learners=0, env="CartPole-v1"):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=num_env_runners, num_cpus_per_env_runner=0, env_to_module_connector=["mean_std_filter"]
        )
        .learners(num_learners=num_learners, num_cpus_per_learner=0)
        .training(train_batch_size=200 // max(1, num_learners), minibatch_size=50, num_epochs=2, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=3)
        .debugging(seed=3)
    )


@pytest.fixture(scope="module")
def built(cluster):
    algorithms = []

    def build(settings):
        algorithms.append(settings.build_algo())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()


@pytest.fixture(scope="module")
def several(built):
    """An algorithm with two runners and two learners; nothing has trained it when the first test begins."""
    return built(config(2, 2))


@pytest.fixture(scope="module")
def sampled(built):
    """An algorithm with two runners that learns in this process; nothing has trained it when the first test begins."""
    return built(config(2))


@pytest.fixture
def batches(monkeypatch):
    """`batches(algorithm)`: a list that gets the episodes of each iteration from now on."""

    def follow(algorithm):
        found, update = [], algorithm.learner_group.update

        def learn(*, episodes, **options):
            found.append(list(episodes))
            return update(episodes=episodes, **options)

        monkeypatch.setattr(algorithm.learner_group, "update", learn)
        return found

    return follow


def learned(algorithm):
    """Results of an iteration that must be equal in equal runs."""
    results = algorithm.train()
    names = ("episode_return_mean", "episode_len_mean", "num_episodes_lifetime", "num_env_steps_sampled_lifetime")
    module = results["learners"]["default_policy"]
    losses = [module[name] for name in ("total_loss", "vf_loss", "entropy", "grad_norm", "num_rows")]
    return [results["env_runners"][name] for name in names] + losses


def known(algorithm):
    """Weights, and statistics of observations."""
    module = {name: np.array(value) for name, value in algorithm.get_module().get_state().items()}
    return module, algorithm.env_runner.pipelines["env_to_module"].get_state()["mean_std_filter"]


def steps_of(chunk):
    extra = ("weights_seq_no", "action_logp")
    columns = [chunk.get_observations(), chunk.get_actions(), chunk.get_rewards()]
    return [chunk.is_terminated, *columns, *(chunk.get_extra_model_outputs(name) for name in extra)]


# ------------------------------------------------------------------------------------------- train and save


def test_one_seed_gives_one_run(several, sampled, batches):
    """The same in other processes, and again in the same ones; every step and first observation is counted once."""
    found = [batches(algorithm) for algorithm in (several, sampled)]
    for algorithm in (several, sampled):
        algorithm.train()
    first = [list(map(steps_of, delivered[0])) for delivered in found]
    np.testing.assert_equal(*first)
    assert sum(map(len, found[0][0])) == 200

    chunks = found[1][0]
    seen = sum(map(len, chunks)) + sum(chunk.t_started == 0 for chunk in chunks)
    statistics = known(sampled)[1]
    assert 0 <= sum(statistics[part]["count"] for part in ("synchronised", "since")) - seen <= 2  # just reset

    state, runs = several.get_state(), []
    for _ in range(2):
        several.set_state(state)
        runs.append(([learned(several) for _ in range(2)], known(several)))
    np.testing.assert_equal(*runs)


def test_runners_of_tensors_sample_what_runners_of_arrays_would(built, batches):
    settings = config(2, 2).env_runners(env_runner_cls=TensorEnvRunner, gym_env_autoreset_mode="same_step")
    algorithm = built(settings.reporting(metrics_num_episodes_for_smoothing=1000))
    arrays = [SingleAgentEnvRunner(config=settings, worker_index=index) for index in (1, 2)]
    delivered = batches(algorithm)
    for runner in arrays:
        runner.set_state({"rl_module": algorithm.get_module().get_state()})
        runner.require_lookback(None)
    results = algorithm.train()
    expected = [chunk for runner in arrays for chunk in runner.sample(num_timesteps=100)]
    assert len(delivered[0]) == len(expected) > 4
    for mine, other in zip(sorted(delivered[0], key=_first_row), sorted(expected, key=_first_row)):
        np.testing.assert_allclose(mine.get_observations(), other.get_observations(), atol=1e-6)
        np.testing.assert_array_equal(mine.get_actions(), other.get_actions())
        assert mine.is_terminated == other.is_terminated
    ended = [chunk.get_return() for chunk in expected if chunk.is_done]
    assert results["env_runners"]["num_episodes"] == len(ended)
    assert results["env_runners"]["episode_return_mean"] == pytest.approx(np.mean(ended))
    assert algorithm.train()["num_env_steps_sampled_lifetime"] == 400
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 3


def _first_row(chunk):
    return tuple(chunk.get_observations(0))


def test_a_checkpoint_goes_on_with_other_numbers_of_processes(several, sampled, built, tmp_path):
    several.train()
    saved = several.save_to_path(tmp_path / "several")
    alone = built(config(0, 0))
    for algorithm in (alone, sampled):
        algorithm.restore_from_path(saved)
        np.testing.assert_equal(known(algorithm), known(several))
    measured = [algorithm.evaluate()["env_runners"] for algorithm in (several, sampled, alone)]
    assert len({results["episode_return_mean"] for results in measured}) == 1
    observation = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    acted = [algorithm.get_policy().act(observation)[0] for algorithm in (several, sampled, alone)]
    assert acted == [Policy.from_checkpoint(saved).act(observation)[0]] * 3

    results = alone.train()
    assert "fault_tolerance" not in results
    several.restore_from_path(alone.save_to_path(tmp_path / "alone"))
    np.testing.assert_equal(known(several), known(alone))
    assert several.training_iteration == results["training_iteration"]
    results = several.train()
    names = ("num_env_runners", "num_healthy_env_runners", "num_learners", "num_healthy_learners")
    assert [results["fault_tolerance"][name] for name in names] == [2, 2, 2, 2]


def test_the_run_that_saved_and_ended_episodes_goes_on_as_the_restored_one(sampled, tmp_path):
    sampled.save_to_path(tmp_path, end_episodes=True)
    after = [learned(sampled) for _ in range(2)]
    sampled.restore_from_path(tmp_path)
    assert [learned(sampled) for _ in range(2)] == after


def test_the_next_batch_is_sampled_while_the_modules_learn(sampled, batches, tmp_path):
    """All its steps act with the weights before the last update; after a restore with those that were restored."""
    found = batches(sampled)

    def acted_with():
        before = sampled.env_runner.get_metrics()["weights_seq_no"]
        sampled.train()
        used = {int(number) for chunk in found[-1] for number in chunk.get_extra_model_outputs("weights_seq_no")}
        assert sum(map(len, found[-1])) == 200
        return [number - before for number in used]

    sampled.train()
    sampled.config.env_runners(sample_while_learning=True)
    assert [acted_with() for _ in range(3)] == [[0], [-1], [-1]]
    steps = sampled.env_runner.num_env_steps_sampled_lifetime
    sampled.save_to_path(tmp_path)
    assert acted_with() == [-1]
    sampled.restore_from_path(tmp_path)
    assert sampled.env_runner.num_env_steps_sampled_lifetime == steps
    assert acted_with() == [0]


def test_changes_of_views_and_pipelines_reach_the_runners(sampled, batches):
    sampled.add_view("prev_rewards", View("rewards", shift=-1))
    sampled.pipelines["env_to_module"].remove("mean_std_filter")
    found = batches(sampled)
    for _ in range(2):  # the first batch may be sampled already
        sampled.train()
    firsts = [chunk.get_observations(0) for chunk in found[-1] if chunk.t_started == 0]
    assert np.abs(firsts).max() <= 0.05  # CartPole's own, which nothing normalises any more
    assert (
        sampled.env_runner_group.foreach_env_runner(
            lambda runner: [list(piece.views) for piece in runner.pipelines["env_to_module"] if hasattr(piece, "views")]
        )
        == [[["prev_rewards"]]] * 3
    )


def cart_poles(env_config):
    from epibatch.env_runner.multi_agent_env import make_multi_agent

    return make_multi_agent("CartPole-v1")(env_config)


def test_modules_that_come_and_go_reach_the_runner(built, batches):
    settings = config(1, env=lambda env_config: cart_poles(env_config)).environment(env_config={"num_agents": 2})
    algorithm = built(settings.multi_agent(policies=["main"]))
    found = batches(algorithm)

    def acting():
        algorithm.train()
        return {agent.module_id for episode in found[-1] for agent in episode.agent_episodes.values()}

    assert acting() == {"main"}
    spec = RLModuleSpec.from_module(algorithm.get_module("main"))
    algorithm.add_module("past", spec, new_agent_to_module_mapping_fn={"0": "main", "*": "past"})
    assert acting() == {"main", "past"}
    algorithm.remove_module("past", new_agent_to_module_mapping_fn={"*": "main"})
    assert acting() == {"main"}


# ------------------------------------------------------------------------------------------- recorded episodes


def recorded(count):
    random = np.random.default_rng(0)
    for rows in random.normal(size=(count, 21, 3)).astype(np.float32):
        columns = {"observations": list(rows), "actions": [int(row[0] > 0) for row in rows[:-1]], "rewards": [0.0] * 20}
        yield SingleAgentEpisode(**columns, truncated=True, len_lookback_buffer=0)


class EveryThird:
    """A source of its own: every third episode, from another one on in each batch."""

    is_late = False

    def __init__(self, config):
        self.episodes, self.calls = config.input_, 0

    def sample(self):
        self.calls += 1
        return self.episodes[self.calls % 3 :: 3]

    def sample_ahead(self):
        pass

    def forget(self):
        pass

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


class CloningOfThirds(BCConfig):
    def make_source(self, env_runner_group):
        return EveryThird(self)


@pytest.mark.parametrize("kind", [BCConfig, CloningOfThirds])
def test_recorded_episodes_are_learned_from_in_two_processes_and_a_restored_run_goes_on(built, tmp_path, kind):
    def build(num_learners):
        settings = kind().offline_data(input_=list(recorded(20))).rl_module(model_config={"fcnet_hiddens": [8]})
        settings.training(train_batch_size=200 // max(1, num_learners), minibatch_size=None, num_epochs=2, lr=0.01)
        return built(settings.learners(num_learners=num_learners, num_cpus_per_learner=0).debugging(seed=1))

    def loss(algorithm):
        return algorithm.train()["learners"]["default_policy"]["total_loss"]

    two, alone = build(2), build(0)
    two.get_module().set_state(alone.get_module().get_state())
    assert [loss(two) for _ in range(3)] == pytest.approx([loss(alone) for _ in range(3)], rel=1e-5)
    two.save_to_path(tmp_path / "saved")
    expected, other = loss(two), build(2)
    other.restore_from_path(tmp_path / "saved")
    assert loss(other) == expected
    np.testing.assert_equal(other.learner.get_state()["module"], two.learner.get_state()["module"])


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
    command += ["--set", "env_runners.num_env_runners=1"]
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
    assert "runners 1/1" in output and "finishing this iteration" in output
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    while (left := children & processes().keys()) and time.monotonic() < end:
        time.sleep(0.1)
    assert len(children) > 3 and not left
