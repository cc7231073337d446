"""Environments of torch tensors: the same episodes as in NumPy, and the same steps in a storage on their device."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_tensor_envs import (
    DISABLED,
    NEXT_STEP,
    SAME_STEP,
    NumpyPoints,
    RobotsLikeIsaac,
    RslRlPoints,
    TorchPoints,
)

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2, Piece, learner
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import CheckFinite
from epibatch.connectors.common import FlattenObservations, FrameStacking
from epibatch.connectors.env_to_module import MeanStdFilter, PrevActionsPrevRewards, WriteObservationsToEpisodes
from epibatch.connectors.observations import Clip, TimeMaxPool
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core import MaskedColumn
from epibatch.core.columns import Columns
from epibatch.core.errors import (
    CheckpointError,
    ColumnError,
    ConfigError,
    EnvironmentContractError,
    EpibatchError,
    EpibatchWarning,
    RolloutOverflowError,
    RunnerArgumentError,
    RunnerError,
)
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.core.rl_module.default_modules import DefaultActorCritic, DefaultLSTMActorCritic
from epibatch.core.spaces import EnvActions
from epibatch.env_runner import AgentsAsEnvs, SingleAgentEnvRunner, TensorEnvRunner
from epibatch.interop.rsl_rl import as_vector_env
from epibatch.learner import ColumnSpec, RolloutStorage

N, T = 5, 24


def config_of(env: Any, *, pieces: Any = None, module_to_env: Any = None, model: Any = None, **env_config: Any) -> Any:
    config = (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(
            num_envs_per_env_runner=N,
            gym_env_vectorize_mode="vector_entry_point",
            env_to_module_connector=pieces,
            module_to_env_connector=module_to_env,
        )
        .debugging(seed=3)
    )
    return config.rl_module(model_config=model or {"fcnet_hiddens": [16]})


def lstm() -> dict[str, Any]:
    return {"use_lstm": True, "lstm_cell_size": 8, "fcnet_hiddens": [16], "max_seq_len": 4}


def runner_of(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)  # for the same weights
    return kind(config=config)


def sampled(config: Any, *, explore: bool | str, storage: Any = None) -> tuple[Any, Any]:
    runner = runner_of(TensorEnvRunner, config)
    storage = RolloutStorage(T, N) if storage is None else storage
    runner.sample(storage, explore=explore)
    return runner, storage


def time_major(episodes: Any, runner: Any, name: str) -> Any:
    """Return the steps of a NumPy runner's chunks as [T, N, ...]."""
    rows: list[list[Any]] = [[] for _ in range(N)]
    for episode, chunk in sorted(zip(episodes, episodes.chunks), key=lambda pair: pair[1].start):
        column = episode.get_observations() if name == Columns.OBS else None
        if name == Columns.ACTIONS:
            column = episode.get_actions()
        elif name == Columns.REWARDS:
            column = episode.get_rewards()
        elif column is None:
            column = episode.get_extra_model_outputs(name)
        rows[chunk.env].extend(column[t] for t in range(len(episode)))
    return np.stack([np.stack(row) for row in rows], 1)


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("env", [TorchPoints, RobotsLikeIsaac])
def test_episodes_are_those_of_the_same_environment_in_numpy(env, explore):
    runners = [runner_of(SingleAgentEnvRunner, config_of(kind)) for kind in (NumpyPoints, env)]
    left, right = (runner.sample(num_timesteps=N * T, explore=explore) for runner in runners)
    assert len(left) == len(right) > 2 * N
    for mine, other in zip(left, right):
        assert np.array_equal(mine.get_observations(), other.get_observations())
        assert np.array_equal(mine.get_actions(), other.get_actions())
        assert np.array_equal(mine.get_rewards(), other.get_rewards())
        assert (mine.is_terminated, mine.is_truncated) == (other.is_terminated, other.is_truncated)
        assert other.get_observations().dtype == np.float32


@pytest.mark.parametrize("model", [None, lstm()])
@pytest.mark.parametrize("explore", [False, True])
def test_the_storage_has_the_steps_of_the_numpy_runner(explore, model):
    numpy_runner = runner_of(SingleAgentEnvRunner, config_of(NumpyPoints, model=model))
    episodes = numpy_runner.sample(num_timesteps=N * T, explore=explore)
    runner, storage = sampled(config_of(TorchPoints, model=model), explore=explore)
    assert storage["truncateds"].sum() > 5 and (not explore or storage["terminateds"].sum() > 5)
    for name in ("obs", "actions", "rewards", "action_logp", "action_dist_inputs"):
        expected = time_major(episodes, numpy_runner, name)
        assert np.allclose(storage[name].numpy(), expected, atol=1e-6), name
    metrics = [each.get_metrics() for each in (numpy_runner, runner)]
    for name in ("num_env_steps_sampled", "num_episodes", "episode_len_mean", "episode_return_mean"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-5), name


@pytest.mark.parametrize("model", [None, lstm()])
def test_read_as_episodes_it_has_the_episodes_of_the_numpy_runner(model):
    expected = runner_of(SingleAgentEnvRunner, config_of(NumpyPoints, model=model)).sample(num_timesteps=N * T)
    _, storage = sampled(config_of(TorchPoints, model=model), explore=True)
    found = [(episode.get_observations(), episode) for episode in storage.episodes()]
    assert len(found) == len(expected)
    for episode in expected:
        same = [other for obs, other in found if np.array_equal(obs, episode.get_observations())]
        assert same and any(
            np.allclose(other.get_actions(), episode.get_actions(), atol=1e-6)
            and np.allclose(other.get_rewards(), episode.get_rewards(), atol=1e-6)
            and (other.is_terminated, other.is_truncated) == (episode.is_terminated, episode.is_truncated)
            for other in same
        )


def test_sampling_goes_on_where_it_was_and_finish_has_the_next_observation():
    whole = sampled(config_of(TorchPoints), explore=False)[1]
    runner = runner_of(TensorEnvRunner, config_of(TorchPoints))
    storage = RolloutStorage(T // 2, N)
    for half in range(2):
        runner.sample(storage, num_steps=5, explore=False)
        runner.sample(storage, explore=False)
        start = half * T // 2
        assert torch.equal(storage["obs"], whole["obs"][start : start + T // 2])
        if not half:
            assert torch.equal(storage.rows("obs", T // 2, T // 2 + 1)[0], whole["obs"][T // 2])
            values = runner.module.compute_values({"obs": whole["obs"][T // 2]})
            assert torch.allclose(runner.last_values(), values)
            storage.clear()


@pytest.mark.parametrize("reuse", [False, True])
def test_an_environment_may_write_into_its_memory_again(reuse):
    _, storage = sampled(config_of(TorchPoints, reuse=reuse), explore=False)
    _, other = sampled(config_of(TorchPoints), explore=False)
    assert torch.equal(storage["obs"], other["obs"])
    assert torch.equal(storage["actions"], other["actions"])


@pytest.mark.parametrize("as_tensors", [False, True])
def test_an_environment_may_write_into_its_memory_again_while_episodes_are_recorded(as_tensors):
    sides = []
    for reuse in (False, True):
        runner = runner_of(TensorEnvRunner, config_of(TorchPoints, reuse=reuse))
        sides.append(runner.sample(num_timesteps=N * T, explore=False, as_tensors=as_tensors))
    assert len(sides[0]) == len(sides[1]) > N
    for episode, other in zip(*sides):
        assert (episode.is_terminated, episode.is_truncated) == (other.is_terminated, other.is_truncated)
        assert np.array_equal(episode.get_observations(), other.get_observations())
        assert np.array_equal(episode.get_rewards(), other.get_rewards())


def test_a_loop_may_sample_in_inference_mode_and_go_on_outside_of_it():
    runner, other = (runner_of(TensorEnvRunner, config_of(TorchPoints)) for _ in range(2))
    with torch.inference_mode():
        runner.sample(num_timesteps=2 * N, explore=False, as_tensors=True)
    other.sample(num_timesteps=2 * N, explore=False)
    for episode, expected in zip(
        runner.sample(num_timesteps=N * T, explore=False, as_tensors=True),
        other.sample(num_timesteps=N * T, explore=False),
    ):
        assert episode.return_before == pytest.approx(expected.return_before, abs=1e-6)
        assert np.array_equal(episode.get_observations(), expected.get_observations())


def test_episodes_of_tensors_are_pickled_as_such():
    runner = runner_of(TensorEnvRunner, config_of(TorchPoints))
    episodes = runner.sample(num_timesteps=N * T, explore=False, as_tensors=True)
    again = pickle.loads(pickle.dumps(episodes))
    made = [runner.config.build_learner_connector(None, None)(rl_module=runner.module, batch={}, episodes=each)
            for each in (episodes, again)]  # fmt: skip
    assert type(made[1]["obs"]) is torch.Tensor and torch.equal(made[0]["obs"], made[1]["obs"])
    assert [episode.id_ for episode in again] == [episode.id_ for episode in episodes]
    assert all(np.array_equal(a.get_rewards(), b.get_rewards()) for a, b in zip(again, episodes))


def test_values_of_truncated_rows_are_those_of_terminal_observations():
    runner, storage = sampled(config_of(TorchPoints), explore=True)
    seen = 0
    for step, (envs, final) in storage.terminal_observations.items():
        truncated = storage["truncateds"][step]
        expected = torch.zeros(N)
        expected[envs] = runner.module.compute_values({"obs": final}).detach()
        expected[~truncated] = 0
        assert torch.allclose(storage["values_bootstrapped"][step], expected)
        assert torch.allclose(final[:, 1], (storage["obs"][step][envs, 1] + 1 / 8))
        seen += int(truncated.sum())
    assert seen == storage["truncateds"].sum() > 5
    assert not storage["values_bootstrapped"][~storage["truncateds"]].any()


@pytest.mark.parametrize("num_envs", [3, 300, 1200])
def test_values_are_those_of_the_module_however_many_rows_a_step_has(num_envs):
    runner = runner_of(TensorEnvRunner, config_of(TorchPoints).env_runners(num_envs_per_env_runner=num_envs))
    storage = RolloutStorage(T, num_envs)
    for num_steps in (1, 9, T - 10):
        runner.sample(storage, num_steps=num_steps)
    with torch.no_grad():
        torch.testing.assert_close(storage["vf_preds"], runner.module.compute_values({"obs": storage["obs"]}))
        after = torch.zeros(T, num_envs)
        for step, (envs, final) in storage.terminal_observations.items():
            after[step, envs] = runner.module.compute_values({"obs": final})
    torch.testing.assert_close(storage["values_bootstrapped"], after * storage["truncateds"])
    assert storage["truncateds"].any() and storage["terminateds"].any()


class Added(Piece):
    """Adds a column of half ones: "[]", a number; "[2, 2]", a matrix; "[N, t]", one for each earlier call."""

    takes_tensors = True

    def __init__(self, shape: str) -> None:
        self.shape, self.calls = shape, 0

    def run(self, columns: Any, group: Any) -> Any:
        raise NotImplementedError

    def run_tensors(self, columns: Any, step: Any) -> Any:
        self.calls += 1
        made = {"[]": torch.tensor(0.5), "[2, 2]": torch.eye(2) / 2}
        return {**columns, "added": made.get(self.shape, torch.full((len(step.obs), self.calls, 1), 0.5))}


class ReadsAdded(TorchRLModule):
    def setup(self) -> None:
        self.layer = torch.nn.Linear(2, 2)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {Columns.ACTION_DIST_INPUTS: self.layer(batch["obs"])}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        x, added = self.layer(batch["obs"]), batch["added"]
        return (x @ added if added.ndim == 2 else x * (added.mean(1) if added.ndim else added)).sum(-1)


@pytest.mark.parametrize("shape", ["[]", "[2, 2]", "[N, t]"])
def test_values_of_inputs_that_steps_cannot_share_are_those_of_each_step(shape):
    config = config_of(TorchPoints, pieces=lambda *_, **__: [Added(shape)])
    config = config.rl_module(rl_module_spec=RLModuleSpec(module_class=ReadsAdded))
    columns = {"obs": ColumnSpec((2,)), "vf_preds": ColumnSpec(), "values_bootstrapped": ColumnSpec()}
    columns |= {name: ColumnSpec(dtype=torch.bool) for name in ("terminateds", "truncateds")}
    runner, storage = sampled(config, explore=True, storage=RolloutStorage(T, N, columns))
    layer = runner.module.layer.requires_grad_(False)
    torch.testing.assert_close(storage["vf_preds"], layer(storage["obs"]).sum(-1) / 2)
    after = torch.zeros(T, N)
    for step, (envs, final) in storage.terminal_observations.items():
        after[step, envs] = layer(final).sum(-1) / 2
    torch.testing.assert_close(storage["values_bootstrapped"], after * storage["truncateds"])
    assert storage["truncateds"].any() and storage["terminateds"].any()


class DoubledInPlace(ColumnTransform):
    """Doubles observations in memory of its own, which it writes to in each step."""

    columns = "obs"
    takes_tensors: ClassVar[bool] = True

    def transform(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x * 2
        memory = vars(self).setdefault("memory", {}).setdefault(len(x), torch.empty_like(x))
        return torch.mul(x, 2, out=memory)


@pytest.mark.parametrize("num_envs", [1, N])
def test_a_piece_may_write_into_its_memory_again(num_envs):
    sides = []
    for piece in (DoubledInPlace, Double):
        config = config_of(TorchPoints, pieces=lambda *_, piece=piece, **__: [piece()])
        runner = runner_of(TensorEnvRunner, config.env_runners(num_envs_per_env_runner=num_envs))
        sides.append(RolloutStorage(T, num_envs))
        runner.sample(sides[-1], explore=False)
    for name in sides[0].columns:
        assert torch.equal(*(side[name] for side in sides)), name
    for mine, other in zip(*(side.terminal_observations.values() for side in sides), strict=True):
        assert torch.equal(mine[1], other[1])
    assert sides[0]["truncateds"].any()


def test_recurrent_values_of_truncated_rows_use_the_state_after_the_step():
    runner, storage = sampled(config_of(TorchPoints, model=lstm()), explore=True)
    for step, (envs, final) in storage.terminal_observations.items():
        for row, env in enumerate(envs.tolist()):
            if not storage["truncateds"][step, env]:
                continue
            state = {name: leaf[step, env : env + 1] for name, leaf in storage["state_in"].items()}
            obs = torch.stack([storage["obs"][step, env], final[row]])[None]
            value = runner.module.compute_values({"obs": obs, "state_in": state}).detach()[0, 1]
            assert storage["values_bootstrapped"][step, env] == pytest.approx(float(value), abs=1e-6)


def test_states_never_cross_ends():
    _, storage = sampled(config_of(TorchPoints, model=lstm()), explore=True)
    ended = storage.ended()
    assert ended[:-1].any()
    for leaf in storage["state_in"].values():
        begins = torch.cat([torch.ones(1, N, dtype=torch.bool), ended[:-1]])
        assert not leaf[begins].any()
        assert leaf[~begins].any(-1).float().mean() > 0.8  # that after an observation of zeros is 0

    runner, at_random = sampled(config_of(TorchPoints, model=lstm()), explore="random")  # without states
    assert at_random.ended().any() and "state_in" not in at_random and at_random.terminal_observations
    assert all(runner.env.single_action_space.contains(row) for row in at_random["actions"].flatten(0, 1).numpy())


def test_states_after_steps_are_stored_if_the_schema_has_them():
    state = {"h": ColumnSpec((8,)), "c": ColumnSpec((8,))}
    columns = {"obs": ColumnSpec((2,)), "state_in": state, "state_out": state, "truncateds": ColumnSpec((), torch.bool)}
    columns["terminateds"] = columns["truncateds"]
    config = config_of(TorchPoints, model=lstm())
    _, storage = sampled(config, explore=True, storage=RolloutStorage(T, N, columns))
    going_on = ~storage.ended()[:-1]
    for name in state:
        after, before = storage["state_out"][name][:-1], storage["state_in"][name][1:]
        assert torch.equal(after[going_on], before[going_on])
        assert not torch.equal(after, before)


class Drawing(TorchRLModule):
    """Draws its initial states, counts up from them, and acts 0."""

    def setup(self) -> None:
        self.draws = 0

    def get_initial_state(self) -> Any:
        self.draws += 1
        return {"x": torch.tensor([1000.0 * self.draws])}

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        state = batch[Columns.STATE_IN]["x"]
        return {"actions": torch.zeros(len(state), 1, 1), "state_out": {"x": state + 1}}


def test_drawn_initial_states_are_of_one_episode_each():
    config = config_of(TorchPoints).rl_module(
        rl_module_spec=RLModuleSpec(module_class=Drawing, model_config={"max_seq_len": 4})
    )
    runner, storage = sampled(config, explore=True)
    assert "vf_preds" not in storage and "action_logp" not in storage
    states, ended = storage["state_in"]["x"][..., 0], storage.ended()
    for env in range(N):
        begins = [0, *(torch.nonzero(ended[:-1, env]).flatten() + 1).tolist()]
        assert len({float(states[t, env]) for t in begins}) == len(begins)
        for t in set(range(T)) - set(begins):
            assert states[t, env] == states[t - 1, env] + 1
    episodes = storage.episodes()
    made = learner.default_pipeline(advantages=False)(rl_module=runner.module, batch={}, episodes=episodes)
    expected = storage.sequences(runner.module.model_config["max_seq_len"])["state_in"]["x"]
    assert torch.equal(made["state_in"]["x"], expected)  # training starts from the same draws
    again = RolloutStorage.from_episodes(episodes)
    assert torch.equal(again["state_in"]["x"], storage["state_in"]["x"])


def test_without_terminal_observations_the_value_before_takes_their_place():
    with pytest.warns(EpibatchWarning, match="terminal observations, where episodes are truncated"):
        runner, storage = sampled(config_of(TorchPoints, final_obs=False), explore=False)
    truncated = storage["truncateds"]
    assert torch.equal(storage["values_bootstrapped"][truncated], storage["vf_preds"][truncated])
    assert storage.terminal_observations == {}
    storage.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.sample(storage)  # it warned already


def test_arrays_are_copied_to_tensors():
    _, storage = sampled(config_of(NumpyPoints), explore=True)
    _, other = sampled(config_of(TorchPoints), explore=True)
    for name in storage.columns:
        assert torch.allclose(storage[name].float(), other[name].float(), atol=1e-6), name


def test_single_environments_reset_in_the_same_step():
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=3).debugging(seed=0)
    runner = TensorEnvRunner(config=config)
    storage = RolloutStorage(60, 3)
    runner.sample(storage)
    assert storage["terminateds"].any() and len(storage.terminal_observations) == storage.ended().any(1).sum()
    runner.stop()
    runner.stop()
    with pytest.raises(RunnerError, match="stopped"):
        runner.sample(storage)


def test_only_columns_of_the_schema_are_stored():
    columns = {"obs": ColumnSpec((2,)), "rewards": ColumnSpec()}
    _, storage = sampled(config_of(TorchPoints), explore=False, storage=RolloutStorage(T, N, columns))
    whole = sampled(config_of(TorchPoints), explore=False)[1]
    assert set(storage.columns) == set(columns) and torch.equal(storage["rewards"], whole["rewards"])
    with pytest.raises(ColumnError, match="teacher_actions"):
        sampled(config_of(TorchPoints), explore=False, storage=RolloutStorage(T, N, {"teacher_actions": ColumnSpec()}))


def test_values_of_terminal_observations_need_no_column_of_values():
    whole = sampled(config_of(TorchPoints), explore=False)[1]
    columns = {"truncateds": ColumnSpec(dtype=torch.bool), "values_bootstrapped": ColumnSpec()}
    _, storage = sampled(config_of(TorchPoints), explore=False, storage=RolloutStorage(T, N, columns))
    assert torch.equal(storage["values_bootstrapped"], whole["values_bootstrapped"])


@pytest.mark.parametrize("shape", [(2,), (1,)])
def test_values_that_a_module_gives_are_stored_in_their_shape(shape):
    class Valued(TorchRLModule):
        def setup(self) -> None:
            self.layer = torch.nn.Linear(2, 2)

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            outputs = self.layer(batch["obs"])
            return {Columns.ACTION_DIST_INPUTS: outputs, Columns.VF_PREDS: outputs[:, : shape[0]]}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            return self.layer(batch["obs"])[:, 0]

    columns = {"obs": ColumnSpec((2,)), "vf_preds": ColumnSpec(shape)}
    config = config_of(TorchPoints).rl_module(rl_module_spec=RLModuleSpec(module_class=Valued))
    runner, storage = sampled(config, explore=True, storage=RolloutStorage(T, N, columns))
    layer = runner.module.layer.requires_grad_(False)
    torch.testing.assert_close(storage["vf_preds"], layer(storage["obs"])[..., : shape[0]])


@pytest.mark.parametrize("model", [None, lstm()])
def test_steps_touch_no_memory_of_the_host(model):
    """Tensors on the device "meta" have no values, so a copy to the host is an error: here the metrics', at the end."""
    pieces: dict[str, Any] = {"pieces": lambda env: Double(), "module_to_env": lambda env: Limit()}
    config = config_of(TorchPoints, model=model, final_obs=False, device="meta", **pieces).debugging(seed=None)
    runner, storage = TensorEnvRunner(config=config), RolloutStorage(T, N, device="meta")
    with pytest.raises(NotImplementedError):
        runner.sample(storage)
    assert len(storage) == T
    assert {leaf.device.type for leaf in (storage["obs"], runner.last_values())} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_the_steps_are_those_on_the_cpu():
    _, expected = sampled(config_of(TorchPoints, pieces=lambda env: MeanStdFilter()), explore=False)
    config = config_of(TorchPoints, pieces=lambda env: MeanStdFilter(), device="cuda")
    _, storage = sampled(config, explore=False, storage=RolloutStorage(T, N, device="cuda"))
    for name in expected.columns:
        assert torch.allclose(storage[name].cpu().float(), expected[name].float(), atol=1e-4), name


class Logging(TorchPoints):
    def step(self, actions: Any) -> Any:
        *values, infos = super().step(actions)
        log = {"/mean": torch.tensor(0.5), "parts": torch.arange(3)}
        return *values, {**infos, "log": log, "time_outs": values[3], "text": "x"}


def test_infos_have_the_rows_of_their_environment_and_logged_values_whole():
    episodes = runner_of(SingleAgentEnvRunner, config_of(Logging)).sample(num_timesteps=N * T)
    for episode in (episode for episode in episodes if len(episode) > 2):
        info = episode.get_infos(1)
        assert info["log"]["/mean"] == 0.5 and type(info["log"]["/mean"]) is float
        assert info["log"]["parts"].tolist() == [0, 1, 2]
        assert info["text"] == "x" and not info["time_outs"]


class Scaled(TorchPoints):
    """Its flags are numbers."""

    factor = 1.0

    def step(self, actions: Any) -> Any:
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        return obs, rewards, terminateds.int(), truncateds * self.factor, infos


class Halved(Scaled):
    factor = 0.5


def test_flags_are_bools_or_the_numbers_0_and_1():
    (_, expected), (_, storage) = (sampled(config_of(env), explore=False) for env in (TorchPoints, Scaled))
    assert expected["truncateds"].any()
    for name in ("terminateds", "truncateds", "rewards", "obs"):
        assert torch.equal(storage[name], expected[name])
    with pytest.raises(ColumnError, match="truncateds"):
        sampled(config_of(Halved), explore=False)


class OfIsaac(RobotsLikeIsaac):
    """Terminal observations as Isaac Lab gives them, with what is left of earlier steps in the other rows."""

    observations, metadata = ("policy",), None

    def __init__(self, num_envs: int = N) -> None:
        super().__init__(num_envs)
        self.single_observation_space = gym.spaces.Dict({"policy": self.points.single_observation_space})

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return {"policy": self.points.reset(seed=seed, options=options)[0]}, {}

    def step(self, actions: Any) -> Any:
        obs, rewards, *flags, infos = self.points.step(actions)
        return {"policy": obs}, rewards, *flags, self.extras(infos.get("final_obs"), flags[0] | flags[1])

    def extras(self, final: Any, ended: Any) -> Any:
        return {"final_obs": {"policy": torch.where(ended[:, None], final, torch.nan)}, "log": {}}


class OfMjlab(OfIsaac):
    def extras(self, final: Any, ended: Any) -> Any:
        envs = ended.nonzero().flatten()
        return {"terminal": {"env_ids": envs, "observations": {"policy": final[envs]}}} if len(envs) else {}


class OfMjlabThatWaits(OfIsaac):
    """Its resets take the numbers of environments."""

    def __init__(self, num_envs: int = N) -> None:
        super().__init__(num_envs)
        self.points = TorchPoints(num_envs, autoreset_mode=DISABLED)

    def reset(self, seed: Any = None, env_ids: Any = None, options: Any = None) -> Any:
        assert options is None
        mask = {} if env_ids is None else {"options": {"reset_mask": torch.isin(self.points.envs, env_ids)}}
        return {"policy": self.points.reset(**mask)[0]}, {}

    def extras(self, final: Any, ended: Any) -> Any:
        return {}


class EarlierGymnasium(NumpyPoints):
    def step(self, actions: Any) -> Any:
        *values, infos = super().step(actions)
        return *values, {name.replace("obs", "observation"): value for name, value in infos.items()}


@pytest.mark.parametrize("env", [OfIsaac, OfMjlab, OfMjlabThatWaits, EarlierGymnasium])
def test_terminal_observations_have_other_names_too(env):
    mode = "disabled" if env is OfMjlabThatWaits else None
    config = config_of(env).env_runners(gym_env_autoreset_mode=mode)
    expected = runner_of(SingleAgentEnvRunner, config_of(NumpyPoints)).sample(num_timesteps=N * T, explore=False)
    for kind in (SingleAgentEnvRunner, TensorEnvRunner):
        episodes = runner_of(kind, config).sample(num_timesteps=N * T, explore=False)
        for mine, other in zip(episodes, expected, strict=True):
            assert mine.is_done == other.is_done and not mine.lacks_final_obs
            obs = mine.get_observations()
            assert np.allclose(obs["policy"] if isinstance(obs, dict) else obs, other.get_observations(), atol=1e-5)


def test_environments_that_wait_for_a_reset_fill_a_storage_alike():
    storages = [sampled(config_of(TorchPoints, autoreset_mode=mode), explore=True)[1] for mode in (SAME_STEP, DISABLED)]
    assert storages[0]["truncateds"].any()
    for name in storages[0].columns:
        assert torch.equal(*(storage[name] for storage in storages)), name
    with pytest.raises(RunnerArgumentError, match=r"every row is a step(.|\n)*'next_step'"):
        sampled(config_of(TorchPoints, autoreset_mode=NEXT_STEP), explore=True)


def test_an_environment_that_does_not_say_when_it_resets_is_warned_of():
    class Silent(TorchPoints):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.metadata = {}

    with pytest.warns(EpibatchWarning, match=r"(?s)Silent.*autoreset_mode.*counts as SAME_STEP"):
        sampled(config_of(Silent), explore=True)


class Crowds(TorchPoints):
    """Rows of points as crowds of two, whose agents end on their own."""

    def __init__(self, num_envs: int = 6) -> None:
        super().__init__(num_envs)
        self.num_envs = num_envs // 2

    def rows(self, leaf: Any) -> Any:
        return leaf.reshape(-1, 2, *leaf.shape[1:])

    def reset(self, **kwargs: Any) -> Any:
        self.num_envs = 2 * self.num_envs
        obs = self.rows(super().reset(**kwargs)[0])
        self.num_envs //= 2
        return obs, {}

    def step(self, actions: Any) -> Any:
        *values, infos = super().step(actions.reshape(-1, *actions.shape[2:]))
        return *map(self.rows, values), {"final_obs": self.rows(infos["final_obs"])}


class Together(NumpyPoints):
    """Crowds of three NumPy points that end after four steps."""

    shows = np.array([True, True])

    def reset(self, **kwargs: Any) -> Any:
        self.t = 0
        return np.zeros((2, 3, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t = self.t % 4 + 1
        obs = np.full((2, 3, 2), self.t, np.float32) + np.arange(3, dtype=np.float32)[:, None]
        ended = np.full(2, self.t == 4)
        infos = {"final_observation": obs, "_final_observation": ended & self.shows, "more": 1}
        return obs * (self.t < 4), np.array(actions)[..., 0], ended & False, ended, infos


class OneShows(Together):
    shows = np.array([True, False])


def test_agents_of_one_policy_are_environments():
    config = config_of(lambda num_envs: AgentsAsEnvs(Crowds(num_envs), 2)).env_runners(num_envs_per_env_runner=6)
    plain = config_of(TorchPoints).env_runners(num_envs_per_env_runner=6)
    for kind in (TensorEnvRunner, SingleAgentEnvRunner):
        left, right = (runner_of(kind, each).sample(num_timesteps=90, explore=True) for each in (config, plain))
        for mine, other in zip(left, right, strict=True):
            assert np.array_equal(mine.get_observations(), other.get_observations())
            assert np.array_equal(mine.get_rewards(), other.get_rewards())
            assert (mine.is_terminated, mine.is_truncated) == (other.is_terminated, other.is_truncated)

    config = config_of(lambda num_envs: AgentsAsEnvs(Together(2), 3)).env_runners(num_envs_per_env_runner=6)
    episodes = runner_of(TensorEnvRunner, config).sample(num_timesteps=24, explore=False)
    assert [len(episode) for episode in episodes] == [4] * 6 and all(episode.is_truncated for episode in episodes)
    assert episodes.envs().tolist() == list(range(6))  # environment i // 3, agent i % 3
    for env, episode in zip(episodes.envs().tolist(), episodes):
        assert episode.get_observations()[1:, 0].tolist() == [t + env % 3 for t in range(1, 5)]
        assert np.allclose(episode.get_rewards(), 2 * episode.get_actions()[:, 0])  # up to 2 in the environment

    config = config_of(lambda num_envs: AgentsAsEnvs(OneShows(2), 3)).env_runners(num_envs_per_env_runner=6)
    with pytest.warns(EpibatchWarning, match="none at 3 ends"):
        episodes = runner_of(TensorEnvRunner, config).sample(num_timesteps=24, explore=False)
    assert [episode.lacks_final_obs for episode in episodes] == [False] * 3 + [True] * 3

    with pytest.raises(EnvironmentContractError, match=r"\[2, 2\](.|\n)*\[2, 3, 2\]"):
        AgentsAsEnvs(Together(2), 2).reset()
    with pytest.raises(ConfigError, match="'next_step'"):
        AgentsAsEnvs(TorchPoints(autoreset_mode=NEXT_STEP), 2)


class Fallen(gym.vector.VectorEnv[Any, Any, Any]):
    """Two pairs: the first agent ends after two steps, its pair after five."""

    num_envs, metadata = 2, {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    single_observation_space, single_action_space = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)
    resets_alone, array = False, staticmethod(np.array)

    def reset(self, **kwargs: Any) -> Any:
        self.t, obs = 0, np.zeros((2, 2, 1), np.float32)
        return self.array(obs), {}

    def step(self, actions: Any) -> Any:
        self.t = self.t % 5 + 1
        first = self.t in (2, 3, 5) if self.resets_alone else self.t >= 2
        ended = np.array([[first, self.t == 5]] * 2)
        obs = self.array(np.full((2, 2, 1), self.t % 5, np.float32))
        return obs, self.array(np.ones((2, 2))), self.array(ended), self.array(np.zeros(2, bool)), {"final_obs": obs}


@pytest.mark.parametrize("array", [np.array, torch.as_tensor])
def test_an_agent_whose_flag_stays_up_is_warned_of_once(array: Any) -> None:
    env = AgentsAsEnvs(type("Env", (Fallen,), {"array": staticmethod(array)})(), 2)
    env.reset()
    actions = array(np.zeros(4, np.int64))
    with pytest.warns(EpibatchWarning, match=r"(?s)AgentsAsEnvs.*single step.*MultiAgentEnvRunner") as caught:
        [env.step(actions) for _ in range(300)]
    assert len(caught) == 1
    alone = AgentsAsEnvs(type("Env", (Fallen,), {"array": staticmethod(array), "resets_alone": True})(), 2)
    alone.reset()
    for _ in range(300):  # warnings are errors
        alone.step(actions)


# -- actions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("normalize", "clip"), [(True, False), (False, True), (False, False), (True, True)])
def test_the_environment_gets_the_actions_of_the_numpy_pipeline(normalize, clip):
    runners = []
    for kind, env in ((SingleAgentEnvRunner, NumpyPoints), (TensorEnvRunner, TorchPoints)):
        config = config_of(env).environment(normalize_actions=normalize, clip_actions=clip)
        runners.append(runner_of(kind, config))
    runners[0].sample(num_timesteps=N * T)
    runners[1].sample(RolloutStorage(T, N))
    for mine, other in zip(runners[0].env.actions, runners[1].env.actions):
        assert np.allclose(mine, other.numpy(), atol=1e-6)
    assert len(runners[0].env.actions) == len(runners[1].env.actions) == T


BOXES = [
    gym.spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([5, np.inf, np.inf], np.float32)),
    gym.spaces.Box(-3e38, 3e38, (3,), np.float32),
    gym.spaces.Box(-0.3, 0.7, (3,), np.float64),
    gym.spaces.Box(-0.3, 0.7, (3,), np.float16),
    gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
]
INTEGERS = [gym.spaces.Box(3, 9, (3,), np.int32), gym.spaces.Discrete(4, start=2), gym.spaces.MultiBinary(3)]


@pytest.mark.parametrize("space", BOXES + INTEGERS)
@pytest.mark.parametrize(("normalize", "clip"), [(True, False), (False, True), (False, False), (True, True)])
@pytest.mark.parametrize("from_low", [False, True])
def test_encoded_tensors_are_the_encoded_arrays(space, normalize, clip, from_low):
    nested = gym.spaces.Dict(a=space, b=gym.spaces.Tuple([space]))
    encode = EnvActions(nested, normalize=normalize, clip=clip, from_low=from_low)
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 2, (50, 3)).astype(np.float32)
    if space in INTEGERS:
        rows = rng.integers(0, 2, (50, *space.shape))
    arrays = encode({"a": rows, "b": (rows,)})
    tensors = encode({"a": torch.from_numpy(rows), "b": (torch.from_numpy(rows),)})
    for array, tensor in ((arrays["a"], tensors["a"]), (arrays["b"][0], tensors["b"][0])):
        assert tensor.numpy().dtype == array.dtype
        assert np.array_equal(tensor.numpy(), array)


# -- pieces ----------------------------------------------------------------------------------------


class Double(ColumnTransform):
    takes_tensors: ClassVar[bool] = True
    columns = "obs"

    def transform(self, x: Any) -> Any:
        return x * 2


class Limit(ColumnTransform):
    takes_tensors: ClassVar[bool] = True
    columns = "actions_for_env"
    pipelines = ("module_to_env",)

    def transform(self, x: Any) -> Any:
        return x.clip(-0.5, 0.5)


def test_a_transform_that_takes_tensors_works_on_both_sides_of_the_module():
    plain = sampled(config_of(TorchPoints), explore=False)[1]
    config = config_of(TorchPoints, pieces=lambda env: Double(), module_to_env=lambda env: Limit())
    runner, storage = sampled(config, explore=True)
    assert torch.equal(storage["obs"][0], 2 * plain["obs"][0])  # as the module got them
    values = runner.module.compute_values({"obs": storage["obs"][3]})
    assert torch.allclose(storage["vf_preds"][3], values)
    assert torch.stack(runner.env.actions).abs().max() <= 0.5
    numpy_config = config_of(NumpyPoints, pieces=lambda env: Double(), module_to_env=lambda env: Limit())
    numpy_runner = runner_of(SingleAgentEnvRunner, numpy_config)
    episodes = numpy_runner.sample(num_timesteps=N * T, explore=True)
    assert np.allclose(storage["actions"].numpy(), time_major(episodes, numpy_runner, "actions"), atol=1e-5)


class Silent(ColumnTransform):
    columns = "obs"

    def transform(self, x: Any) -> Any:
        return x * 2


class Plain(ConnectorV2):
    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        return batch


class OfRewards(Double):
    columns = "rewards"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"pieces": lambda env: Silent()}, "Silent"),
        ({"pieces": lambda env: Plain()}, "Plain"),
        ({"module_to_env": lambda env: Plain()}, "Plain"),
    ],
)
def test_a_piece_that_needs_arrays_is_named_when_the_runner_is_built(settings, name):
    with pytest.raises(ConfigError, match=name) as error:
        TensorEnvRunner(config=config_of(TorchPoints, **settings))
    assert "takes_tensors" in str(error.value) and "SingleAgentEnvRunner" in str(error.value)
    SingleAgentEnvRunner(config=config_of(TorchPoints, **settings)).sample(num_timesteps=10)


def test_a_transform_of_rewards_which_acting_does_not_have_is_named():
    for kind, *arguments in ((TensorEnvRunner, RolloutStorage(T, N)), (SingleAgentEnvRunner,)):
        runner = kind(config=config_of(TorchPoints, pieces=lambda env: OfRewards()))
        with pytest.raises(EpibatchError, match=r"OfRewards[\s\S]*rewards"):
            runner.sample(*arguments) if arguments else runner.sample(num_timesteps=10)


def test_flattened_observations_are_those_of_arrays():
    numpy_runner = runner_of(SingleAgentEnvRunner, config_of(NumpyPoints, pieces=lambda env: FlattenObservations()))
    episodes = numpy_runner.sample(num_timesteps=N * T, explore=False)
    _, storage = sampled(config_of(TorchPoints, pieces=lambda env: FlattenObservations()), explore=False)
    assert np.allclose(storage["obs"].numpy(), time_major(episodes, numpy_runner, "obs"), atol=1e-6)


def leaves(struct: Any) -> list[Any]:
    return [leaf for part in struct.values() for leaf in leaves(part)] if isinstance(struct, dict) else [struct]


class Noting:
    """Notes what a module acts on."""

    def setup(self) -> None:
        super().setup()  # type: ignore[misc]
        self.seen: list[Any] = []

    def forward_exploration(self, batch: Any, **kwargs: Any) -> Any:
        self.seen.append(copy.deepcopy(batch))
        return super().forward_exploration(batch, **kwargs)  # type: ignore[misc]


class NotingMLP(Noting, DefaultActorCritic):
    pass


class NotingLSTM(Noting, DefaultLSTMActorCritic):
    pass


def stack(env: Any) -> Any:
    return FrameStacking(num_frames=3, axis=-1)


def shown(env: Any) -> Any:
    views = {"prev_actions": View("actions", -1, mask=True), "past": View("obs", [-3, -1], fill=7)}
    return TrajectoryViews(views=views | {"prev_rewards": View("rewards", [-2, -1])})


PIECES = {
    "stack": stack,
    "previous": lambda env: PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3),
    "views": shown,
    "filter, then stack": lambda env: [MeanStdFilter(), stack(env)],
    "pool": lambda env: TimeMaxPool(),
    "clip in episodes, then stack": lambda env: [Clip(low=0), WriteObservationsToEpisodes(), stack(env)],
}


@pytest.mark.parametrize("module", [NotingMLP, NotingLSTM])
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_pieces_that_remember_earlier_steps_give_what_they_give_on_arrays(pieces, module):
    model = lstm() if module is NotingLSTM else {"fcnet_hiddens": [16]}
    runners = []
    for kind, env in ((SingleAgentEnvRunner, NumpyPoints), (TensorEnvRunner, TorchPoints)):
        config = config_of(env, pieces=pieces, model=model)
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module))
        runners.append(runner_of(kind, config))
    runners[0].sample(num_timesteps=N * T)
    storage = RolloutStorage(T // 2, N)
    for _ in range(2):
        runners[1].sample(storage)
        storage.clear()
    expected, found = (runner.module.seen for runner in runners)
    assert len(expected) == len(found) == T
    for mine, other in zip(expected, found):
        assert mine.keys() == other.keys()
        for name, column in mine.items():
            for leaf, same in zip(leaves(column), leaves(other[name])):
                assert leaf.dtype == same.dtype and torch.allclose(leaf, same, atol=1e-5), name


def test_values_of_terminal_observations_are_those_of_their_stack():
    runner, storage = sampled(config_of(TorchPoints, pieces=stack), explore=True)
    checked = 0
    for step, (envs, final) in storage.terminal_observations.items():
        for env, frames in zip(envs.tolist(), final):
            if storage["truncateds"][step, env]:
                assert torch.equal(frames[:4], storage["obs"][step, env, 2:])  # 3 frames of 2 numbers
                value = runner.module.compute_values({"obs": frames[None]}).detach()
                assert storage["values_bootstrapped"][step, env] == pytest.approx(float(value), abs=1e-6)
                checked += 1
    assert checked > 5


def test_an_edit_while_episodes_run_takes_effect_and_forgets_what_pieces_remember():
    runner, storage = sampled(config_of(TorchPoints), explore=False)
    runner.pipelines["env_to_module"].prepend(Double())
    before = storage.rows("obs", T, T + 1)[0].clone()
    storage.clear()
    runner.sample(storage, explore=False)
    assert torch.equal(storage["obs"][0], before)  # it was observed before the edit
    assert storage["obs"][2:].abs().max() > 1.2 * before.abs().max()


def test_a_running_filter_counts_tensors_as_it_counts_arrays():
    numpy_runner = runner_of(SingleAgentEnvRunner, config_of(NumpyPoints, pieces=lambda env: MeanStdFilter()))
    episodes = numpy_runner.sample(num_timesteps=N * T, explore=False)
    runner, storage = sampled(config_of(TorchPoints, pieces=lambda env: MeanStdFilter()), explore=False)
    assert np.allclose(storage["obs"].numpy(), time_major(episodes, numpy_runner, "obs"), atol=1e-4)
    states = [each.pipelines["env_to_module"].get_state()["mean_std_filter"] for each in (numpy_runner, runner)]
    assert states[0]["since"]["count"] == states[1]["since"]["count"] > N * T  # terminal observations count
    assert np.allclose(states[0]["since"]["mean"], states[1]["since"]["mean"], atol=1e-5)
    assert np.allclose(states[0]["since"]["squares"], states[1]["since"]["squares"], rtol=1e-4)
    assert isinstance(states[1]["since"]["mean"], np.ndarray)


def test_a_filters_state_goes_from_tensors_to_arrays_and_back():
    space = gym.spaces.Dict(a=gym.spaces.Box(-9, 9, (2,), np.float32), b=gym.spaces.Box(0, 255, (1,), np.uint8))
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(3, 2, (40, 2)).astype(np.float32), "b": rng.integers(0, 255, (40, 1)).astype(np.uint8)}
    config = PPOConfig().environment(observation_space=space, action_space=gym.spaces.Discrete(2))
    filters = [MeanStdFilter(space) for _ in range(3)]
    group = None
    tensors = {name: torch.from_numpy(leaf) for name, leaf in arrays.items()}
    out = filters[0].rewrite(arrays, group), filters[1].rewrite(tensors, group)
    for name in arrays:
        assert np.allclose(out[0][name], out[1][name].numpy(), atol=1e-6)
        assert out[0][name].dtype == out[1][name].numpy().dtype
    filters[2].set_state(filters[1].get_state())
    merged = filters[2].merge_states([filters[0].get_state(), filters[1].get_state()])
    assert merged["synchronised"]["count"] == 80
    for each in filters[:2]:
        each.set_state(merged)
    out = filters[0].rewrite(arrays, group), filters[1].rewrite(tensors, group)
    assert np.allclose(out[0]["a"], out[1]["a"].numpy(), atol=1e-6)
    assert np.allclose(filters[1].inverse(out[1])["a"].numpy(), arrays["a"], atol=1e-4)
    assert np.allclose(filters[1].rewrite(arrays, group)["a"], filters[0].rewrite(arrays, group)["a"])
    assert config.observation_space == space


@pytest.mark.parametrize(
    ("when", "where"),
    [(2, "MeanStdFilter, observation of row 3"), (1, r"terminal observations of environments \[3\]")],
)
def test_an_observation_that_is_nan_is_named_and_not_counted(when, where):
    class Broken(TorchPoints):
        def observe(self, out: Any = None) -> Any:
            obs = super().observe(out)
            obs[3, 1] = torch.nan if self.t[3] == when else obs[3, 1]
            return obs

    runner = runner_of(TensorEnvRunner, config_of(Broken, pieces=lambda env: MeanStdFilter()))
    with pytest.raises(ColumnError, match=where + r"(.|\n)*nan"):
        runner.sample(RolloutStorage(T, N))
    assert runner.pipelines["env_to_module"].get_state()["mean_std_filter"]["since"]["count"] % N == (
        3 if when == 2 else 0
    )


class OwnActions(TorchRLModule):
    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        actions = batch["obs"][:, :1]
        return {"actions": actions, "actions_for_env": torch.full_like(actions, 0.125)}


@pytest.mark.parametrize(("kind", "env"), [(TensorEnvRunner, TorchPoints), (SingleAgentEnvRunner, NumpyPoints)])
def test_actions_for_the_environment_that_a_module_gives_stay(kind, env):
    runner = kind(config=config_of(env).rl_module(rl_module_spec=RLModuleSpec(module_class=OwnActions)))
    if kind is TensorEnvRunner:
        runner.sample(RolloutStorage(2, N))
    else:
        runner.sample(num_timesteps=2 * N)
    assert all((actions == 0.125).all() for actions in runner.env.actions)


def test_a_module_built_for_inference_has_no_values():
    spec = RLModuleSpec(module_class=DefaultActorCritic, inference_only=True)
    runner, storage = sampled(config_of(TorchPoints).rl_module(rl_module_spec=spec), explore=False)
    assert not {Columns.VF_PREDS, Columns.VALUES_BOOTSTRAPPED} & storage.columns.keys()
    with pytest.raises(RunnerError, match="without a value function"):
        runner.last_values()


class Masked(TorchPoints):
    """The second entry is a part with a mask, which is absent on the left."""

    pair = gym.spaces.Dict(value=gym.spaces.Box(-np.inf, np.inf, (1,)), mask=gym.spaces.Discrete(2))
    single_observation_space = gym.spaces.Dict(x=gym.spaces.Box(-np.inf, np.inf, (1,)), t=pair)

    def observe(self, out: Any = None) -> Any:
        obs = super().observe()
        return {"x": obs[:, :1], "t": MaskedColumn(obs[:, 1:], obs[:, 0] > 0)}


def test_masked_parts_are_dicts_in_episodes():
    for kind in (SingleAgentEnvRunner, TensorEnvRunner):
        for episode in runner_of(kind, config_of(Masked)).sample(num_timesteps=N * T):
            obs = episode.get_observations()
            assert obs["t"]["value"].shape == obs["x"].shape
            assert np.array_equal(obs["t"]["mask"] != 0, obs["x"][:, 0] > 0)


# -- state and errors ------------------------------------------------------------------------------


def test_a_restored_runner_goes_on_alike_and_takes_the_state_of_the_numpy_runner():
    runner, _ = sampled(config_of(TorchPoints, pieces=lambda env: MeanStdFilter()), explore=True)
    other = TensorEnvRunner(config=config_of(TorchPoints, pieces=lambda env: MeanStdFilter()).debugging(seed=9))
    other.set_state(runner.get_state())
    runner.reset()
    storages = [RolloutStorage(T, N) for _ in range(2)]
    for each, storage in zip((runner, other), storages):
        each.sample(storage)
    assert all(torch.equal(storages[0][name], storages[1][name]) for name in storages[0].columns)
    assert runner.get_metrics()["num_env_steps_sampled_lifetime"] == 2 * N * T
    assert other.get_metrics()["num_env_steps_sampled_lifetime"] == 2 * N * T
    arrays = SingleAgentEnvRunner(config=config_of(NumpyPoints, pieces=lambda env: MeanStdFilter()))
    arrays.set_state(runner.get_state())
    other.set_state(arrays.get_state())
    assert all(torch.equal(*pair) for pair in zip(other.module.parameters(), runner.module.parameters()))


def test_weights_of_a_learner_leave_running_episodes_alone():
    runner, storage = sampled(config_of(TorchPoints), explore=False)
    newest = storage.rows("obs", T, T + 1)[0].clone()
    runner.set_state({"rl_module": runner.module.get_state()})
    storage.clear()
    runner.sample(storage, explore=False)
    assert torch.equal(storage["obs"][0], newest)


def test_the_number_of_updates_is_kept_and_older_weights_are_not_taken():
    runner, _ = sampled(config_of(TorchPoints), explore=False)
    old = runner.get_state(("rl_module", "weights_seq_no"))
    for _ in range(3):
        runner.weights_updated()
    assert runner.get_metrics()["weights_seq_no"] == runner.get_state()["weights_seq_no"] == 3
    arrays = SingleAgentEnvRunner(config=config_of(NumpyPoints))
    arrays.set_state(runner.get_state())
    assert arrays.get_metrics()["weights_seq_no"] == 3
    for parameter in runner.module.parameters():
        parameter.data.fill_(0.5)
    runner.set_state({**old, "weights_seq_no": 2})
    assert all((parameter == 0.5).all() for parameter in runner.module.parameters())
    runner.set_state({**old, "weights_seq_no": 4})
    assert runner.get_metrics()["weights_seq_no"] == 4
    assert not all((parameter == 0.5).all() for parameter in runner.module.parameters())


def test_a_state_that_does_not_fit_changes_nothing():
    runner, _ = sampled(config_of(TorchPoints, pieces=lambda env: MeanStdFilter()), explore=True)
    before = runner.get_state(not_components="rl_module")
    with pytest.raises(CheckpointError):
        runner.set_state({"env_to_module_connector": {"mean_std_filter": {}}, "reset_seeds": {}})
    np.testing.assert_equal(runner.get_state(not_components="rl_module"), before)


def test_wrong_storages_are_named():
    runner, storage = sampled(config_of(TorchPoints), explore=False)
    for wrong, expected in ((RolloutStorage(T, N + 1), "5 environments"), (storage, "room for steps")):
        with pytest.raises(RunnerArgumentError, match=expected):
            runner.sample(wrong)
    with pytest.raises(RunnerArgumentError, match="num_steps"):
        runner.sample(RolloutStorage(T, N), num_steps=0)
    runner.reset()
    short = RolloutStorage(T, N)
    short.add_step({"obs": torch.zeros(N, 2)})
    with pytest.raises(RunnerArgumentError, match="an empty storage, as new episodes begin"):
        runner.sample(short)
    with pytest.raises(RunnerError, match="last_values"):
        TensorEnvRunner(config=config_of(TorchPoints)).last_values()


def test_more_steps_than_a_storage_has_room_for_are_refused_before_one_is_taken():
    _, whole = sampled(config_of(TorchPoints), explore=False)
    runner, storage = runner_of(TensorEnvRunner, config_of(TorchPoints)), RolloutStorage(T, N)
    with pytest.raises(RolloutOverflowError, match=f"at most {T} steps"):
        runner.sample(storage, num_steps=T + 1)
    runner.sample(storage, num_steps=5, explore=False)
    with pytest.raises(RolloutOverflowError, match=f"num_steps={T - 4}"):
        runner.sample(storage, num_steps=T - 4)
    assert len(storage) == 5
    runner.sample(storage, explore=False)
    for name in ("obs", "vf_preds", "values_bootstrapped"):
        torch.testing.assert_close(storage[name], whole[name])


def test_after_a_failure_new_episodes_begin():
    class Failing(TorchPoints):
        fails = True

        def step(self, actions: Any) -> Any:
            if self.fails and len(self.actions) == 4:
                raise ValueError("the cable is off")
            return super().step(actions)

    runner = runner_of(TensorEnvRunner, config_of(Failing))
    storage = RolloutStorage(T, N)
    with pytest.raises(ValueError, match="the cable is off"):
        runner.sample(storage)
    assert len(storage) == 4
    runner.env.fails = False
    with pytest.raises(RunnerArgumentError, match="empty storage"):
        runner.sample(storage)
    storage.clear()
    runner.sample(storage)
    assert not storage["obs"][0, :, 1].any()


def test_after_a_failure_of_values_new_episodes_begin():
    class Failing(TorchRLModule):
        fails = False

        def setup(self) -> None:
            self.layer = torch.nn.Linear(2, 2)

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {Columns.ACTION_DIST_INPUTS: self.layer(batch["obs"])}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            if self.fails:
                raise MemoryError("the device is full")
            return self.layer(batch["obs"])[:, 0]

    runner = runner_of(
        TensorEnvRunner, config_of(TorchPoints).rl_module(rl_module_spec=RLModuleSpec(module_class=Failing))
    )
    storage = RolloutStorage(T, N)
    runner.sample(storage, num_steps=5)
    runner.module.fails = True
    with pytest.raises(MemoryError):
        runner.sample(storage, num_steps=5)
    runner.module.fails = False
    with pytest.raises(RunnerArgumentError, match=r"call storage\.clear"):
        runner.sample(storage)
    storage.clear()
    runner.sample(storage)
    assert storage["vf_preds"].any(1).all() and not storage["obs"][0, :, 1].any()


class WrongRows(TorchPoints):
    """An environment that returns some value in another form than a row for each environment."""

    def __init__(self, which: str, num_envs: int = N) -> None:
        super().__init__(num_envs)
        self.which = which

    def observe(self, out: Any = None) -> Any:
        return super().observe()[: 3 if self.which == "obs" else N]

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.which == "final_obs":
            infos = {"final_obs": infos["final_obs"][:2]}
        return obs, rewards[: 3 if self.which == "rewards" else N], terminated, truncated, infos


class WithoutTruncations(TorchPoints):
    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, _, infos = super().step(actions)
        return obs, rewards, terminated, None, infos


def test_environments_that_do_not_fit_are_named():
    for which, expected, shape in (
        ("rewards", r"rewards of shape \[5\]", r"\[3\]"),
        ("obs", r"reset\(\)(.|\n)*observations with shape \[5, 2\]", r"\[3, 2\]"),
        ("final_obs", r"infos\['final_obs'\] of step\(\)(.|\n)*shape \[5, 2\]", r"\[2, 2\]"),
    ):
        with pytest.raises(EnvironmentContractError, match=rf"{expected}(.|\n)*shape {shape}"):
            runner_of(TensorEnvRunner, config_of(WrongRows, which=which)).sample(RolloutStorage(T, N))
    with pytest.raises(EnvironmentContractError, match=r"truncateds of shape \[5\](.|\n)*None"):
        runner_of(TensorEnvRunner, config_of(WithoutTruncations)).sample(RolloutStorage(T, N))
    with pytest.raises(ConfigError, match="restart_failed_sub_environments"):
        TensorEnvRunner(config=config_of(TorchPoints).fault_tolerance(restart_failed_sub_environments=True))
    with pytest.raises(ConfigError, match="on_episode_end"):
        TensorEnvRunner(config=config_of(TorchPoints).callbacks(on_episode_end=lambda **kwargs: None))


class Groups(TorchPoints):
    """An environment with two groups; `wrong` is a call whose values are not so."""

    single_observation_space = gym.spaces.Dict({"a": TorchPoints.single_observation_space, "b": gym.spaces.Discrete(9)})

    def __init__(self, wrong: Any = "", value: Any = None, num_envs: int = N) -> None:
        super().__init__(num_envs)
        self.wrong, self.value = wrong, value

    def groups(self, obs: Any, call: str) -> Any:
        groups = {"a": obs, "b": self.t}
        return self.value(groups) if self.wrong == call else groups

    def reset(self, **kwargs: Any) -> Any:
        return self.groups(super().reset(**kwargs)[0], "reset"), {}

    def step(self, actions: Any) -> Any:
        obs, *others, infos = super().step(actions)
        return self.groups(obs, "step"), *others, {"final_obs": self.groups(infos["final_obs"], "final_obs")}


@pytest.mark.parametrize("call", ["reset", "step", "final_obs"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda groups: {"a": groups["a"]}, r"shape \[5\] in part \['b'\](.|\n)*only \['a'\]"),
        (lambda groups: groups["a"], r"shape \[5, 2\] in part \['a'\](.|\n)*only one part"),
        (lambda groups: groups | {"a": groups["a"][:, :1]}, r"\[5, 2\] in part \['a'\](.|\n)*shape \[5, 1\]"),
    ],
)
def test_observations_of_another_form_are_errors_of_the_environment(call, value, message):
    with pytest.raises(EnvironmentContractError, match=rf"Groups.*{call}(.|\n)*{message}"):
        sampled(config_of(Groups, wrong=call, value=value), explore=False)
    sampled(config_of(Groups), explore=False)


def of_size(num_envs: int) -> Any:
    return RobotsLikeIsaac(num_envs)


@pytest.mark.parametrize("env", [TorchPoints, of_size])
def test_vector_environments_need_no_mode(env):
    config = config_of(env).env_runners(gym_env_vectorize_mode="sync", num_envs_per_env_runner=7)
    assert TensorEnvRunner(config=config).num_envs == 7
    with pytest.raises(ConfigError, match=rf"{env.__name__}(.|\n)*gym_env_vectorize_mode='vector_entry_point'"):
        SingleAgentEnvRunner(config=config)


def test_the_first_parameter_of_a_function_takes_the_config():
    config = config_of(lambda c: TorchPoints(c["points"]), points=N)
    assert TensorEnvRunner(config=config).num_envs == N
    with pytest.raises(ConfigError, match="without 'device'"):  # it has to be given
        TensorEnvRunner(config=config_of(lambda num_envs, device: None))


def test_a_built_in_piece_that_needs_episodes_is_named_without_advice_to_change_it():
    with pytest.raises(ConfigError, match="CheckFinite") as error:
        TensorEnvRunner(config=config_of(TorchPoints, pieces=lambda env: CheckFinite()))
    assert "declare takes_tensors:" not in str(error.value) and "SingleAgentEnvRunner" in str(error.value)


# -- rsl_rl ----------------------------------------------------------------------------------------


def test_an_environment_of_rsl_rls_form_is_sampled():
    def make(config: Any) -> Any:
        return as_vector_env(RslRlPoints(N))

    with pytest.warns(EpibatchWarning, match="terminal observations"):
        runner, storage = sampled(config_of(make), explore=True)
    assert list(storage.columns["obs"]) == ["critic", "policy"]
    points = runner.env.env.points
    plain = TorchPoints(N)
    obs = plain.reset()[0]
    for t, actions in enumerate(points.actions):
        assert torch.equal(storage["obs"]["policy"][t], obs)
        obs, rewards, terminated, truncated, _ = plain.step(actions.clone())
        assert torch.equal(storage["rewards"][t], rewards)
        assert torch.equal(storage["terminateds"][t], terminated)
        assert torch.equal(storage["truncateds"][t], truncated)
    assert runner.env.extras["log"] == {"/x": 1.0}
    config = config_of(make).env_runners(missing_final_obs="keep")
    assert sum(map(len, SingleAgentEnvRunner(config=config).sample(num_timesteps=50))) == 50


@pytest.mark.parametrize("name", ["final_obs", "terminal"])
def test_terminal_observations_in_extras_of_rsl_rls_form(name):
    class Points(RslRlPoints):
        def step(self, actions: Any) -> Any:
            groups, rewards, dones, extras = super().step(actions)
            final, ended = {"policy": self.points.final, "critic": groups["critic"]}, dones.nonzero().flatten()
            rows = {"env_ids": ended, "observations": {key: leaf[ended] for key, leaf in final.items()}}
            return groups, rewards, dones, {**extras, name: final if name == "final_obs" else rows}

    runner, storage = sampled(config_of(lambda config: as_vector_env(Points(N))), explore=True)
    truncated, finals = storage["truncateds"], storage.terminal_observations
    for step in truncated.any(1).nonzero().flatten().tolist():
        envs, final = finals[step]
        expected = runner.module.compute_values({"obs": final}).detach() * truncated[step][envs]
        assert torch.allclose(storage["values_bootstrapped"][step][envs], expected)
        assert torch.allclose(final["policy"][:, 1], storage["obs"]["policy"][step][envs, 1] + 1 / 8)


class Changed(RslRlPoints):
    """Returns what an earlier version of such environments did, or other groups than at first."""

    returned: Any = None

    def step(self, actions: torch.Tensor) -> Any:
        obs, *others = super().step(actions)
        return (obs, obs, *others) if self.returned is None else (self.returned, *others)


@pytest.mark.parametrize(
    ("returned", "said"), [(None, "5 values"), ({"policy": torch.zeros(N, 2)}, "found:    {policy: leaf}")]
)
def test_steps_of_another_form_are_named(returned, said):
    env = Changed(N)
    env.returned = returned
    with pytest.raises(EnvironmentContractError, match=said):
        as_vector_env(env).step(torch.zeros(N, 1))


class OlderRslRlPoints(RslRlPoints):
    """The form of rsl_rl 2: a tensor, and all groups in extras."""

    def get_observations(self) -> Any:
        return self.obs, {"observations": self.groups()}

    def step(self, actions: Any) -> Any:
        groups, rewards, dones, extras = super().step(actions)
        return groups["policy"], rewards, dones, extras | {"observations": groups}


def test_other_observations_in_extras_are_groups():
    (old, _), (new, _) = (as_vector_env(kind(N)).reset() for kind in (OlderRslRlPoints, RslRlPoints))
    assert old.keys() == new.keys() == {"critic", "policy"}
    runners = [as_vector_env(kind(N)) for kind in (OlderRslRlPoints, RslRlPoints)]
    left, right = (env.step(torch.ones(N, 1))[0] for env in runners)
    assert all(torch.equal(left[name], right[name]) for name in right)
    space = TorchPoints.single_observation_space
    assert torch.equal(as_vector_env(OlderRslRlPoints(N), single_observation_space=space).reset()[0], new["policy"])


def test_an_environment_without_the_adapter_is_told_of_it():
    with pytest.raises(ConfigError, match="as_vector_env"):
        TensorEnvRunner(config=config_of(RslRlPoints))

    class WithSpaces(RslRlPoints):
        single_observation_space, single_action_space = Groups.single_observation_space, gym.spaces.Box(-1, 1, (1,))

        def reset(self, **kwargs: Any) -> Any:
            return {"a": self.obs, "b": torch.zeros(N)}, {}

    with pytest.raises(EnvironmentContractError, match=r"4 values(.|\n)*as_vector_env"):
        sampled(config_of(WithSpaces), explore=False)


def test_tensordicts_are_groups():
    tensordict = pytest.importorskip("tensordict")

    class WithTensorDicts(RslRlPoints):
        def groups(self) -> Any:
            return tensordict.TensorDict(super().groups(), batch_size=[self.num_envs])

    env = as_vector_env(WithTensorDicts(3))
    assert {name: box.shape for name, box in env.single_observation_space.items()} == {"critic": (4,), "policy": (2,)}
    assert torch.equal(env.reset()[0]["policy"], env.step(torch.zeros(3, 1))[0]["policy"]) is False
    with pytest.raises(EnvironmentContractError, match="no num_actions, get_observations"):
        as_vector_env(TorchPoints(3))
