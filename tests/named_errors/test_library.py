"""Every mistake a user can make gets a named error: where, what was expected, what was found, what to do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    FrameStacking,
)
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import GetActions, ModuleToEnvPipeline, TensorToNumpy, UnBatchToIndividualItems
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ColumnError,
    ConfigError,
    EpisodeError,
    EpisodeStateError,
    PieceError,
    PieceOutputError,
    PipelineError,
    RunnerArgumentError,
    SpaceError,
    StateError,
)
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import Lab, UserPiece

OBS, ACT = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)


def ep(id_: str = "ep", *, shape: Any = (2,), outputs: Any = None, **given: Any) -> Any:
    """A chunk of four steps, all of whose values are zeros."""
    columns = {"observations": [np.zeros(shape, np.float32)] * 5, "actions": [0] * 4, "rewards": [0.0] * 4}
    return SingleAgentEpisode(id_, **columns, extra_model_outputs=outputs or {}, len_lookback_buffer=0, **given)


def reset(space: Any, observation: Any) -> Any:
    episode = SingleAgentEpisode("ep", observation_space=space)
    episode.add_env_reset(observation)
    return episode


class Forgets(UserPiece):
    def __call__(self, **call: Any) -> None:
        return None


def gives(result: Any) -> UserPiece:
    return UserPiece(lambda batch, episodes: result)


ADD_OBS, ADD_COLUMNS = AddObservationsFromEpisodesToBatch, AddColumnsFromEpisodesToTrainBatch
ADD_TIME = AddTimeDimToBatchAndZeroPad
TRAINING = {"as_learner_connector": True}


def pipeline(*pieces: Any) -> Any:
    return LearnerConnectorPipeline(OBS, ACT, connectors=pieces)


def defaults(*pieces: Any) -> Any:
    """A learner pipeline of these pieces and the default ones for a batch of arrays."""
    return pipeline(*pieces, ADD_OBS(**TRAINING), ADD_COLUMNS(), BatchIndividualItems())


def learn(own: Any, *episodes: Any, rl_module: Any = None) -> Any:
    return (defaults(own) if isinstance(own, UserPiece) else own)(rl_module=rl_module, episodes=list(episodes))


def filter_state(size: int) -> Any:
    return MeanStdFilter(gym.spaces.Box(-1, 1, (size,))).get_state()


def acts(outputs: Any, state: int = 0) -> Any:
    """Bring what a module puts out for two episodes to the environments."""
    lab = Lab(plain=False)
    episodes = [lab.episode(id_, 0, numpy=False, state=state) for id_ in "ab"]
    return lab.env_step(episodes, outputs, lab.defaults("module_to_env"), rl_module=lab.module(state=state))


def cart_pole(width: int = 4) -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [width]})


def whole(work: Any) -> Any:
    """Do something with a built algorithm."""
    algorithm = cart_pole().build_algo()
    try:
        return work(algorithm)
    finally:
        algorithm.stop()


# What is done wrong: (error, how it is done, what the message names).

# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # episodes
    "observation with other keys than its space": (
        SpaceError, lambda: reset(gym.spaces.Dict(arm=OBS), {"leg": 0}), ["episode ep", "t=0", "'arm'", "'leg'"]),
    "late extra key": (EpisodeError, lambda: ep().add_env_step(
        np.zeros(2, np.float32), 0, 0.0, extra_model_outputs={"vf": 0.5}), ["episode ep", "t=4", "late key 'vf'"]),
    "chunks that do not follow one another": (
        EpisodeStateError, lambda: ep().concat_episode(ep(t_started=9)), ["episode ep", "starts at t=4", "t=9"]),
    # pieces and pipelines
    "function in a pipeline": (PieceError, lambda: pipeline(ADD_OBS(**TRAINING), lambda x: x), [
        "LearnerConnectorPipeline, position 1", "function", "ConnectorV2"]),
    "class instead of a piece": (PieceError, lambda: pipeline(FrameStacking), [
        "position 0", "the class FrameStacking", "FrameStacking(...)"]),
    "piece that returns nothing": (PieceOutputError, lambda: learn(Forgets(), ep()), [
        "LearnerConnectorPipeline, piece 0 (Forgets)", "NoneType", "return batch"]),
    "column read before it is written": (
        PipelineError, lambda: EnvToModulePipeline(connectors=[ADD_TIME(), ADD_OBS()]), [
        "EnvToModulePipeline, piece 0 (AddTimeDim", "'obs'", "piece 1 (AddObservationsFromEpisodesToBatch)"]),
    "actions behind unbatching": (PipelineError, lambda: ModuleToEnvPipeline(
        connectors=[TensorToNumpy(), UnBatchToIndividualItems(), GetActions()]), [
        "ModuleToEnvPipeline, piece 2 (GetActions)", "tensors", "piece 1 (UnBatchToIndividualItems)"]),
    "unbatching tensors": (PipelineError, lambda: ModuleToEnvPipeline(connectors=[UnBatchToIndividualItems()]), [
        "piece 0 (UnBatchToIndividualItems)", "after the piece that makes batched arrays"]),
    "items of an episode that is not there": (BatchLayoutError, lambda: learn(gives({"own": {("x",): [1]}}), ep()), [
        "piece 0 (UserPiece)", "column 'own'", "('x',)", "single_agent_episode=episode"]),
    "items of two shapes": (ColumnError, lambda: learn(gives({"own": {("ep",): [np.zeros(2), np.zeros(3)]}}), ep()), [
        "piece 0 (UserPiece)", "column 'own'", "'ep'", "(2,)", "(3,)"]),
    # history
    "mixed model outputs in one batch": (ColumnError, lambda: learn(
        defaults(), ep(), ep("other", outputs={"vf": [0] * 4})), ["model outputs", "'ep'", "'other'", "vf"]),
    "stacking without an axis for it": (SpaceError, lambda: pipeline(FrameStacking(num_frames=2)), [
        "FrameStacking", "(84, 84, 1)", "(2,)"]),
    # modules
    "module without actions": (ColumnError, lambda: acts({"logits": torch.zeros(2)}), [
        "ModuleToEnvPipeline, piece 0 (GetActions)", "'action_dist_inputs' or 'actions'", "['logits']", "_forward"]),
    "recurrent module that drops the time axis": (ColumnError, lambda: acts(
        {"actions": torch.tensor([1, 0]), "state_out": {"h": torch.zeros(2, 1)}}, state=1), [
        "piece 3 (RemoveSingleTsTimeRankFromBatch)", "column 'actions'", "[rows, 1, ...]", "time axis"]),
    # states and switches of whole parts
    "state of an algorithm that is none": (CheckpointError, lambda: whole(lambda algo: algo.set_state(3)), [
        "PPO.set_state", "a dict of states", "int 3"]),
    "state of a runner that is none": (CheckpointError, lambda: whole(lambda algo: algo.env_runner.set_state("x")), [
        "SingleAgentEnvRunner.set_state", "str 'x'"]),
    "state of a module that is none": (CheckpointError, lambda: whole(lambda algo: algo.get_module().set_state(3)), [
        "DefaultActorCritic.set_state", "int 3"]),
    "batch without observations": (ColumnError, lambda: whole(lambda algo: algo.get_module().forward_inference({})), [
        "the module's forward pass", "a column 'obs'", "columns []"]),
    "text for a switch, sampling": (RunnerArgumentError, lambda: whole(
        lambda algo: algo.env_runner.sample(num_timesteps=2, explore="no")), ["explore", "str 'no'"]),
    "switch for an amount": (RunnerArgumentError, lambda: whole(
        lambda algo: algo.env_runner.sample(num_timesteps=True)), ["sample(...)", "num_timesteps=True"]),
    "state without a part": (CheckpointError, lambda: whole(lambda algo: algo.set_state(
        {name: part for name, part in algo.get_state().items() if name != "random"})), ["PPO.set_state", "random"]),
    "state with iterations below 0": (CheckpointError, lambda: whole(lambda algo: algo.set_state({
        **algo.get_state(), "counters": {**algo.get_state()["counters"], "training_iteration": -1}})), [
        "'training_iteration'", "-1"]),
    "state of a filter of another space": (StateError, lambda: MeanStdFilter(OBS).set_state(filter_state(3)), [
        "MeanStdFilter.set_state", "{'observation': [2]}", "{'observation': [3]}"]),
    "merging states of two spaces": (StateError, lambda: MeanStdFilter(OBS).merge_states(
        [filter_state(2), filter_state(3)]), ["MeanStdFilter.merge_states, state 1", "[2]", "[3]"]),
    "filter that is shown another shape": (SpaceError, lambda: MeanStdFilter(OBS)(
        batch={}, episodes=[ep(shape=(3,))]), ["observation", "shape (2,)", "shape (3,)"]),
    "overrides without module ids": (ConfigError, lambda: PPOConfig().multi_agent(
        algorithm_config_overrides_per_module={"lr": 0.1}), ["overrides_per_module", "0.1"]),
    "one logger twice": (ConfigError, lambda: PPOConfig().reporting(loggers=["csv", "csv"]), [
        "reporting.loggers", "each logger once"]),
    "environment to evaluate in that is imported": (ConfigError, lambda: PPOConfig.from_yaml(
        "evaluation: {evaluation_config: {env: 'somewhere:Env-v0'}}"), [
        "evaluation.evaluation_config.env", "'somewhere:Env-v0'", "runs code", "--allow-imports"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)


@pytest.mark.parametrize(
    "error",
    [ValueError("bad value"), KeyError("speed"), ZeroDivisionError(), OSError(2, "No such file"), StopIteration("end")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_in_a_users_piece_says_where_it_happened(error):
    class Gripper(UserPiece):
        pass

    def work(batch: Any, episodes: Any) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        learn(pipeline(ADD_OBS(**TRAINING), Gripper(work)), ep())
    shown = "".join(map(str, [caught.value, *getattr(caught.value, "__notes__", [])]))
    assert "LearnerConnectorPipeline, piece 1 (Gripper)" in shown
    assert all(str(word) in shown for word in error.args)
    assert "\\n" not in shown, "a line break is shown as such"
