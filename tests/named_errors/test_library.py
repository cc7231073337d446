"""Every mistake a user can make gets a named error: where, what was expected, what was found, what to do."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from epibatch.algorithms import PPO, PPOConfig
from epibatch.cli import app
from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    FrameStacking,
    NumpyToTensor,
)
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import GetActions, ModuleToEnvPipeline, TensorToNumpy, UnBatchToIndividualItems
from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ColumnError,
    ConfigError,
    EnvironmentContractError,
    EpisodeError,
    EpisodeStateError,
    LookbackError,
    NotAvailableError,
    PieceError,
    PieceOutputError,
    PipelineError,
    RegistryError,
    RunnerArgumentError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.piece_offers import load_entry
from epibatch.core.registry import PieceEntry, piece_class, register, register_env
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, default_module_spec
from epibatch.env_runner import SingleAgentEnvRunner, make_multi_agent
from epibatch.episodes import SingleAgentEpisode

OBS, FRAMES, ACT = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (2, 1)), gym.spaces.Discrete(2)
ROW = np.zeros(2, np.float32)
CartPoles = make_multi_agent("CartPole-v1")


# ----------------------------------------------------------------------------------- what the mistakes are made of


def ep(
    id_: str = "ep", steps: int = 4, *, shape: Any = (2,), lookback: int = 0, outputs: Any = None, **given: Any
) -> Any:
    """A chunk of an episode, all of whose values are zeros."""
    rows = steps + lookback
    given.setdefault("observations", [np.zeros(shape, np.float32)] * (rows + 1))
    columns = {"actions": [0] * rows, "rewards": [0.0] * rows, "extra_model_outputs": outputs or {}}
    return SingleAgentEpisode(id_, **columns, len_lookback_buffer=lookback, **given)


def step(episode: Any, shape: Any = (2,), **outputs: Any) -> None:
    episode.add_env_step(np.zeros(shape, np.float32), 0, 0.0, extra_model_outputs=outputs)


def reset(space: Any, observation: Any) -> Any:
    episode = SingleAgentEpisode("ep", observation_space=space)
    episode.add_env_reset(observation)
    return episode


class Piece(ConnectorV2):
    """A user's undeclared piece around a function of (batch, episodes)."""

    def __init__(self, work: Any = None) -> None:
        super().__init__()
        self.work = work

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return self.work(batch, episodes)


def adds(column: str, rows: Any, count: int | None = None) -> Piece:
    """A piece that adds these rows to a column for every episode."""

    def work(batch: Any, episodes: Any) -> Any:
        for episode in episodes:
            ConnectorV2.add_n_batch_items(batch, column, rows, count or len(rows), episode)
        return batch

    return Piece(work)


def reads(steps: int) -> Piece:
    def work(batch: Any, episodes: Any) -> Any:
        episodes[0].get_observations(slice(-steps, None), neg_index_as_lookback=True, fill=0.0)
        return batch

    return Piece(work)


def gives(result: Any) -> Piece:
    return Piece(lambda batch, episodes: result)


ADD_OBS, ADD_COLUMNS = AddObservationsFromEpisodesToBatch, AddColumnsFromEpisodesToTrainBatch
ADD_STATES, ADD_TIME = AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
TRAINING = {"as_learner_connector": True}


def pipeline(*pieces: Any) -> Any:
    return LearnerConnectorPipeline(OBS, ACT, connectors=pieces)


def defaults(*pieces: Any) -> Any:
    """A learner pipeline of these pieces and the default ones for a batch of arrays."""
    return pipeline(*pieces, ADD_OBS(**TRAINING), ADD_COLUMNS(), BatchIndividualItems())


def learn(own: Any, *episodes: Any, rl_module: Any = None) -> Any:
    return (defaults(own) if isinstance(own, Piece) else own)(rl_module=rl_module, episodes=list(episodes))


def recurrent(*episodes: Any, **model_config: Any) -> Any:
    config = {"use_lstm": True, "lstm_cell_size": 4, **model_config}
    pieces = [ADD_OBS(**TRAINING), ADD_TIME(**TRAINING), ADD_STATES(**TRAINING)]
    return learn(pipeline(*pieces), *episodes, rl_module=default_module_spec(OBS, ACT, config).build())


def states(count: int) -> Any:
    return {"state_out": [{key: np.zeros(4, np.float32) for key in ("h", "c")}] * count}


def stacked(episode: Any) -> Any:
    pieces = [FrameStacking(num_frames=4, **TRAINING)]
    return learn(LearnerConnectorPipeline(FRAMES, ACT, connectors=pieces), episode)


def module(forward: Any = None, state: Any = None) -> Any:
    class Own(TorchRLModule):
        def get_initial_state(self):
            return state or {}

        def _forward(self, batch, **kwargs):
            return forward(batch)

    return Own


def acts(forward: Any, state: Any = None) -> Any:
    """Let a module that computes this act in three CartPoles."""
    spec = RLModuleSpec(module_class=module(forward, state), model_config={"max_seq_len": 4})
    config = cart_pole().rl_module(rl_module_spec=spec).env_runners(num_envs_per_env_runner=3)
    runner = SingleAgentEnvRunner(config=config)
    try:
        return runner.sample(num_timesteps=3)
    finally:
        runner.stop()


def env_of(space: Any = OBS, row: Any = ROW, reward: Any = 0.0, ends: Any = (False, False), later: Any = 0) -> type:
    """An environment whose every step (from `later` on) returns these."""

    class Own(gym.Env):
        observation_space, action_space = space, ACT
        steps = 0

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            self.steps += 1
            wrong = (row, reward, *ends, {})
            return wrong if self.steps > later else (self.observation_space.sample(), 0.0, False, False, {})

    return Own


def steps(env: Any, mode: str = "sync", **settings: Any) -> Any:
    """Let two of these environments be stepped at random."""
    config = PPOConfig().environment(env).rl_module(rl_module_spec=RLModuleSpec(module_class=module()))
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode, **settings)
    runner = SingleAgentEnvRunner(config=config)
    try:
        return runner.sample(num_timesteps=8, random_actions=True)
    finally:
        runner.stop()


def own_vector(num_envs: int = 2, **changes: Any) -> Any:
    """A function that makes a vector environment; changes are attributes, or methods as functions of its own."""

    def make() -> Any:
        env = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs)
        for name, value in changes.items():
            setattr(env, name, value)
        return env

    return make


def after(method: Any, place: int, change: Any) -> Any:
    """A vector environment's method whose result is changed in one place."""

    def changed(*args: Any, **kwargs: Any) -> Any:
        result = list(method(*args, **kwargs))
        result[place] = change(result[place])
        return tuple(result)

    return changed


def changed_step(place: int, change: Any) -> Any:
    """A function that makes a vector environment whose steps are changed in one place."""

    def make() -> Any:
        env = own_vector()()
        env.step = after(env.step, place, change)
        return env

    return make


def zeros(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.int64)


def cart_pole(width: int = 4) -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [width]})


def hook(value: Any) -> Any:
    return cart_pole().env_runners(env_to_module_connector=lambda env, spaces, device: value).build_algo()


def damage(folder: Path) -> Any:
    algorithm = cart_pole().build_algo()
    file = Path(algorithm.save_to_path(folder / "saved")) / "state.json"
    algorithm.stop()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return PPO.from_checkpoint(file.parent)


def restore_other(folder: Path) -> None:
    one, other = cart_pole(4).build_algo(), cart_pole(8).build_algo()
    try:
        other.restore_from_path(one.save_to_path(folder / "saved"))
    finally:
        one.stop()
        other.stop()


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Refused(ValueError):
    """What the command printed when it refused to work, with exit code 2."""


def command(folder: Path, *words: str) -> None:
    """Run `epibatch`; `train` gets a good config file unless it goes on with a run."""
    file = [] if words[0] != "train" or "--resume" in words else [str(written(folder / "config.yaml", GOOD))]
    words = tuple(str(folder) if word == "." and "--run" in words else word for word in words)
    with chdir(folder):
        result = CliRunner().invoke(app, [words[0], *file, *words[1:]])
    if result.exit_code == 2:
        raise Refused(result.output)


def written(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def without(folder: Path, name: str) -> Path:
    """A checkpoint that lacks one of its files."""
    saved = save_state(folder / "saved", {"x": ROW})
    (saved / name).unlink()
    return saved


def set_state(**parts: Any) -> None:
    """Give an algorithm its own state with parts changed; None leaves one out."""
    algorithm = cart_pole().build_algo()
    state = {**algorithm.get_state(), **parts}
    try:
        algorithm.set_state({name: part for name, part in state.items() if part is not None})
    finally:
        algorithm.stop()


def whole(work: Any) -> Any:
    """Do something with a built algorithm."""
    algorithm = cart_pole().build_algo()
    try:
        return work(algorithm)
    finally:
        algorithm.stop()


def network(**model_config: Any) -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config=model_config).build_algo()


def declared(**attributes: Any) -> Any:
    return type("Piece", (Piece,), attributes)()


def offer(path: str, *requires: str) -> PieceEntry:
    return PieceEntry("own", path, "a-plugin", "1.0", requires)


GOOD = b"""
algorithm: ppo
environment: {env: CartPole-v1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
"""
YAML = (
    "training: {lr: fast, gamma: 1.5, clip_parm: 1}\nenv_runner: {}\nlearner: [{piece: frame_stacking, num_frame: 4}]"
)
AT_T9 = {"t_started": 9}
TWO_BY_TWO = {"observations": [0, 1, 2], "infos": [{}] * 5}

# --------------------------------------------------------------------------------------------------- the table
# What is done wrong: (error, how it is done, what the message names).

# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # episodes
    "observation outside its space's shape": (
        SpaceError, lambda: step(reset(OBS, np.zeros(2)), (3,)), ["episode ep", "'obs' at t=1", "(2,)", "(3,)"]),
    "observation with other keys than its space": (
        SpaceError, lambda: reset(gym.spaces.Dict(arm=OBS), {"leg": 0}), ["episode ep", "t=0", "'arm'", "'leg'"]),
    "step before reset": (EpisodeStateError, lambda: step(SingleAgentEpisode("ep")), ["episode ep", "add_env_reset"]),
    "step after done": (EpisodeStateError, lambda: step(ep(terminated=True)), ["episode ep", "ended at t=4"]),
    "second reset": (EpisodeStateError, lambda: ep().add_env_reset(0), ["episode ep", "t=4", "new SingleAgentEpisode"]),
    "late extra key": (EpisodeError, lambda: step(ep(), vf=0.5), ["episode ep", "t=4", "late key 'vf'"]),
    "missing extra key": (EpisodeError, lambda: step(ep(outputs={"vf": [0.0] * 4})), ["episode ep", "t=4", "no 'vf'"]),
    "columns that do not fit one another": (
        EpisodeError, lambda: ep(**TWO_BY_TWO), ["episode ep", "5 rows of 'obs'", "3 of 'obs'"]),
    "chunks that do not follow one another": (
        EpisodeStateError, lambda: ep().concat_episode(ep(**AT_T9)), ["episode ep", "starts at t=4", "t=9"]),
    # pieces and pipelines
    "function in a pipeline": (PieceError, lambda: pipeline(ADD_OBS(**TRAINING), lambda batch: batch), [
        "LearnerConnectorPipeline, position 1", "function", "ConnectorV2"]),
    "class instead of a piece": (PieceError, lambda: pipeline(FrameStacking), [
        "position 0", "the class FrameStacking", "FrameStacking(...)"]),
    "unknown neighbour, insert_before": (UnknownNameError, lambda: defaults().insert_before("BatchItems", Piece()), [
        "LearnerConnectorPipeline", "'BatchItems'", "did you mean 'BatchIndividualItems'"]),
    "unknown neighbour, insert_after": (
        UnknownNameError, lambda: defaults().insert_after("batch_individual", Piece()), [
        "LearnerConnectorPipeline", "'batch_individual'", "BatchIndividualItems"]),
    "unknown piece, remove": (UnknownNameError, lambda: defaults().remove(NumpyToTensor), [
        "LearnerConnectorPipeline", "'NumpyToTensor'", "Known: ", "BatchIndividualItems"]),
    "piece that returns nothing": (PieceOutputError, lambda: learn(gives(None), ep()), [
        "LearnerConnectorPipeline, piece 0 (Piece)", "NoneType", "return batch"]),
    "misspelt constructor key": (PieceError, lambda: FrameStacking(num_frame=4), [
        "FrameStacking", "num_frame", "did you mean 'num_frames'"]),
    "wrong constructor value": (ConfigError, lambda: FrameStacking(num_frames=0), [
        "FrameStacking.num_frames", "at least 1", "0"]),
    "column read before it is written": (
        PipelineError, lambda: EnvToModulePipeline(connectors=[ADD_TIME(), ADD_OBS()]), [
        "EnvToModulePipeline, piece 0 (AddTimeDim", "'obs'", "piece 1 (AddObservationsFromEpisodesToBatch)"]),
    "batching before observations": (PipelineError, lambda: pipeline(BatchIndividualItems(), ADD_OBS()), [
        "piece 1 (AddObservationsFromEpisodesToBatch)", "piece 0 (BatchIndividualItems)", "in front of"]),
    "columns behind tensors": (
        PipelineError, lambda: pipeline(BatchIndividualItems(), NumpyToTensor(), ADD_COLUMNS()), [
        "piece 2 (AddColumnsFromEpisodesToTrainBatch)", "piece 1 (NumpyToTensor)", "in front of"]),
    "advantages before columns": (
        PipelineError, lambda: defaults(GeneralAdvantageEstimation()), ["piece 0 (GeneralAdv", "tensors", "episode"]),
    "advantages without columns": (PipelineError, lambda: pipeline(
        ADD_OBS(), BatchIndividualItems(), NumpyToTensor(), GeneralAdvantageEstimation()), [
        "piece 3 (GeneralAdvantageEstimation)", "'rewards'", "no piece writes it"]),
    "actions behind unbatching": (PipelineError, lambda: ModuleToEnvPipeline(
        connectors=[TensorToNumpy(), UnBatchToIndividualItems(), GetActions()]), [
        "ModuleToEnvPipeline, piece 2 (GetActions)", "tensors", "piece 1 (UnBatchToIndividualItems)"]),
    "unbatching tensors": (PipelineError, lambda: ModuleToEnvPipeline(connectors=[UnBatchToIndividualItems()]), [
        "piece 0 (UnBatchToIndividualItems)", "behind the piece that makes batched arrays"]),
    "column with too few rows": (ColumnError, lambda: learn(adds("own", np.zeros(3)), ep()), [
        "LearnerConnectorPipeline, piece 3 (BatchIndividualItems)", "column 'own'", "'ep'", "4 rows", "3 rows"]),
    "column with too many rows, PPO": (ColumnError, lambda: learn(defaults(
        adds("own", np.zeros(7)), AddOneTsToEpisodesAndTruncate()), ep()), [
        "piece 1 (AddOneTsToEpisodesAndTruncate)", "column 'own'", "'ep'", "4 rows", "7 rows"]),
    "one row per episode in training": (ColumnError, lambda: learn(adds("obs", np.zeros((1, 2))), ep()), [
        "column 'obs'", "'ep'", "4 rows", "1 row"]),
    "other number of rows than said": (ColumnError, lambda: learn(adds("own", np.zeros(4), 5), ep()), [
        "piece 0 (Piece)", "column 'own'", "'ep'", "5 rows", "4"]),
    "items of an episode that is not there": (BatchLayoutError, lambda: learn(gives({"own": {("x",): [1]}}), ep()), [
        "piece 0 (Piece)", "column 'own'", "('x',)", "single_agent_episode=episode"]),
    "items of two shapes": (ColumnError, lambda: learn(gives({"own": {("ep",): [np.zeros(2), np.zeros(3)]}}), ep()), [
        "piece 0 (Piece)", "column 'own'", "'ep'", "(2,)", "(3,)"]),
    "chunk without steps": (EpisodeError, lambda: learn(defaults(), ep(), ep("empty", 0)), [
        "LearnerConnectorPipeline", "episode 'empty' (chunk 1 of 2)", "zero-length"]),
    "no episodes": (EpisodeError, lambda: learn(defaults()), ["LearnerConnectorPipeline", "at least one episode"]),
    "mixed spaces in one batch": (ColumnError, lambda: learn(defaults(), ep(), ep("other", shape=(3,))), [
        "piece 0 (AddObservations", "column 'obs'", "'ep'", "(2,)", "'other'", "(3,)"]),
    "mixed model outputs in one batch": (ColumnError, lambda: learn(
        defaults(), ep(), ep("other", outputs={"vf": [0] * 4})), ["model outputs", "'ep'", "'other'", "vf"]),
    # history
    "stacking without an axis for it": (SpaceError, lambda: pipeline(FrameStacking(num_frames=2)), [
        "FrameStacking", "(84, 84, 1)", "(2,)"]),
    "stacking without enough lookback": (LookbackError, lambda: stacked(ep(shape=(2, 1), lookback=1, **AT_T9)), [
        "piece 0 (FrameStacking)", "episode 'ep'", "t=9", "3 steps", "1 step"]),
    "reading without enough lookback": (LookbackError, lambda: learn(reads(3), ep(lookback=1, **AT_T9)), [
        "LearnerConnectorPipeline, piece 0 (Piece)", "3 steps", "t=9", "1 step", "`lookback = 3`"]),
    "recurrent chunk without lookback": (LookbackError, lambda: recurrent(
        ep(outputs=states(4), **AT_T9), max_seq_len=3), [
        "AddStatesFromEpisodesToBatch", "episode 'ep'", "t=9", "len_lookback_buffer=1"]),
    # modules
    "recurrent module without max_seq_len": (ConfigError, lambda: learn(
        pipeline(ADD_OBS(**TRAINING), ADD_TIME(**TRAINING)), ep(), rl_module=module(state={"h": np.zeros(1)})()), [
        "model_config of Own", "max_seq_len", "recurrent", "rl_module.model_config.max_seq_len: 20"]),
    "module without actions": (ColumnError, lambda: acts(lambda batch: {"logits": zeros(3)}), [
        "ModuleToEnvPipeline, piece 0 (GetActions)", "'action_dist_inputs' or 'actions'", "['logits']", "_forward"]),
    "module with too few rows": (ColumnError, lambda: acts(lambda batch: {"actions": zeros(2)}), [
        "piece 2 (UnBatchToIndividualItems)", "column 'actions'", "3 rows", "2"]),
    "recurrent module that drops the time axis": (ColumnError, lambda: acts(
        lambda batch: {"actions": zeros(3), "state_out": batch["state_in"]}, {"h": np.zeros(1, np.float32)}), [
        "piece 3 (RemoveSingleTsTimeRankFromBatch)", "column 'actions'", "[rows, 1, ...]", "time axis"]),
    "module class that is none": (ConfigError, lambda: RLModuleSpec(module_class="Own").build(), [
        "RLModuleSpec.module_class", "subclass of RLModule", "'Own'"]),
    # configs
    "misspelt setting": (ConfigError, lambda: PPOConfig().training(gama=0.9), [
        "training.gama", "did you mean 'gamma'"]),
    "many wrong settings": (ConfigError, lambda: PPOConfig.from_yaml(YAML), [
        "training.lr", "training.gamma", "training.clip_parm", "env_runner: ", "learner[0].num_frame", "these 5"]),
    "wrong values": (ConfigError, lambda: PPOConfig().training(lr="0.1", gamma=2.0), [
        "training.lr", "found str '0.1'", "training.gamma", "found float 2.0"]),
    "contradicting settings": (ConfigError, lambda: cart_pole().training(
        train_batch_size=64, minibatch_size=128).build_algo(), [
        "training.minibatch_size", "train_batch_size (64)", "128"]),
    "misspelt network setting": (
        ConfigError, lambda: PPOConfig.from_dict({"rl_module": {"model_config": {"fcnet_hidden": [8]}}}), [
            "model_config.fcnet_hidden", "did you mean 'fcnet_hiddens'"]),
    "unknown piece in YAML": (ConfigError, lambda: PPOConfig.from_yaml("env_to_module:\n- frame_stackin\n"), [
        "env_to_module[0]", "'frame_stackin'", "did you mean 'frame_stacking'"]),
    "import path in YAML": (ConfigError, lambda: PPOConfig.from_yaml("learner: [{piece: os.path.join}]\n"), [
        "learner[0].piece", "os.path", "runs code", "--allow-imports"]),
    "broken YAML": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: 1\n"), ["YAML", "line 1"]),
    "hook that returns nothing": (PieceError, lambda: hook(None), ["env_to_module_connector", "NoneType", "return"]),
    "several env runners": (NotAvailableError, lambda: PPOConfig().env_runners(num_env_runners=2), [
        "num_env_runners", "2", "num_envs_per_env_runner"]),
    "several agents in an environment of one": (
        ConfigError, lambda: PPOConfig().environment("CartPole-v1").multi_agent(policies={"a"}).build_algo(), [
            "MultiAgentEnv", "make_multi_agent('CartPole-v1')"]),
    "one agent in an environment of several": (
        ConfigError, lambda: PPOConfig().environment(CartPoles).build_algo(), [
            "one of several", ".multi_agent(policies="]),
    "an agent without module": (
        ConfigError, lambda: PPOConfig().environment(CartPoles, env_config={"num_agents": 2}).multi_agent(
            policy_mapping_fn={"0": "a"}).build_algo(), ["policy_mapping_fn", "no entry that fits 1 among 0"]),
    "a module that is not there": (
        ConfigError, lambda: PPOConfig().environment(CartPoles).multi_agent(
            policies={"red"}, policy_mapping_fn={"*": "rad"}).build_algo(), ["'rad'", "did you mean 'red'"]),
    "no environment": (ConfigError, lambda: PPOConfig().build_algo(), ["an environment", 'environment("CartPole-v1")']),
    "unknown environment": (UnknownNameError, lambda: PPOConfig().environment("CartPol-v1").build_algo(), [
        "'CartPol-v1'", "did you mean 'CartPole-v1'"]),
    "environment that its module does not register": (
        UnknownNameError, lambda: PPOConfig().environment(
            "gymnasium.envs.classic_control:CartPoleEnv-v9").build_algo(), [
            "registers no 'CartPoleEnv-v9', but has the class CartPoleEnv", "gym.register("]),
    "environment object instead of its class": (
        ConfigError, lambda: PPOConfig().environment(gym.make("CartPole-v1")), [
            "environment.env", "class", "TimeLimit"]),
    # values that mean something else than they look like
    "rate that is no number": (ConfigError, lambda: PPOConfig().training(lr=math.nan), [
        "training.lr", "found float nan"]),
    "rate without end": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: .inf}"), [
        "training.lr", "found float"]),
    "switch for a number": (ConfigError, lambda: PPOConfig().training(num_epochs=True), [
        "training.num_epochs", "valid integer", "found bool True"]),
    "number for a switch": (ConfigError, lambda: PPOConfig().env_runners(explore=1), [
        "env_runners.explore", "valid boolean", "found int 1"]),
    "negative size": (ConfigError, lambda: PPOConfig().env_runners(num_envs_per_env_runner=-1), [
        "env_runners.num_envs_per_env_runner", "greater than or equal to 1", "found int -1"]),
    "fraction for a count": (ConfigError, lambda: PPOConfig().training(train_batch_size=512.0), [
        "training.train_batch_size", "valid integer", "found float 512.0"]),
    "size that no computer has": (ConfigError, lambda: PPOConfig().training(train_batch_size=10**30), [
        "training.train_batch_size", "less than"]),
    "seed that is too long": (ConfigError, lambda: PPOConfig().debugging(seed=2**32), ["debugging.seed", "4294967296"]),
    "misspelt choice": (ConfigError, lambda: PPOConfig().env_runners(batch_mode="complete"), [
        "env_runners.batch_mode", "'complete_episodes'", "'complete'"]),
    "two spellings of one setting": (ConfigError, lambda: PPOConfig.from_yaml(
        "training: {lambda: 0.9, lambda_: 0.8}"), ["training.lambda", "given twice"]),
    "setting in another section": (ConfigError, lambda: PPOConfig.from_yaml("debugging: {lr: 0.1}"), [
        "debugging.lr", "belongs to training"]),
    "setting of an earlier RLlib": (ConfigError, lambda: PPOConfig.from_yaml("training: {num_sgd_iter: 3}"), [
        "training.num_sgd_iter", "num_epochs"]),
    "layer without units": (ConfigError, lambda: cart_pole(0).build_algo(), [
        "fcnet_hiddens", "positive integers", "[0]"]),
    "initializer that is none": (ConfigError, lambda: network(fcnet_kernel_initializer="orthogonl"), [
        "torch.nn.init", "'orthogonl'", "did you mean 'orthogonal_'"]),
    "keywords for no initializer": (ConfigError, lambda: network(fcnet_kernel_initializer_kwargs={"gain": 2}), [
        "fcnet_kernel_initializer_kwargs", "there is no fcnet_kernel_initializer"]),
    "keywords that an initializer lacks": (ConfigError, lambda: network(
        fcnet_kernel_initializer="normal_", fcnet_kernel_initializer_kwargs={"sd": 1.0}), ["'normal_'", "'sd'"]),
    # YAML
    "repeated key": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: 0.1,\n  lr: 0.2}"), [
        "line 2, column 3", "'lr' is given twice"]),
    "tab": (ConfigError, lambda: PPOConfig.from_yaml("training:\n\tlr: 0.1"), ["line 2", "'\\t'"]),
    "word that YAML takes for a switch": (ConfigError, lambda: PPOConfig.from_yaml("env_runners: {explore: off}"), [
        "line 1, column 24", "'off' is a switch in YAML 1.1", "write true or false"]),
    "number that YAML takes for octal": (ConfigError, lambda: PPOConfig.from_yaml("debugging: {seed: 010}"), [
        "line 1, column 19", "010 would be read as 8"]),
    "number that YAML takes for minutes": (ConfigError, lambda: PPOConfig.from_yaml("stop: {time_total_s: 1:30}"), [
        "line 1", "1:30 would be read as 90"]),
    "key that is a list": (ConfigError, lambda: PPOConfig.from_yaml("? [a]\n: 1"), ["line 1", "a list or a mapping"]),
    "code in YAML": (ConfigError, lambda: PPOConfig.from_yaml("training: !!python/object/apply:os.getcwd []"), [
        "line 1, column 11", "python/object/apply:os.getcwd"]),
    "list for a section": (ConfigError, lambda: PPOConfig.from_yaml("training: [lr, 0.1]"), [
        "training", "a mapping with some of", "found list"]),
    "nothing": (ConfigError, lambda: PPOConfig.from_yaml(""), ["sections such as", "nothing"]),
    "file that is none": (ConfigError, lambda folder: PPOConfig.from_yaml(folder / "none.yaml"), [
        "none.yaml", "No such"]),
    "file that is no text": (ConfigError, lambda folder: PPOConfig.from_yaml(written(folder / "b.yaml", b"\xff")), [
        "b.yaml", "utf-8"]),
    # pieces as data, names and plugins
    "text for a number, piece": (ConfigError, lambda: PPOConfig.from_yaml(
        "learner: [{piece: frame_stacking, num_frames: '4'}]"), ["learner[0].num_frames", "integer", "str '4'"]),
    "switch for a number, piece": (ConfigError, lambda: FrameStacking(num_frames=True), [
        "FrameStacking.num_frames", "integer", "bool True"]),
    "text for a switch, piece": (ConfigError, lambda: FrameStacking(as_learner_connector="no"), [
        "FrameStacking.as_learner_connector", "boolean", "str 'no'"]),
    "discount above 1": (ConfigError, lambda: GeneralAdvantageEstimation(gamma=1.5), [
        "GeneralAdvantageEstimation.gamma", "[0, 1]", "1.5"]),
    "piece in another pipeline": (ConfigError, lambda: PPOConfig.from_yaml("learner: [get_actions]"), [
        "learner[0].piece", "get_actions is made for module_to_env, not for learner"]),
    "piece without a name": (ConfigError, lambda: PPOConfig.from_yaml("learner: [{num_frames: 4}]"), [
        "learner[0]", "the key 'piece'", "num_frames"]),
    "mapping for a list of pieces": (ConfigError, lambda: PPOConfig.from_yaml("learner: {piece: frame_stacking}"), [
        "learner", "expected a list"]),
    "piece object for a function": (ConfigError, lambda: PPOConfig().training(learner_connector=Piece()), [
        "learner_connector", "expected a function", "Piece"]),
    "declaration that is no tuple": (PieceError, lambda: pipeline(declared(reads="obs")), [
        "LearnerConnectorPipeline, piece 0 (Piece), its attribute reads", "str 'obs'", 'reads = ("obs",)']),
    "declared layout that is none": (PieceError, lambda: pipeline(declared(takes=("episode",))), [
        "attribute takes", "'episode'", "did you mean 'episodes'"]),
    "lookback that is negative": (PieceError, lambda: pipeline(declared(lookback=-1)), ["attribute lookback", "-1"]),
    "taken name": (RegistryError, lambda: register("get_actions")(Piece), [
        "'get_actions'", "one owner", "epibatch 0", "GetActions", ":Piece"]),
    "name that looks like a path": (RegistryError, lambda: register("my.piece")(Piece), [
        "register(Piece)", "a plain name", "'my.piece'"]),
    "registered function": (PieceError, lambda: register("double")(ep), ["register(ep)", "ConnectorV2", "a function"]),
    "import path that is not allowed": (RegistryError, lambda: piece_class("os.path:join"), [
        "'os.path:join'", "runs code", "allow_imports=True", "--allow-imports"]),
    "import path that leads nowhere": (RegistryError, lambda: piece_class("os:Piece", allow_imports=True), [
        "'os:Piece'", "AttributeError"]),
    "plugin that cannot be imported": (RegistryError, lambda: load_entry(offer("no_such_module_here:Piece")), [
        "piece 'own' of a-plugin 1.0 (entry point own = no_such_module_here:Piece)", "ModuleNotFoundError"]),
    "plugin that offers no piece": (PieceError, lambda: load_entry(offer("fractions:Fraction")), [
        "a-plugin 1.0 (entry point own = ", "the class fractions:Fraction", "ConnectorV2"]),
    "plugin for a newer epibatch": (RegistryError, lambda: load_entry(offer("m:P", "epibatch>=99")), [
        "a-plugin 1.0", "epibatch>=99", "epibatch 0", "made for this one"]),
    "environment without a factory": (RegistryError, lambda: register_env("mine", "CartPole-v1"), [
        "register_env", "'mine'", "str", "lambda env_config"]),
    # what pipelines and episodes are given
    "pieces where spaces belong": (PieceError, lambda: LearnerConnectorPipeline([Piece()]), ["connectors=", "a list"]),
    "space that is none": (SpaceError, lambda: LearnerConnectorPipeline((2,).__len__()), [
        "LearnerConnectorPipeline.input_observation_space", "gymnasium Space", "int 1"]),
    "misspelt keyword of a pipeline": (PieceError, lambda: LearnerConnectorPipeline(conectors=[]), [
        "conectors", "did you mean 'connectors'"]),
    "something else among the episodes": (PipelineError, lambda: learn(defaults(), ep(), None), [
        "LearnerConnectorPipeline(episodes=...)", "NoneType at position 1"]),
    "batch that is no dict": (BatchLayoutError, lambda: defaults()(batch=[], episodes=[ep()]), [
        "LearnerConnectorPipeline(batch=...)", "a dict of columns", "list"]),
    "state that is no dict": (CheckpointError, lambda: defaults().set_state({"numpy_to_tensor": 3}), [
        "LearnerConnectorPipeline.set_state", "int 3", "'numpy_to_tensor'"]),
    "flag that is text": (EpisodeError, lambda: ep(terminated="no"), ["episode ep, terminated", "str 'no'"]),
    "info that is text": (EpisodeError, lambda: SingleAgentEpisode("ep").add_env_reset(0, infos="x"), [
        "episode ep, infos", "str 'x'"]),
    "negative start": (EpisodeError, lambda: ep(t_started=-1), ["episode ep, t_started", "from 0 on", "-1"]),
    "chunk that is none": (EpisodeError, lambda: ep().concat_episode(None), ["episode ep, concat_episode", "NoneType"]),
    "state of no episode": (CheckpointError, lambda: SingleAgentEpisode.from_state({"id_": "ep"}), [
        "SingleAgentEpisode.from_state", "no ", "observations"]),
    # states and switches of whole parts
    "state of an algorithm that is none": (CheckpointError, lambda: whole(lambda algo: algo.set_state(3)), [
        "PPO.set_state", "a dict of states", "int 3"]),
    "state of a runner that is none": (CheckpointError, lambda: whole(lambda algo: algo.env_runner.set_state("x")), [
        "SingleAgentEnvRunner.set_state", "str 'x'"]),
    "state of a learner that is none": (CheckpointError, lambda: whole(lambda algo: algo.learner.set_state(None)), [
        "Learner.set_state", "NoneType"]),
    "state of a module that is none": (CheckpointError, lambda: whole(lambda algo: algo.get_module().set_state(3)), [
        "DefaultActorCritic.set_state", "int 3"]),
    "batch without observations": (ColumnError, lambda: whole(lambda algo: algo.get_module().forward_inference({})), [
        "the module's forward pass", "a column 'obs'", "columns []"]),
    "text for a switch, sampling": (RunnerArgumentError, lambda: whole(
        lambda algo: algo.env_runner.sample(num_timesteps=2, explore="no")), ["explore", "str 'no'"]),
    "text for a switch, acting": (RunnerArgumentError, lambda: whole(
        lambda algo: algo.act(np.zeros(4, np.float32), explore="no")), ["explore", "str 'no'", "explore=False"]),
    "switch for an amount": (RunnerArgumentError, lambda: whole(
        lambda algo: algo.env_runner.sample(num_timesteps=True)), ["sample(...)", "num_timesteps=True"]),
    "one logger twice": (ConfigError, lambda: PPOConfig().reporting(loggers=["csv", "csv"]), [
        "reporting.loggers", "each logger once"]),
    "environment to evaluate in that is imported": (ConfigError, lambda: PPOConfig.from_yaml(
        "evaluation: {evaluation_config: {env: 'somewhere:Env-v0'}}"), [
        "evaluation.evaluation_config.env", "'somewhere:Env-v0'", "runs code", "--allow-imports"]),
    # environments
    "function that forgets to return its environment": (ConfigError, lambda: steps(lambda: None), [
        "a gymnasium.Env", "None", "return the environment"]),
    "vector environment where a single one is expected": (ConfigError, lambda: steps(own_vector()), [
        "SyncVectorEnv", "gym_env_vectorize_mode='vector_entry_point'"]),
    "vector environment of another size": (ConfigError, lambda: steps(own_vector(3), "vector_entry_point"), [
        "2 environments", "num_envs = 3", "num_envs_per_env_runner"]),
    "vector environment that resets in its own way": (ConfigError, lambda: steps(
        "CartPole-v1", "vector_entry_point", gym_env_autoreset_mode="disabled"), [
        "CartPoleVectorEnv", "'disabled'", "'next_step'", "gym_env_autoreset_mode"]),
    "no vector version": (ConfigError, lambda: steps("Pendulum-v1", "vector_entry_point"), [
        "'Pendulum-v1'", "vector_entry_point", "'sync'"]),
    "misspelt autoreset mode": (ConfigError, lambda: cart_pole().env_runners(gym_env_autoreset_mode="same"), [
        "env_runners.gym_env_autoreset_mode", "'next_step', 'same_step' or 'disabled'", "'same'"]),
    "misspelt wrapper": (ConfigError, lambda: cart_pole().environment(wrappers=["TimeLimits"]), [
        "environment.wrappers", "'TimeLimits'", "did you mean 'TimeLimit'"]),
    "misspelt keyword of a wrapper": (ConfigError, lambda: PPOConfig.from_yaml(
        "environment: {wrappers: [{wrapper: TimeLimit, max_step: 3}]}"), [
        "environment.wrappers", "TimeLimit has no argument 'max_step'", "max_episode_steps"]),
    "text as observation": (SpaceError, lambda: steps(env_of(gym.spaces.Dict(said=gym.spaces.Text(5)))), [
        "observation space['said']", "Text", "encode the text", "TransformObservation"]),
    "another observation shape, step": (SpaceError, lambda: steps(env_of(row=np.zeros(3))), [
        "Own.step()", "shape (2,)", "shape (3,)"]),
    "another key in an observation": (SpaceError, lambda: steps(env_of(gym.spaces.Dict(a=OBS), {"b": 0})), [
        "Own.step()", "['a']", "['b']"]),
    "fractions where integers are declared": (SpaceError, lambda: steps(
        changed_step(0, lambda rows: rows.astype(complex)), "vector_entry_point"), ["'obs'", "float32", "complex128"]),
    "reward that is None": (EnvironmentContractError, lambda: steps(env_of(reward=None)), [
        "Own.step()", "a number as reward", "None"]),
    "reward that is None later": (ColumnError, lambda: steps(env_of(reward=None, later=2)), [
        "'rewards'", "nan", "None", "environments [0, 1]"]),
    "reward that is an array": (EnvironmentContractError, lambda: steps(env_of(reward=np.zeros(1))), [
        "Own.step()", "a number as reward", "shape (1,)"]),
    "rewards with an axis too many": (ColumnError, lambda: steps(
        changed_step(1, lambda rewards: rewards[:, None]), "vector_entry_point"), ["'rewards'", "(2,)", "(2, 1)"]),
    "flag that is a number": (EnvironmentContractError, lambda: steps(env_of(ends=(1, False))), [
        "Own.step()", "True or False as terminated", "1"]),
    "flags that are numbers": (ColumnError, lambda: steps(
        changed_step(3, lambda flags: flags.astype(float)), "vector_entry_point"), [
        "'truncateds'", "bools", "float64"]),
    "step with four values": (EnvironmentContractError, lambda: steps(own_vector(step=lambda actions: (0,) * 4),
        "vector_entry_point"), ["step()", "5 values", "4 values"]),
    "end in the step that resets": (EpisodeError, lambda: steps(
        changed_step(2, np.ones_like), "vector_entry_point"), ["resets a step later", "environments [0, 1]"]),
    # running and restoring
    "both amounts": (RunnerArgumentError, lambda: SingleAgentEnvRunner(config=cart_pole()).sample(
        num_timesteps=5, num_episodes=1), ["sample", "num_timesteps=5, num_episodes=1"]),
    "damaged checkpoint": (CheckpointError, lambda folder: damage(folder), ["saved", "state.json", "changed"]),
    "missing checkpoint": (CheckpointError, lambda folder: PPO.from_checkpoint(folder / "none"), [
        "none", "no such folder"]),
    "checkpoint of another network": (CheckpointError, lambda folder: restore_other(folder), ["weight", "shape"]),
    "checkpoint of something else": (CheckpointError, lambda folder: PPO.from_checkpoint(
        save_state(folder / "other", {"a": 1})), ["other", "the checkpoint of an algorithm", "something else"]),
    "half a checkpoint": (CheckpointError, lambda folder: PPO.from_checkpoint(without(folder, "arrays.npz")), [
        "saved", "no arrays.npz"]),
    "checkpoint that was not finished": (CheckpointError, lambda folder: load_state(without(folder, "COMPLETE")), [
        "saved", "no file named COMPLETE"]),
    "state that cannot be saved": (CheckpointError, lambda folder: save_state(folder / "s", {"f": [print]}), [
        "state['f'][0]", "builtin_function_or_method", "get_state"]),
    "array of objects": (CheckpointError, lambda folder: save_state(folder / "s", np.array([None])), [
        "saving state", "dtype object"]),
    "saving over other files": (CheckpointError, lambda folder: save_state(written(folder / "f" / "x").parent, {}), [
        "saving to", "x", "a folder of its own"]),
    "state without counters": (CheckpointError, lambda: set_state(counters={"training_iteration": 1}), [
        "PPO.set_state", "'counters'", "KeyError"]),
    "state with iterations below 0": (CheckpointError, lambda: set_state(counters={
        "training_iteration": -1, "num_env_steps_sampled_lifetime": 0, "time_total_s": 0.0}), [
        "'counters'", "-1 iterations"]),
    "state without a part": (CheckpointError, lambda: set_state(random=None), ["PPO.set_state", "random"]),
    # the command and its folders
    "run folder that is taken": (Refused, lambda folder: command(folder, "train", "--run", "."), [
        "run folder", "files in it", "--resume"]),
    "run that is none": (Refused, lambda folder: command(folder, "train", "--resume", "nowhere"), [
        "run folder nowhere", "no such folder", "epibatch train"]),
    "folder that is no run": (Refused, lambda folder: command(folder, "train", "--resume", "."), [
        "run folder .", "no config.yaml"]),
    "change that leads nowhere": (Refused, lambda folder: command(folder, "train", "--set", "training.lr_=1"), [
        "training.lr_", "'training.lr'"]),
    "change without a value": (Refused, lambda folder: command(folder, "train", "--set", "training.lr"), [
        "--set", "training.lr", "path=value"]),
    "change to a wrong value": (Refused, lambda folder: command(folder, "train", "--set", "training.lr=fast"), [
        "training.lr", "valid number", "'fast'"]),
    "config without an environment": (Refused, lambda folder: command(
        folder, "train", "--set", "environment.env=null"), ["environment.env", "environment: {env: CartPole-v1}"]),
    "seed that no generator takes": (Refused, lambda folder: command(folder, "train", "--seed", str(2**40)), [
        "debugging.seed", "4294967296"]),
    "import that the command was not allowed": (Refused, lambda folder: command(
        folder, "train", "--set", "learner=[os.path]"), ["learner[0].piece", "'os.path'", "--allow-imports"]),
    "run to play that is none": (Refused, lambda folder: command(folder, "play", "nowhere"), [
        "nowhere", "a complete checkpoint", "no such folder"]),
    "unknown piece, command": (Refused, lambda folder: command(folder, "pieces", "frame_stackin"), [
        "'frame_stackin'", "did you mean 'frame_stacking'"]),
}
# fmt: on


def test_the_table_covers_the_library():
    assert len(MISTAKES) >= 140
    kinds = {PieceError, EpisodeStateError, RunnerArgumentError, LookbackError, UnknownNameError, NotAvailableError}
    assert {error for error, _, _ in MISTAKES.values()} >= kinds


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)


@pytest.mark.parametrize(
    "error",
    [ValueError("bad value"), KeyError("speed"), ZeroDivisionError(), OSError(2, "No such file"), StopIteration("end")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_in_a_users_piece_says_where_it_happened(error):
    class Gripper(Piece):
        pass

    def work(batch: Any, episodes: Any) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        learn(pipeline(ADD_OBS(**TRAINING), Gripper(work)), ep())
    shown = "".join(map(str, [caught.value, *getattr(caught.value, "__notes__", [])]))
    assert "LearnerConnectorPipeline, piece 1 (Gripper)" in shown
    assert all(str(word) in shown for word in error.args)
    assert "\\n" not in shown, "a line break is shown as such"
