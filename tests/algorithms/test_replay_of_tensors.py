"""Replay of environments of tensors: the draws of arrays, with rows that never leave their device."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow_but
from fixture_tensor_envs import NumpyPoints, TorchPoints
from torch.overrides import TorchFunctionMode

from epibatch.algorithms import DQNConfig, SACConfig
from epibatch.connectors import FrameStacking, Piece
from epibatch.connectors.learner import default_pipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.connectors.sequences import RandomSubsequences
from epibatch.core.errors import ColumnError, ConfigError, PipelineError, ReplayError, RunnerArgumentError
from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import (
    EpisodeReplayBuffer,
    MixedReplay,
    MultiAgentEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from epibatch.learner import RolloutStorage
from epibatch.offline import read_episodes

N, T = 5, 8
MODES = ("same_step", "next_step", "disabled")
TO_HOST = {"numpy", "cpu", "tolist", "item", "__array__", "__bool__", "__float__", "__int__", "__index__"}


class DiscretePoints(TorchPoints):
    single_action_space = gym.spaces.Discrete(3)

    def step(self, actions: Any) -> Any:
        return super().step(actions[:, None].float() - 1)


class OnDevice(TorchFunctionMode):
    """Refuses to show rows to the host: all but flags, integers about environments, lists of returns, and actions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in TO_HOST or (name == "to" and "cpu" in (*args[1:], *(kwargs or {}).values())):
            rows = args[0]
            few = (rows.ndim < 2 and (name == "tolist" or rows.numel() < T * N)) or len(rows) == N
            assert rows.dtype is torch.bool or few, f"{name} of {rows.dtype} {list(rows.shape)}"
        return func(*args, **(kwargs or {}))


def leaves_of(struct: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dicts, by path."""
    if not isinstance(struct, dict):
        return {path: struct}
    return {name: leaf for key, part in struct.items() for name, leaf in leaves_of(part, f"{path}/{key}").items()}


def assert_same(batch: Any, expected: Any, atol: float = 1e-6) -> None:
    leaves, others = leaves_of(dict(batch)), leaves_of(dict(expected))
    assert list(leaves) == list(others)
    for name, leaf in leaves.items():
        assert isinstance(leaf, torch.Tensor), name
        torch.testing.assert_close(leaf, others[name], rtol=1e-6, atol=atol, msg=f"{name}: {{}}".format)


def runner_of(runner: Any, mode: str = "same_step", model: Any = None, **env_config: Any) -> Any:
    """A runner of points with the weights of seed 0."""
    torch.manual_seed(0)
    return runner(
        env=TorchPoints if runner is TensorEnvRunner else NumpyPoints,
        env_config=env_config,
        num_envs=N,
        model_config=model or {"fcnet_hiddens": [16]},
        seed=3,
        gym_env_vectorize_mode="vector_entry_point",
        gym_env_autoreset_mode=mode,
        missing_final_obs="keep" if env_config else None,
    )


LSTM = {"use_lstm": True, "lstm_cell_size": 8, "fcnet_hiddens": [16], "max_seq_len": 6, "burn_in": 2}
FRAMES = {"num_frames": 3, "axis": -1, "as_learner_connector": True}
DRAWS: dict[str, Any] = {
    "steps": {"pieces": lambda: [NStepReturns(n_step=1, gamma=0.9)]},
    "n steps": {"pieces": lambda: [NStepReturns(n_step=3, gamma=0.9)]},
    "sums over steps": {"draw": {"n_step": (1, 3), "gamma": 0.9}},
    "frames": {
        "pieces": lambda: [NStepReturns(n_step=2, gamma=0.9), FrameStacking(**FRAMES)],
        "draw": {"lookback": 2},
    },
    "sums, frames": {"pieces": lambda: [FrameStacking(**FRAMES)], "draw": {"lookback": 2, "n_step": 2}},
    "sequences": {"draw": {"batch_length_T": 4}},
    "sequences of states, burn-in": {
        "model": LSTM,
        "pieces": lambda: [RandomSubsequences(at="end"), NStepReturns(n_step=2, gamma=0.9)],
        "draw": {"batch_length_T": 4, "burn_in": 2, "lookback": 1},
        "burn_in": True,
    },
    "priorities": {
        "buffer": PrioritizedEpisodeReplayBuffer,
        "pieces": lambda: [NStepReturns(n_step=2, gamma=0.9)],
        "draw": {"beta": 0.4},
    },
    "the newest": {"draw": {"max_age": 2 * N}},
    "no terminal observations": {"env": {"final_obs": False}, "pieces": lambda: [NStepReturns(n_step=2, gamma=0.9)]},
    "new ones": {"draw": {"only_new": True, "batch_length_T": 2}},
}


@pytest.mark.filterwarnings("ignore:[\\s\\S]*final_obs")
@pytest.mark.parametrize(("kind", "mode"), slow_but(zip(DRAWS, cycle(MODES)), product(DRAWS, MODES)))
def test_draws_are_those_of_arrays_and_no_row_leaves_the_device(kind, mode):
    case = DRAWS[kind]
    sides, env_config = (SingleAgentEnvRunner, TensorEnvRunner), case.get("env", {})
    runners = [runner_of(side, mode, case.get("model"), **env_config) for side in sides]
    pipeline = default_pipeline(
        connectors=case.get("pieces", list)(), advantages=False, burn_in=case.get("burn_in", False)
    )
    buffer, module = case.get("buffer", EpisodeReplayBuffer), runners[0].module
    of_arrays, of_tensors = (buffer(capacity=12 * N, seed=0, **options) for options in ({}, {"device": "cpu"}))
    for steps in (T, T, 1, 20, *[T] * 5):  # lanes of 12 rows: the oldest are overwritten
        of_arrays.add(runners[0].sample(num_timesteps=steps * N))
        with OnDevice():
            of_tensors.add(runners[1].sample(num_timesteps=steps * N, as_tensors=True))
        draw = {"batch_size_B": 24, **case.get("draw", {})}
        expected = of_arrays.sample(**draw)
        with OnDevice():
            drawn = of_tensors.sample(**draw)
            batch = pipeline(rl_module=module, batch={}, episodes=drawn)
        assert_same(batch, pipeline(rl_module=module, batch={}, episodes=expected))
        if "priorities" in kind:
            of_arrays.update_priorities(expected.starts + 0.5)
            of_tensors.update_priorities(drawn.starts + 0.5)
    assert len(of_arrays) == len(of_tensors) < 12 * N


def filled(steps: int = 10, **options: Any) -> tuple[Any, Any, Any]:
    """Two buffers with the same steps, of arrays and of tensors, and the runner that took them."""
    runner, buffers = runner_of(TensorEnvRunner), [EpisodeReplayBuffer(200, seed=0, **o) for o in ({}, options)]
    fragment = runner.sample(num_timesteps=steps * N, as_tensors=True)
    for buffer in buffers:
        buffer.add(fragment)
    return *buffers, runner


def batch_of(drawn: Any, runner: Any) -> Any:
    pipeline = default_pipeline(connectors=[NStepReturns(n_step=2, gamma=0.9)], advantages=False)
    return pipeline(rl_module=runner.module, batch={}, episodes=drawn)


def test_a_draw_needs_no_values_of_its_device():
    of_arrays, of_meta, runner = filled(device="meta")
    expected, batch = (batch_of(buffer.sample(16), runner) for buffer in (of_arrays, of_meta))
    assert batch.keys() == expected.keys()
    for name, leaf in batch.items():
        assert leaf.device.type == "meta" and (leaf.shape, leaf.dtype) == (expected[name].shape, expected[name].dtype)


def test_items_of_a_delivery_and_of_a_draw_are_episodes_of_arrays():
    plain = runner_of(TensorEnvRunner).sample(num_timesteps=T * N)
    runner = runner_of(TensorEnvRunner)
    fragment = runner.sample(num_timesteps=T * N, as_tensors=True)
    assert len(fragment) == len(plain) == len(list(fragment)) and fragment.lengths.tolist() == plain.lengths().tolist()
    for mine, other in zip(fragment, plain):
        assert np.array_equal(mine.get_observations(), other.get_observations())
        assert mine.is_terminated == other.is_terminated and mine.is_truncated == other.is_truncated
    buffer = EpisodeReplayBuffer(200, seed=0, device="cpu")
    buffer.add(fragment)
    drawn = buffer.sample(4, batch_length_T=3)
    steps = {id_: episode for episode in plain for id_ in [tuple(map(tuple, episode.get_observations().tolist()))]}
    for episode in drawn:
        rows = [tuple(row) for row in episode.get_observations().tolist()]
        assert any(rows == list(whole[i : i + len(rows)]) for whole in steps for i in range(len(whole)))
    more = runner.sample(num_timesteps=T * N)
    going_on = [episode for episode in fragment if not episode.is_done]
    ids = {episode.id_: episode for episode in more}
    for episode in going_on:
        assert ids[episode.id_].t_started == episode.t_started + len(episode)
        assert ids[episode.id_].return_before == pytest.approx(episode.get_return(), abs=1e-5)


def test_a_storage_of_rollouts_is_added_as_its_episodes_are():
    storage, torch_rng = RolloutStorage(T, N), torch.Generator().manual_seed(0)
    buffers = [EpisodeReplayBuffer(30, seed=0, **options) for options in ({}, {}, {"device": "cpu"})]
    module = runner_of(TensorEnvRunner).module
    for _ in range(3):
        storage.clear()
        for _ in range(T):
            step = {"obs": torch.rand(N, 2, generator=torch_rng), "actions": torch.rand(N, 1, generator=torch_rng)}
            step |= {"rewards": torch.rand(N, generator=torch_rng)}
            step |= {"terminateds": torch.rand(N, generator=torch_rng) < 0.3}
            storage.add_step(step, final_obs=torch.rand(N, 2, generator=torch_rng))
        storage.finish(torch.rand(N, 2, generator=torch_rng))
        for buffer, episodes in zip(buffers, (storage.episodes(), storage, storage)):
            buffer.add(episodes)
        pipeline = default_pipeline(connectors=[NStepReturns(n_step=2, gamma=0.9)], advantages=False)
        batches = [pipeline(rl_module=module, batch={}, episodes=buffer.sample(16)) for buffer in buffers]
        for batch in batches[1:]:
            assert_same(batch, batches[0])


def test_episodes_of_arrays_are_copied_to_the_device_and_types_widen():
    rng = np.random.default_rng(0)
    buffers = [EpisodeReplayBuffer(60, seed=0, **options) for options in ({}, {"device": "cpu"})]
    runner = runner_of(TensorEnvRunner)
    pipeline = default_pipeline(connectors=[NStepReturns(n_step=2, gamma=0.9)], advantages=False)
    for scale in (1, 1, 0.5, 1):  # bytes, then floats
        episodes = [
            SingleAgentEpisode(
                observations=[
                    {"b": rng.integers(0, 9, 2).astype(np.uint8) if scale == 1 else rng.random(2), "a": i}
                    for i in range(length + 1)
                ],
                actions=list(range(length)),
                rewards=list(rng.random(length)),
                terminated=bool(length % 2),
                len_lookback_buffer=0,
            )
            for length in (3, 6, 1)
        ]
        for buffer in buffers:
            buffer.add(episodes)
        batches = [pipeline(rl_module=runner.module, batch={}, episodes=buffer.sample(16)) for buffer in buffers]
        assert_same(batches[1], batches[0])
    assert batches[0]["obs"]["b"].dtype is torch.float32


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int16", "bool", "float16", "float64"])
def test_rows_of_every_type_are_kept_with_their_values(dtype):
    values = np.arange(7).astype(dtype) * np.asarray(200 if dtype in ("uint16", "uint32", "uint64") else 1, dtype)
    buffers = [EpisodeReplayBuffer(30, seed=0, **options) for options in ({}, {"device": "cpu"})]
    for buffer in buffers:
        for _ in range(2):
            buffer.add(
                SingleAgentEpisode(
                    observations=list(values[:, None]), actions=[0] * 6, rewards=[1.0] * 6, len_lookback_buffer=0
                )
            )
    batches = [batch_of(buffer.sample(16), runner_of(TensorEnvRunner)) for buffer in buffers]
    for name in ("obs", "new_obs"):
        assert batches[0][name].tolist() == batches[1][name].tolist()


class DepthPoints(TorchPoints):
    single_observation_space = gym.spaces.Box(0, 2**16 - 1, (2,), np.uint16)

    def observe(self, out: Any = None) -> Any:
        return ((super().observe() + 20) * 2000).int().to(torch.uint16)


def test_terminal_observations_of_a_fragment_may_be_of_16_bits():
    sides = []
    for as_tensors in (False, True):
        runner = TensorEnvRunner(
            env=DepthPoints,
            num_envs=N,
            model_config={"fcnet_hiddens": [4]},
            seed=0,
            gym_env_vectorize_mode="vector_entry_point",
        )
        fragment = runner.sample(num_timesteps=T * N, random_actions=True, as_tensors=as_tensors)
        assert sum(episode.is_done for episode in fragment) > N
        sides.append((fragment, batch_of(fragment, runner)))
    for episode, other in zip(sides[0][0], sides[1][0]):
        assert np.array_equal(episode.get_observations(), other.get_observations())
    for name in ("obs", "new_obs"):
        assert sides[0][1][name].tolist() == sides[1][1][name].tolist()


def test_a_buffer_of_tensors_is_saved_and_restored(tmp_path):
    of_arrays, of_tensors, runner = filled(device="cpu")
    for number, (source, options) in enumerate(
        [(of_tensors, {"device": "cpu"}), (of_tensors, {}), (of_arrays, {"device": "cpu"})]
    ):
        path = source.save_to_path(tmp_path / str(number))
        restored = EpisodeReplayBuffer(200, **options)
        restored.restore_from_path(path)
        assert len(restored) == len(source)
        assert_same(batch_of(restored.sample(16), runner), batch_of(source.sample(16), runner), 0.0)
        for buffer in (of_arrays, of_tensors):  # later checkpoints share what was written
            buffer.add(fragment := runner.sample(num_timesteps=N, as_tensors=True), source=number)
        assert len(fragment)


def test_buffers_of_tensors_are_mixed():
    pairs = [filled(steps, device="cpu") for steps in (10, 6)]
    names, runner = ("demo", "online"), pairs[0][2]
    of_arrays, of_tensors = (
        MixedReplay({"demo": 1, "online": 3}, dict(zip(names, [pair[i] for pair in pairs]))) for i in (0, 1)
    )
    expected = batch_of(of_arrays.sample(20), runner)
    with OnDevice():
        batch = batch_of(of_tensors.sample(20), runner)
    assert_same(batch, expected)


class NeedsArrays(Piece):
    pipelines, input_layouts = ("learner",), ("episodes",)

    def run(self, columns, group):
        return columns


def test_what_cannot_work_is_a_named_error():
    of_arrays, of_tensors, runner = filled(device="cpu")
    pipeline = default_pipeline(connectors=[NeedsArrays()], advantages=False)
    pipeline(rl_module=runner.module, batch={}, episodes=of_arrays.sample(4))
    with pytest.raises(PipelineError, match=r"NeedsArrays[\s\S]*takes_tensors[\s\S]*device"):
        pipeline(rl_module=runner.module, batch={}, episodes=of_tensors.sample(4))
    for options, found in {
        "device": {"device": "tpu"},
        "folder": {"device": "cpu", "folder": "somewhere"},
        "keep_infos": {"pin_memory": True, "keep_infos": True},
    }.items():
        with pytest.raises(ReplayError, match=options):
            EpisodeReplayBuffer(100, **found)
    with pytest.raises(ReplayError, match="device"):
        EpisodeReplayBuffer(100, pin_memory=True, device="cuda")
    with pytest.raises(ReplayError, match=r"device[\s\S]*several agents"):
        MultiAgentEpisodeReplayBuffer(100, device="cpu")
    with pytest.raises(ReplayError, match=r"MixedReplay[\s\S]*arrays"):
        MixedReplay({"a": 1, "b": 1}, {"a": of_arrays, "b": of_tensors})
    text = SingleAgentEpisode(observations=["a", "b"], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises(ColumnError, match=r"column 'obs'[\s\S]*numbers"):
        EpisodeReplayBuffer(100, device="cpu").add(text)
    for arguments in ({"num_episodes": 2}, {"storage": RolloutStorage(T, N)}):
        with pytest.raises(RunnerArgumentError, match="as_tensors"):
            runner.sample(**arguments, as_tensors=True)
    if not torch.cuda.is_available():
        buffer = EpisodeReplayBuffer(100, device="cuda")
        with pytest.raises(ConfigError, match="cuda"):
            buffer.add(runner.sample(num_timesteps=N))


def config_of(algorithm: Any, device: Any, **training: Any) -> Any:
    config = algorithm().environment(DiscretePoints if algorithm is DQNConfig else TorchPoints)
    config.env_runners(
        env_runner_cls=TensorEnvRunner, num_envs_per_env_runner=N, gym_env_vectorize_mode="vector_entry_point"
    )
    buffer = {"type": training.pop("type", "EpisodeReplayBuffer"), "capacity": 120}
    if device is not None:
        buffer["device"] = device
    settings = {"num_steps_sampled_before_learning_starts": 40, "train_batch_size": 24, "training_intensity": 2.0}
    return config.training(replay_buffer_config=buffer, **settings, **training).debugging(seed=0)


RUNS: dict[str, Any] = {
    "dqn": (DQNConfig, {"n_step": 3}, {"fcnet_hiddens": [16]}),
    "dqn, priorities": (DQNConfig, {"type": "PrioritizedEpisodeReplayBuffer"}, {"fcnet_hiddens": [16]}),
    "r2d2": (DQNConfig, {"n_step": 2, "burn_in_len": 2}, {**LSTM, "burn_in": 0}),
    "sac": (SACConfig, {"n_step": 2}, {"fcnet_hiddens": [16]}),
}


@pytest.mark.parametrize("name", slow_but(["dqn", "dqn, priorities"], RUNS))
def test_dqn_and_sac_learn_the_same_from_tensors(name):
    algorithm, training, model = RUNS[name]
    weights = []
    for device in (None, "cpu"):
        kinds = set()
        config = config_of(algorithm, device, **training).rl_module(model_config=model)
        config.callbacks(on_sample_end=lambda samples, kinds=kinds, **rest: kinds.add(getattr(samples, "device", None)))
        algo = config.build_algo()
        results = algo.train()
        weights.append({name: value.clone() for name, value in algo.get_module().state_dict().items()})
        assert results["replay_buffer"]["num_env_steps_sampled"] >= 1800
        assert kinds == {device and torch.device(device)}
        algo.stop()
    for key, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][key], rtol=1e-4, atol=1e-4, msg=f"{key}: {{}}".format)


YAML = """
algorithm: {algorithm}
offline_data: {{output: '{data}'}}
environment: {{env: '{module}:{env}'}}
env_runners:
  env_runner_cls: epibatch.env_runner:TensorEnvRunner
  num_envs_per_env_runner: 5
  gym_env_vectorize_mode: vector_entry_point
  gym_env_autoreset_mode: {mode}
training:
  num_steps_sampled_before_learning_starts: 40
  train_batch_size: 24
  training_intensity: 1.0
  store_buffer_in_checkpoints: true
  replay_buffer_config: {{capacity: 300, device: cpu}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "mode"), [("dqn", "DiscretePoints", "next_step"), ("sac", "TorchPoints", "disabled")]
)
def test_a_run_of_a_file_is_saved_and_goes_on(algorithm, env, mode, tmp_path):
    path = tmp_path / "run.yaml"
    data = tmp_path / "data"
    path.write_text(YAML.format(algorithm=algorithm, env=env, mode=mode, module=__name__, data=data))
    kind = {"dqn": DQNConfig, "sac": SACConfig}[algorithm]
    algo = kind.from_yaml(path, allow_imports=True).build_algo()
    first = algo.train()
    folder = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    restored = kind.from_yaml(path, allow_imports=True).build_algo()
    restored.restore_from_path(folder)
    results = restored.train()
    restored.stop()
    for result in (first, results):
        assert 200 < result["replay_buffer"]["num_env_steps_stored"] <= 300
    added = results["replay_buffer"]["num_env_steps_added_lifetime"]
    assert added == sum(map(len, read_episodes(data))) >= 2000
