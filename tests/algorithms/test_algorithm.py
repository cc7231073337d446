from __future__ import annotations

import json
import subprocess
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPO, Algorithm, AlgorithmConfig, PPOConfig
from epibatch.algorithms.algorithm import sample_train_batch
from epibatch.algorithms.random_state import get_random_state, set_random_state
from epibatch.connectors import ConnectorV2
from epibatch.core import registry
from epibatch.core.errors import CheckpointError, ConfigError, RunnerError
from epibatch.core.registry import register, register_env
from epibatch.episodes import SingleAgentEpisode


class RewardScale(ConnectorV2):
    """Scales rewards, and counts its calls as state."""

    mutates_episodes = True

    def __init__(self, input_observation_space=None, input_action_space=None, *, factor=1.0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.factor = factor
        self.calls = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.calls += 1
        for episode in self.single_agent_episode_iterator(episodes):
            factor = self.factor if isinstance(self.factor, float) else self.factor()
            episode.set_rewards(new_data=np.asarray(episode.get_rewards()) * factor)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


@pytest.fixture(autouse=True)
def keep_globals():
    generators, pieces = get_random_state(), dict(registry._registered)
    yield
    set_random_state(generators)
    registry._registered.clear()
    registry._registered.update(pieces)


def small(**training):
    settings = {"train_batch_size": 128, "minibatch_size": 64, "num_epochs": 2, "lr": 1e-3, **training}
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(**settings)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .debugging(seed=3)
    )


def weights(algorithm):
    state = algorithm.get_module().state_dict()
    return {name: value.numpy().copy() for name, value in state.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def losses(results):
    return dict(results["learners"]["default_policy"])


def test_train_returns_what_a_run_needs():
    algorithm = small().build_algo()
    before = weights(algorithm)
    results = algorithm.train()
    assert results["training_iteration"] == algorithm.training_iteration == 1
    assert 128 <= results["num_env_steps_sampled_lifetime"] < 128 + 4  # whole vector steps
    assert {"episode_return_mean", "episode_len_mean", "num_episodes"} <= results["env_runners"].keys()
    assert np.isfinite(results["learners"]["default_policy"]["policy_loss"])
    assert results["time_total_s"] >= results["timers"]["sample"] + results["timers"]["learn"] > 0
    assert any(not np.array_equal(before[name], value) for name, value in weights(algorithm).items())
    assert algorithm.get_module() is algorithm.env_runner.module
    assert 256 <= algorithm.train()["num_env_steps_sampled_lifetime"] < 256 + 8
    algorithm.stop()


def test_a_device_that_is_not_there_is_named():
    config = small().learners(device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(ConfigError, match=r"learners.device: 'cuda:\d+' cannot be used here: .*cpu can be used"):
        config.build_algo()


def test_all_tensors_live_on_the_device():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seen = []

    def spy(forward):
        def run(batch, **kwargs):
            seen.append({leaf.device.type for leaf in batch.values() if isinstance(leaf, torch.Tensor)})
            return forward(batch, **kwargs)

        return run

    algorithm = small().learners(device=device).build_algo()
    module = algorithm.get_module()
    for name in ("forward_exploration", "forward_train"):
        setattr(module, name, spy(getattr(module, name)))
    algorithm.train()
    algorithm.stop()
    assert {parameter.device.type for parameter in module.parameters()} == {device}
    assert seen and all(devices == {device} for devices in seen)


def test_the_device_reaches_pipelines_and_learner(monkeypatch):
    """Without a second device at hand: where the config's device goes."""
    config = small().learners(device="cuda:1")
    given = []
    config.env_runners(env_to_module_connector=lambda env, spaces, device: given.append(device) or [])
    observation, action = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
    acting = config.build_env_to_module_connector(spaces={"__env_single__": (observation, action)})
    learning = config.build_learner_connector(observation, action)
    assert given == ["cuda:1"]
    assert [pipeline["NumpyToTensor"].device for pipeline in (acting, learning)] == ["cuda:1"] * 2
    told = {}
    monkeypatch.setattr("epibatch.algorithms.ppo.Learner", lambda **settings: told.update(settings))
    PPO.build_learner(types.SimpleNamespace(config=config), module=None, connector=None)
    assert told["device"] == "cuda:1"


def test_later_changes_of_the_config_have_no_effect():
    config = small()
    algorithm = config.build_algo()
    config.training(lr=0.5)
    assert algorithm.config.lr == 1e-3
    algorithm.stop()


def test_no_environment():
    with pytest.raises(ConfigError, match="expected: an environment"):
        PPOConfig().build_algo()


@pytest.mark.parametrize(
    "settings",
    [
        {"rollout_fragment_length": 8},
        {"batch_mode": "complete_episodes"},
    ],
)
def test_short_fragments_and_whole_episodes_fill_the_batch(settings):
    algorithm = small().env_runners(**settings).build_algo()
    assert algorithm.train()["num_env_steps_sampled_lifetime"] >= 128
    algorithm.stop()


def test_recurrent_module():
    config = small().rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 10})
    algorithm = config.build_algo()
    for _ in range(2):
        results = algorithm.train()
    assert np.isfinite(results["learners"]["default_policy"]["total_loss"])
    algorithm.stop()


def test_the_default_lstm_needs_no_max_seq_len():
    """The default of docs/configuration.md is one: what is trained is what 20 trains."""
    found = []
    for extra in ({}, {"max_seq_len": 20}):
        algorithm = small().rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8, **extra}).build_algo()
        found.append(losses(algorithm.train()))
        algorithm.stop()
    assert found[0] == found[1]


def test_same_seed_same_run():
    runs = []
    for _ in range(2):
        algorithm = small().build_algo()
        runs.append([losses(algorithm.train()) for _ in range(2)])
        algorithm.stop()
    assert runs[0] == runs[1]


class Countdown(gym.Env):
    """Episodes of 40 steps with one reward, at their end."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 40
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left / 40], np.float32), float(self.left == 0), self.left == 0, False, {}


@pytest.mark.parametrize("name", ["CartPole-v1", "Countdown"])
def test_saving_each_iteration_changes_nothing(tmp_path, name):
    """Episodes of Countdown last longer than the 32 steps that each of 4 environments makes in an iteration."""
    env = name if name == "CartPole-v1" else lambda env_config: Countdown()
    runs, ended = [], []
    for save in (False, True):
        algorithm = small().environment(env).build_algo()
        runs.append([])
        for _ in range(3):
            results = algorithm.train()
            runs[-1].append(losses(results))
            if save:
                algorithm.save_to_path(tmp_path / "checkpoint")
        ended.append(results["env_runners"]["num_episodes_lifetime"])
        runs[-1].append(weights(algorithm))
        algorithm.stop()
    assert runs[0][:-1] == runs[1][:-1]
    assert_same(runs[0][-1], runs[1][-1])
    assert ended[0] == ended[1]
    if name == "Countdown":
        assert ended[1] == 4 * (3 * 32 // 40)
        assert results["env_runners"]["episode_return_mean"] == 1.0


def test_runs_restored_from_one_checkpoint_are_alike(tmp_path):
    algorithm = small().build_algo()
    algorithm.train()
    algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.stop()
    one, other = PPO.from_checkpoint(tmp_path / "checkpoint"), PPO.from_checkpoint(tmp_path / "checkpoint")
    assert one.training_iteration == 1
    assert losses(one.train()) == losses(other.train())
    one.stop()
    other.stop()


def test_a_failed_iteration_does_not_count(tmp_path):
    class FailsOnce(ConnectorV2):
        calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            FailsOnce.calls += 1
            if FailsOnce.calls == 2:
                raise ZeroDivisionError("in the second iteration")
            return batch

    config = small(train_batch_size=128).training(learner_connector=lambda env: FailsOnce())
    algorithm = config.build_algo()
    algorithm.train()
    with pytest.raises(ZeroDivisionError):
        algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    results = algorithm.train()
    algorithm.stop()
    assert results["training_iteration"] == 2
    assert 2 * 128 <= results["num_env_steps_sampled_lifetime"] < 3 * 128
    twin = config.build_algo()
    twin.restore_from_path(path)
    assert 2 * 128 <= twin.train()["num_env_steps_sampled_lifetime"] < 3 * 128
    twin.stop()


@pytest.mark.parametrize("recurrent", [False, True])
def test_going_on_after_a_restore_is_bit_identical(tmp_path, recurrent):
    register(RewardScale)
    config = small().training(learner_connector=lambda env: RewardScale(factor=0.5))
    if recurrent:
        config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 10})
    algorithm = config.build_algo()
    algorithm.train()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    expected = [losses(algorithm.train()) for _ in range(2)]
    expected_weights = weights(algorithm)
    algorithm.stop()

    torch.manual_seed(999)
    again = Algorithm.from_checkpoint(path)
    assert isinstance(again, PPO)
    assert again.training_iteration == 2
    assert [losses(again.train()) for _ in range(2)] == expected
    assert_same(weights(again), expected_weights)
    assert again.learner.connector[0].calls == 4
    again.stop()


CONTINUE = """
import json, sys
from epibatch.algorithms import Algorithm
algorithm = Algorithm.from_checkpoint(sys.argv[1])
print(json.dumps([algorithm.train()["learners"]["default_policy"] for _ in range(2)]))
algorithm.stop()
"""


@pytest.mark.slow
def test_going_on_in_a_new_process_is_bit_identical(tmp_path):
    algorithm = small().build_algo()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    expected = [losses(algorithm.train()) for _ in range(2)]
    algorithm.stop()
    run = subprocess.run([sys.executable, "-c", CONTINUE, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == expected


def test_restore_into_an_algorithm_that_trained_elsewhere(tmp_path):
    algorithm = small().build_algo()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    expected = losses(algorithm.train())
    other = small().debugging(seed=8).build_algo()
    other.train()
    other.train()
    other.restore_from_path(path)
    assert losses(other.train()) == expected
    algorithm.stop()
    other.stop()


def test_a_piece_that_is_no_data_asks_for_the_original_config(tmp_path):
    register(RewardScale)
    config = small().training(learner_connector=lambda env: RewardScale(factor=lambda: 0.5))
    algorithm = config.build_algo()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.stop()
    with pytest.raises(CheckpointError, match=r"(?s)the original config.*piece RewardScale, argument 'factor'"):
        PPO.from_checkpoint(path)
    again = PPO.from_checkpoint(path, config=config)
    assert again.training_iteration == 0
    again.stop()


def test_function_without_pieces_leaves_nothing_behind(tmp_path):
    algorithm = small().env_runners(env_to_module_connector=lambda env: []).build_algo()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.stop()
    PPO.from_checkpoint(path).stop()


def test_unregistered_pieces_are_imported_only_with_leave(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_pieces", types.SimpleNamespace(RewardScale=RewardScale))
    monkeypatch.setattr(RewardScale, "__module__", "own_pieces")
    algorithm = small().training(learner_connector=lambda env: RewardScale(factor=0.5)).build_algo()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.stop()
    with pytest.raises(CheckpointError, match=r"(?s)piece 'own_pieces:RewardScale'.*allow_imports"):
        PPO.from_checkpoint(path)
    again = PPO.from_checkpoint(path, allow_imports=True)
    assert again.learner.connector[0].factor == 0.5
    again.stop()


def test_environment_factory_is_no_data_but_its_name_is(tmp_path):
    algorithm = small().environment(lambda env_config: gym.make("CartPole-v1")).build_algo()
    path = algorithm.save_to_path(tmp_path / "by_function")
    algorithm.stop()
    with pytest.raises(CheckpointError, match=r"environment\.env: function is code"):
        PPO.from_checkpoint(path)
    register_env("my_cart_pole", lambda env_config: gym.make("CartPole-v1"))
    algorithm = small().environment("my_cart_pole").build_algo()
    path = algorithm.save_to_path(tmp_path / "by_name")
    algorithm.stop()
    PPO.from_checkpoint(path).stop()


def test_checkpoint_of_another_network(tmp_path):
    algorithm = small().build_algo()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.stop()
    other = small().rl_module(model_config={"fcnet_hiddens": [8]}).build_algo()
    with pytest.raises(CheckpointError):
        other.restore_from_path(path)
    other.stop()


def test_state_with_a_missing_part():
    algorithm = small().build_algo()
    with pytest.raises(CheckpointError, match="no env_runner, random"):
        algorithm.set_state({"learner": {}, "counters": {}})
    algorithm.stop()


def test_algorithm_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Algorithm(AlgorithmConfig())


def test_learner_history_reaches_the_runner():
    stacking = [{"piece": "frame_stacking", "num_frames": 4}]

    class Pixels(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (4, 4, 1), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 1.0, False, False, {}

    register_env("pixels", lambda env_config: Pixels())
    flat = {"fcnet_hiddens": [4]}
    config = small().environment("pixels").rl_module(model_config=flat)
    config.env_runners(env_to_module_connector=stacking).training(learner_connector=stacking)
    algorithm = config.build_algo()
    assert algorithm.learner.connector.lookback_needed == 3
    algorithm.train()
    algorithm.train()
    algorithm.stop()


def test_iterations_end_with_the_goal_or_the_limit_and_go_on_without_either():
    def lengths(config, most=20):
        algorithm = config.build_algo()
        seen = [
            results["env_runners"]["num_episodes_lifetime"] for _, results in zip(range(most), algorithm.iterations())
        ]
        assert algorithm.training_iteration == len(seen)
        algorithm.stop()
        return seen

    goal = small().reporting(metrics_num_episodes_for_smoothing=10).stopping(episode_return_mean=1.0)
    episodes = lengths(goal)
    assert episodes[-1] >= 10 > max([0, *episodes[:-1]])  # the mean must be one of ten episodes
    assert len(lengths(small().stopping(training_iteration=3))) == 3
    assert len(lengths(small(), most=5)) == 5


# --------------------------------------------------------------------------------------- learner group


def test_the_group_is_the_learner():
    algorithm = PPOConfig().environment("CartPole-v1").build_algo()
    assert algorithm.learner_group.foreach_learner(lambda learner: learner) == [algorithm.learner]
    assert algorithm.learner_group.is_local
    algorithm.stop()


# ----------------------------------------------------------------------------------------- train batch


class Gives:
    """A runner whose samples have given numbers of steps."""

    def __init__(self, *counts):
        self._counts = iter(counts)

    def sample(self):
        count = next(self._counts)
        if not count:
            return []
        rows = list(range(count))
        return [
            SingleAgentEpisode(observations=[*rows, count], actions=rows, rewards=rows, len_lookback_buffer=0),
        ]


@pytest.mark.parametrize(("counts", "taken"), [((5,), 1), ((4, 1), 2), ((2, 2, 9, 9), 3)])
def test_as_many_samples_as_it_takes(counts, taken):
    episodes = sample_train_batch(Gives(*counts), 5)
    assert [len(episode) for episode in episodes] == list(counts[:taken])


@pytest.mark.parametrize("counts", [(0, 0), (3, 0)])
def test_a_sample_without_steps(counts):
    with pytest.raises(RunnerError, match=rf"found: +{counts[0]}, and a sample without any"):
        sample_train_batch(Gives(*counts), 5)
