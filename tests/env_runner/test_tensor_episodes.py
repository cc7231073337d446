"""A runner of tensors as the runner of a config: its episodes, batches and weights are those of the arrays' runner."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_tensor_envs import NumpyPoints, TorchPoints

from epibatch.algorithms import DQNConfig, PPOConfig, SACConfig
from epibatch.cli import main
from epibatch.connectors import ConnectorV2, Piece
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import FlattenObservations, FrameStacking
from epibatch.connectors.env_to_module import MeanStdFilter, PrevActionsPrevRewards
from epibatch.core.errors import ColumnError, ConfigError, EnvironmentContractError, RunnerArgumentError, RunnerError
from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner
from epibatch.env_runner.callbacks import Callbacks
from epibatch.learner import RolloutStorage
from epibatch.offline import read_episodes

N = 5


def stack(*spaces: Any, **sides: Any) -> Any:
    return FrameStacking(num_frames=3, axis=-1, **sides)


KINDS: dict[str, Any] = {
    "plain": {},
    "lstm": {"model": {"use_lstm": True, "lstm_cell_size": 8, "fcnet_hiddens": [16], "max_seq_len": 4}},
    "stack": {"pieces": stack, "learner": lambda *spaces: stack(as_learner_connector=True)},
    "previous": {"pieces": lambda *spaces: PrevActionsPrevRewards(n_prev_rewards=2)},
    "filter": {"pieces": lambda *spaces: MeanStdFilter()},
}
MODES = ("same_step", "next_step", "disabled")


def config_of(runner: Any, kind: str = "plain", algorithm: Any = PPOConfig, **settings: Any) -> Any:
    chosen = KINDS[kind]
    config = algorithm().environment(TorchPoints if runner is TensorEnvRunner else NumpyPoints)
    config.env_runners(
        env_runner_cls=runner,
        num_envs_per_env_runner=N,
        gym_env_vectorize_mode="vector_entry_point",
        env_to_module_connector=chosen.get("pieces"),
        **settings,
    )
    config.training(learner_connector=chosen.get("learner"))
    return config.rl_module(model_config=chosen.get("model", {"fcnet_hiddens": [16]})).debugging(seed=3)


def runner_of(runner: Any, kind: str = "plain", **settings: Any) -> Any:
    torch.manual_seed(0)  # for the same weights
    return runner(config=config_of(runner, kind, **settings))


def same(mine: Any, other: Any, atol: float = 1e-6) -> None:
    if isinstance(mine, dict):
        assert mine.keys() == other.keys()
        for key in mine:
            same(mine[key], other[key], atol)
    else:
        assert np.allclose(np.asarray(mine), np.asarray(other), atol=atol)


def same_episodes(mine: Any, other: Any) -> None:
    """The same chunks in the same order: rows, lookback, flags, steps before, and which of them belong together."""
    assert len(mine) == len(other)
    ids: dict[str, str] = {}
    for left, right in zip(mine, other):
        assert ids.setdefault(left.id_, right.id_) == right.id_
        assert (left.is_terminated, left.is_truncated) == (right.is_terminated, right.is_truncated)
        assert (len(left), left.t_started) == (len(right), right.t_started)
        for get in ("get_observations", "get_actions", "get_rewards"):
            same(getattr(left, get)(), getattr(right, get)(), 1e-5)
        before = min(left.t_started, 3)
        if before:
            steps = slice(-before, 0)
            for get in ("get_observations", "get_actions", "get_rewards"):
                rows = [getattr(side, get)(steps, neg_index_as_lookback=True) for side in (left, right)]
                same(*rows, 1e-5)
        assert left.extra_model_outputs.keys() == right.extra_model_outputs.keys()
        for name in left.extra_model_outputs:
            same(left.get_extra_model_outputs(name), right.get_extra_model_outputs(name), 1e-5)
        same(left.get_return(), right.get_return(), 1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_those_of_the_runner_of_arrays(kind, mode):
    settings = {"gym_env_autoreset_mode": mode}
    runners = [runner_of(each, kind, **settings) for each in (SingleAgentEnvRunner, TensorEnvRunner)]
    for runner in runners:
        runner.require_lookback(3)
    for steps in (8 * N, N, 17 * N):
        same_episodes(*(runner.sample(num_timesteps=steps) for runner in runners))
    same_episodes(*(runner.sample(num_episodes=7) for runner in runners))
    same_episodes(*(runner.sample(num_timesteps=2 * N, random_actions=True) for runner in runners))
    metrics = [runner.get_metrics() for runner in runners]
    for name in ("num_env_steps_sampled", "num_episodes", "episode_len_mean", "episode_return_mean"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-5), name


def test_a_greedy_policy_has_the_same_episodes_in_all_modes():
    by_mode = []
    for mode in MODES:
        runner, steps = runner_of(TensorEnvRunner, gym_env_autoreset_mode=mode), [[] for _ in range(N)]
        for _ in range(3):
            episodes = runner.sample(num_timesteps=14 * N, explore=False)
            for env, episode in zip(episodes.envs().tolist(), episodes):
                ends = np.zeros((len(episode), 2))
                ends[-1] = episode.is_terminated, episode.is_truncated
                columns = (episode.get_observations()[:-1], episode.get_observations()[1:], episode.get_actions())
                steps[env].append(np.hstack([*columns, episode.get_rewards()[:, None], ends]))
        by_mode.append([np.concatenate(chunks) for chunks in steps])
    for rows in zip(*by_mode):
        count = min(map(len, rows))
        assert rows[0][:count, -2:].sum() >= 3
        assert all(np.allclose(rows[0][:count], other[:count], atol=1e-6) for other in rows[1:])


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*(("plain", mode) for mode in MODES), *zip(("lstm", "lstm", "stack", "previous", "filter"), MODES * 2)],
)
def test_weights_after_two_iterations_are_those_of_arrays(kind, mode):
    weights = []
    for runner in (SingleAgentEnvRunner, TensorEnvRunner):
        config = config_of(runner, kind, gym_env_autoreset_mode=mode)
        algo = config.training(train_batch_size=120, minibatch_size=60, num_epochs=2).build_algo()
        for _ in range(2):
            results = algo.train()
        assert results["num_env_steps_sampled_lifetime"] >= 240
        weights.append(algo.get_module().state_dict())
        algo.stop()
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=1e-6), name


class ShortDQN(DQNConfig):
    min_env_steps_per_iteration = 60


class ShortSAC(SACConfig):
    min_env_steps_per_iteration = 60


@pytest.mark.parametrize("algorithm", [ShortDQN, ShortSAC])
def test_replay_learns_from_it(algorithm):
    metrics = []
    for runner in (SingleAgentEnvRunner, TensorEnvRunner):
        config = config_of(runner, algorithm=algorithm)
        if algorithm is ShortDQN:
            config.environment("CartPole-v1").env_runners(gym_env_vectorize_mode="sync")
            config.env_runners(gym_env_autoreset_mode="same_step")
        config.training(num_steps_sampled_before_learning_starts=50, train_batch_size=32, training_intensity=5)
        algo = config.build_algo()
        for _ in range(3):
            results = algo.train()
        metrics.append((results["num_env_steps_sampled_lifetime"], algo.get_module().state_dict()))
        algo.stop()
    assert metrics[0][0] == metrics[1][0] > 60
    for name, tensor in metrics[0][1].items():
        assert torch.allclose(tensor, metrics[1][1][name], atol=1e-4), name


def test_a_run_is_evaluated_saved_and_goes_on(tmp_path):
    config = (
        config_of(TensorEnvRunner, "filter")
        .environment("CartPole-v1")
        .training(train_batch_size=120, minibatch_size=60, num_epochs=1)
    )
    config.env_runners(gym_env_vectorize_mode="sync", env_to_module_connector=[{"piece": "mean_std_filter"}])
    config.evaluation(evaluation_interval=1, evaluation_duration=4)
    algo = config.build_algo()
    results = algo.train()
    assert results["evaluation"]["env_runners"]["num_episodes"] == 4
    algo.save_to_path(tmp_path / "saved")
    algo.stop()
    restored = [type(algo).from_checkpoint(tmp_path / "saved") for _ in range(2)]
    first, second = (each.train() for each in restored)
    assert {type(each.env_runner) for each in restored} == {TensorEnvRunner}
    assert first["env_runners"]["episode_return_mean"] == second["env_runners"]["episode_return_mean"]
    assert first["num_env_steps_sampled_lifetime"] == 240
    weights = [each.get_module().state_dict() for each in restored]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    for each in restored:
        each.stop()


def test_a_file_names_it_without_permission_to_import(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "algorithm: ppo\nenvironment: {env: CartPole-v1}\n"
        "env_runners: {env_runner_cls: 'epibatch.env_runner:TensorEnvRunner', num_envs_per_env_runner: 2}\n"
        "training: {train_batch_size: 64, minibatch_size: 32, num_epochs: 1}\n"
    )
    algo = PPOConfig.from_yaml(path).build_algo()
    assert type(algo.env_runner) is TensorEnvRunner
    assert algo.train()["num_env_steps_sampled_lifetime"] == 64
    algo.stop()


def test_a_run_is_played_recorded_and_inspected(tmp_path, monkeypatch, capsys):
    folder = Path(sys.modules["fixture_tensor_envs"].__file__).parent
    monkeypatch.syspath_prepend(str(folder))
    path = tmp_path / "run.yaml"
    path.write_text(
        "algorithm: ppo\nenvironment: {env: 'fixture_tensor_envs:TorchPoints'}\n"
        "env_runners: {env_runner_cls: 'epibatch.env_runner:TensorEnvRunner', num_envs_per_env_runner: 4,\n"
        "  gym_env_vectorize_mode: vector_entry_point, gym_env_autoreset_mode: next_step}\n"
        "training: {train_batch_size: 64, minibatch_size: 32, num_epochs: 1}\ndebugging: {seed: 0}\n"
        "stop: {training_iteration: 1}\n"
    )
    run, data, page = (str(tmp_path / name) for name in ("run", "data", "page.html"))
    told = {}
    for arguments in (
        ["train", str(path), "--run", run],
        ["play", run, "--episodes", "3", "--seed", "1"],
        ["record", run, "--episodes", "3", "--to", data],
        ["inspect", run, "-o", page],
    ):
        monkeypatch.setattr(sys, "argv", ["epibatch", *arguments, "--allow-imports"])
        with pytest.raises(SystemExit) as ended:
            main()
        told[arguments[0]] = capsys.readouterr().out
        assert not ended.value.code, told
    assert "mean" in told["play"] and len(read_episodes(data)) == 3
    assert "default_policy" in Path(page).read_text()


def test_arguments_of_both_ways_and_parts_of_steps_are_refused():
    runner = runner_of(TensorEnvRunner)
    storage = RolloutStorage(4, N)
    for wrong in (
        {"num_steps": 3},
        {"storage": storage, "num_timesteps": 5},
        {"storage": storage, "force_reset": True},
    ):
        with pytest.raises(RunnerArgumentError, match="storage"):
            runner.sample(**wrong)
    runner.sample(num_timesteps=N)
    mask = np.arange(N) > 0
    for call in (lambda: runner.step(mask=mask), lambda: runner.reset(mask=mask)):
        with pytest.raises(RunnerError, match=r"all environments|some"):
            call()
    config = config_of(TensorEnvRunner).callbacks(on_episode_step=lambda **event: None)
    with pytest.raises(ConfigError, match=r"on_episode_step(.|\n)*on_sample_end"):
        TensorEnvRunner(config=config)


def test_a_change_between_episodes_and_a_storage_begins_new_episodes():
    runner = runner_of(TensorEnvRunner)
    runner.sample(num_timesteps=2 * N)
    storage = RolloutStorage(4, N)
    runner.sample(storage)
    assert {episode.t_started for episode in storage.episodes()} == {0}
    episodes = runner.sample(num_timesteps=2 * N)
    assert {episode.t_started for episode in episodes} == {0} and sum(map(len, episodes)) == 2 * N


def test_after_a_failure_what_had_ended_comes_first():
    class Failing(TorchPoints):
        def step(self, actions: Any) -> Any:
            if len(self.actions) == 9 and not hasattr(self, "failed"):
                self.failed = True
                raise RuntimeError("broken")
            return super().step(actions)

    config = config_of(TensorEnvRunner).environment(Failing)
    runner = TensorEnvRunner(config=config)
    with pytest.raises(RuntimeError, match="broken"):
        runner.sample(num_timesteps=20 * N)
    episodes = runner.sample(num_timesteps=1)
    assert len(episodes) and all(episode.is_done for episode in episodes)
    assert runner.sample(num_timesteps=N)


def test_an_episode_whose_reset_fails_comes_first_as_from_the_runner_of_arrays():
    def failing(points: Any) -> Any:
        class Failing(points):
            def __init__(self, num_envs: int) -> None:
                super().__init__(num_envs, autoreset_mode=gym.vector.AutoresetMode.DISABLED)
                self.works = False

            def begin(self, mask: Any) -> None:
                works, self.works = self.works, True
                if not works:
                    raise ConnectionError("lost")
                super().begin(mask)

            def step(self, actions: Any) -> Any:
                *values, terminated, truncated, infos = super().step(actions)
                if points is TorchPoints:  # flags may have an axis of their own
                    terminated, truncated = terminated[:, None], truncated[:, None]
                return *values, terminated, truncated, infos

        return Failing

    rows = []
    for kind, points in ((SingleAgentEnvRunner, NumpyPoints), (TensorEnvRunner, TorchPoints)):
        torch.manual_seed(0)
        runner = kind(config=config_of(kind).environment(failing(points)))
        with pytest.raises(RunnerError, match="lost"):
            runner.sample(num_timesteps=20 * N, explore=False)
        rows.append([episode.get_observations() for episode in runner.sample(num_timesteps=20 * N, explore=False)])
    assert len(rows[0]) > N
    for mine, other in zip(*rows, strict=True):
        assert np.allclose(mine, other, atol=1e-5)


def test_a_greedy_call_after_an_exploring_one_is_greedy_from_its_first_step():
    runner = runner_of(TensorEnvRunner)
    runner.sample(num_timesteps=2 * N, explore=True)
    for episode in runner.sample(num_timesteps=N, explore=False):
        means = episode.get_extra_model_outputs("action_dist_inputs")[:, :1]
        assert np.array_equal(episode.get_actions(), means)
    (episode, *_) = runner.step(explore=False)
    assert np.array_equal(episode.get_actions(), episode.get_extra_model_outputs("action_dist_inputs")[:, :1])


def test_a_step_after_a_storage_gives_episodes():
    runner = runner_of(TensorEnvRunner)
    runner.sample(RolloutStorage(4, N))
    assert sum(map(len, runner.step())) == N


class Unknown(Piece):
    pipelines = ("env_to_module",)

    def run(self, columns: Any, group: Any) -> Any:
        return columns


class OfDicts(ConnectorV2):
    def __call__(self, *, batch: Any, **call: Any) -> Any:
        return batch


class FlattensItsOwnWay(FlattenObservations):
    def rewrite(self, observations: Any, group: Any) -> Any:
        return super().rewrite(np.asarray(observations), group)


@pytest.mark.parametrize("piece", [Unknown, OfDicts, FlattensItsOwnWay])
def test_pieces_added_while_episodes_run_must_take_tensors(piece):
    runner = runner_of(TensorEnvRunner)
    runner.sample(num_timesteps=6 * N)
    runner.pipelines["env_to_module"].prepend(piece())
    for _ in range(2):  # the second call resets
        with pytest.raises(ConfigError, match=f"piece {piece.__name__}"):
            runner.sample(num_timesteps=N)


class OfArrays(ColumnTransform):
    """Says that it works on tensors, and makes an array."""

    takes_tensors: ClassVar[bool] = True
    columns = "obs"

    def transform(self, x: Any) -> Any:
        return np.tanh(np.asarray(x))


class OfArraysActing(OfArrays):
    columns, pipelines = "actions_for_env", ("module_to_env",)


class Nothing(Piece):
    takes_tensors: ClassVar[bool] = True
    pipelines = ("env_to_module",)

    def run(self, columns: Any, group: Any) -> Any:
        return columns

    def run_tensors(self, columns: Any, step: Any) -> Any:
        return None


class OtherDevice(Nothing):
    def run_tensors(self, columns: Any, step: Any) -> Any:
        return {**columns, "more": torch.zeros(N, device="meta")}


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (OfArrays, r"column 'obs'(.|\n)*tensors on cpu(.|\n)*ndarray"),
        (OfArraysActing, r"column 'actions_for_env'(.|\n)*ndarray"),
        (Nothing, "NoneType"),
        (OtherDevice, r"column 'more'(.|\n)*one on meta"),
    ],
)
def test_what_pieces_make_is_tensors_on_the_device(piece, message):
    side = "module_to_env_connector" if piece is OfArraysActing else "env_to_module_connector"
    runner = TensorEnvRunner(config=config_of(TensorEnvRunner).env_runners(**{side: lambda *spaces: piece()}))
    with pytest.raises(ColumnError, match=rf"piece {piece.__name__}, on tensors(.|\n)*{message}"):
        runner.sample(num_timesteps=N)


def test_devices_and_types_that_do_not_fit_are_named():
    class Elsewhere(TorchPoints):
        def __init__(self, num_envs: int = N) -> None:
            super().__init__(num_envs)
            self.device = torch.device("cuda:99")

    with pytest.raises(ConfigError, match=r"Elsewhere(.|\n)*device(.|\n)*cuda:99"):
        TensorEnvRunner(config=config_of(TensorEnvRunner).environment(Elsewhere))

    class Changing(TorchPoints):
        single_observation_space: Any = gym.spaces.Dict({"at": TorchPoints.single_observation_space})

        def observe(self, out: Any = None) -> Any:
            dtype = torch.float64 if len(self.actions) > 3 else torch.float32 if self.actions else self.first
            return {"at": super().observe(out).to(dtype)}

    for Changing.first, wrong in ((torch.float32, False), (torch.int64, True)):
        for storage in (None, RolloutStorage(9, N)):
            runner = TensorEnvRunner(config=config_of(TensorEnvRunner).environment(Changing))
            message = r"step\(\)(.|\n)*torch.int64 in part \['at'\](.|\n)*torch.float32"
            with pytest.raises(EnvironmentContractError, match=message) if wrong else contextlib.nullcontext():
                runner.sample(storage, **({} if storage is not None else {"num_timesteps": 9 * N}))


def test_pieces_that_were_added_know_no_earlier_steps():
    runner = runner_of(TensorEnvRunner)
    runner.sample(num_timesteps=2 * N)
    runner.pipelines["env_to_module"].prepend(FrameStacking(num_frames=1, axis=-1))
    first, second = (runner.sample(num_timesteps=10 * N) for _ in range(2))
    assert sum(map(len, first)) == sum(map(len, second)) == 10 * N
    assert {episode.t_started for episode in first} > {0}


def test_rewards_have_the_shape_of_the_reward_space():
    class Vectors(TorchPoints):
        reward_space: Any = gym.spaces.Box(-9, 9, (3,))

        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            return observations, rewards[:, None] * torch.tensor([1.0, 2.0, 3.0]), *rest

    class Columns(TorchPoints):
        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            return observations, rewards[:, None], *rest

    for env, shape in ((Vectors, (3,)), (Columns, ())):
        runner = TensorEnvRunner(config=config_of(TensorEnvRunner).environment(env))
        assert {episode.get_rewards().shape[1:] for episode in runner.sample(num_timesteps=9 * N)} == {shape}
    Vectors.reward_space = None
    runner = TensorEnvRunner(config=config_of(TensorEnvRunner).environment(Vectors))
    with pytest.raises(EnvironmentContractError, match=r"rewards of shape \[5\]"):
        runner.sample(num_timesteps=N)


def test_rewards_that_are_not_finite_are_refused_and_ended_episodes_kept():
    class Broken(TorchPoints):
        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            if len(self.actions) == 12:
                rewards[3] = torch.nan
            return observations, rewards, *rest

    runner = TensorEnvRunner(config=config_of(TensorEnvRunner).environment(Broken))
    with pytest.raises(ColumnError, match=r"environment 3[\s\S]*nan in step 12 of 20"):
        runner.sample(num_timesteps=20 * N)
    kept = runner.sample(num_timesteps=1)
    assert len(kept) and all(episode.is_done and np.isfinite(episode.get_return()) for episode in kept)
    assert runner.get_metrics()["num_episodes"] >= len(kept)
    assert {episode.t_started for episode in runner.sample(num_timesteps=N)} == {0}


def test_what_has_no_effect_is_refused():
    class Watching(TensorEnvRunner):
        def on_episode_start(self, **event: Any) -> None: ...

    with pytest.raises(ConfigError, match="on_episode_start"):
        Watching(config=config_of(TensorEnvRunner))


def test_callbacks_of_samples_see_the_metrics_of_their_episodes():
    seen = []

    class Watches(Callbacks):
        def on_sample_end(self, *, env_runner: Any, samples: Any, **event: Any) -> None:
            ended = sum(episode.is_done for episode in samples)
            seen.append((ended, env_runner.get_metrics()["num_episodes"]))

    runner = TensorEnvRunner(config=config_of(TensorEnvRunner).callbacks(Watches))
    runner.sample(num_timesteps=12 * N)
    assert seen[0][0] == seen[0][1] > 0


def test_random_actions_are_recorded_as_the_environment_gets_them(tmp_path):
    for cls in (SingleAgentEnvRunner, TensorEnvRunner):
        runner = cls(config=config_of(cls).offline_data(output=str(tmp_path)))
        episodes = runner.sample(num_timesteps=N, random_actions=True)
        actions = [episode.get_extra_model_outputs("actions_for_env")[0] for episode in episodes]
        assert np.array_equal(sorted(actions), sorted(runner.env.actions[0]))


def test_a_text_names_a_class_that_is_no_environment_of_gymnasium():
    config = config_of(TensorEnvRunner).environment("fixture_tensor_envs:RobotsLikeIsaac")
    assert sum(map(len, TensorEnvRunner(config=config).sample(num_timesteps=N))) == N
