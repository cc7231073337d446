"""Every mistake a user can make gets a named error: where, what was expected, what was found, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPO, PPOConfig
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
    RunnerArgumentError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, default_module_spec
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode

OBS, FRAMES, ACT = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (2, 1)), gym.spaces.Discrete(2)
ROW = np.zeros(2, np.float32)
TYPE_ERRORS = {PieceError: TypeError, EpisodeStateError: AssertionError, RunnerArgumentError: AssertionError}
BUILT_INS = {
    **TYPE_ERRORS,
    LookbackError: IndexError,
    UnknownNameError: KeyError,
    NotAvailableError: NotImplementedError,
}


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
        "model_config of Own", "max_seq_len", "recurrent"]),
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
    "multi-agent": (NotAvailableError, lambda: PPOConfig().multi_agent(policies={"a"}), ["multi_agent", "one agent"]),
    "no environment": (ConfigError, lambda: PPOConfig().build_algo(), ["an environment", 'environment("CartPole-v1")']),
    "unknown environment": (UnknownNameError, lambda: PPOConfig().environment("CartPol-v1").build_algo(), [
        "'CartPol-v1'", "did you mean 'CartPole-v1'"]),
    "environment object instead of its class": (
        ConfigError, lambda: PPOConfig().environment(gym.make("CartPole-v1")), [
            "environment.env", "class", "TimeLimit"]),
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
        "observation space['said']", "Text", "TransformObservation(env, encode, Box(...))"]),
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
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, tmp_path):
    with pytest.raises(error) as caught:
        mistake(*[tmp_path][: mistake.__code__.co_argcount])
    message = str(caught.value)
    assert isinstance(caught.value, BUILT_INS.get(error, ValueError))
    assert [word for word in words if word not in message] == [], message
    assert [part for part in ("expected: ", "found:", "do:  ") if part not in message] == [], message
    assert "mend it" not in message and len(message) < 2000, message


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
