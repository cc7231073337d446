"""The table of tests/test_named_errors.py, for mistakes with running statistics, histories and their states."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    EnvToModulePipeline,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from epibatch.connectors.learner import LearnerConnectorPipeline, PrevActionsPrevRewardsLearner
from epibatch.core.errors import (
    ColumnError,
    ConfigError,
    LookbackError,
    PipelineError,
    SpaceError,
    StateError,
    UnknownNameError,
)
from epibatch.episodes import SingleAgentEpisode

OBS, ACT = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
FILTER = MeanStdFilter(OBS)


def sees(piece: Any, *rows: Any, **given: Any) -> Any:
    """A piece that is shown the last of some observations."""
    steps = {"actions": [0] * (len(rows) - 1), "rewards": [0.0] * (len(rows) - 1), **given}
    episode = SingleAgentEpisode("ep", observations=[np.asarray(row, np.float32) for row in rows], **steps)
    return piece(batch={}, episodes=[episode])


def state(size: int = 2, synchronised: int = 0) -> Any:
    """The state of a filter that saw a few observations."""
    piece = MeanStdFilter(gym.spaces.Box(-1, 1, (size,)))
    for row in range(synchronised + 1):
        sees(piece, np.full(size, row))
        if row < synchronised:
            piece.set_state(piece.merge_states([piece.get_state()]))
    return piece.get_state()


def pipeline(*pieces: Any) -> Any:
    return EnvToModulePipeline(OBS, ACT, connectors=pieces)


def history(**counts: Any) -> Any:
    return PrevActionsPrevRewards(OBS, ACT, **counts)


ROW = np.zeros(2)
AT_T9 = {"t_started": 9, "len_lookback_buffer": 0}

# name of the mistake: the error, the mistake, what the message must say
# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # states
    "state of another space": (StateError, lambda: FILTER.set_state(state(3)), [
        "MeanStdFilter.set_state", "{'observation': [2]}", "{'observation': [3]}"]),
    "state that is none": (StateError, lambda: FILTER.set_state({"mean": 0.0}), ["'synchronised'", "'since'", "mean"]),
    "state with a part missing": (StateError, lambda: FILTER.set_state({**state(), "since": {"count": 1}}), [
        "'count'", "'mean'", "to_state()"]),
    "state whose numbers do not fit its leaves": (
        StateError, lambda: FILTER.set_state({**state(), "leaves": {"observation": [5]}}), [
            "2 entries", "leaves of 5"]),
    "merging states of two spaces": (StateError, lambda: FILTER.merge_states([state(2), state(3)]), [
        "MeanStdFilter.merge_states, state 1", "[2]", "[3]"]),
    "merging copies that went apart": (
        StateError, lambda: FILTER.merge_states([state(synchronised=1), state(synchronised=2)]), [
            "MeanStdFilter.merge_states, state 1", "at 1 rows", "at 2 rows", "set_state"]),
    "state of a piece that is not there": (
        UnknownNameError, lambda: pipeline(MeanStdFilter()).set_state({"mean_std_filtr": state()}), [
            "EnvToModulePipeline.set_state", "'mean_std_filtr'", "did you mean 'mean_std_filter'"]),
    # filters
    "limit of nothing": (ConfigError, lambda: MeanStdFilter(clip_by_value=0.0), ["MeanStdFilter.clip_by_value", "0.0"]),
    "switch that is a word": (ConfigError, lambda: MeanStdFilter(update_stats="no"), ["update_stats", "'no'"]),
    "state of one agent's filter for several": (
        StateError, lambda: MeanStdFilter(OBS, multi_agent=True).set_state(state()), [
            "MeanStdFilter.set_state", "those of each agent"]),
    "filter without a space": (SpaceError, lambda: sees(MeanStdFilter(), ROW), ["MeanStdFilter", "pass it to the"]),
    "observation of another shape": (SpaceError, lambda: sees(MeanStdFilter(OBS), np.zeros(3)), [
        "observation", "shape (2,)", "shape (3,)"]),
    "observation that is no number": (ColumnError, lambda: sees(MeanStdFilter(OBS), [0.0, np.nan]), [
        "MeanStdFilter, observation of episode 'ep'", "nan", "spoil the statistics"]),
    "filter behind the observations": (
        PipelineError, lambda: pipeline(AddObservationsFromEpisodesToBatch(), MeanStdFilter()), [
            "piece 1 (MeanStdFilter)", "before", "piece 0 (AddObservationsFromEpisodesToBatch)"]),
    "filter in a learner pipeline": (PipelineError, lambda: LearnerConnectorPipeline(connectors=[MeanStdFilter()]), [
        "LearnerConnectorPipeline, piece 0 (MeanStdFilter)", "env-to-module pipeline"]),
    # histories
    "negative number of actions": (ConfigError, lambda: history(n_prev_actions=-1), [
        "PrevActionsPrevRewards.n_prev_actions", "at least 0", "-1"]),
    "negative number of rewards in training": (
        ConfigError, lambda: PrevActionsPrevRewardsLearner(n_prev_rewards=-1), ["Learner.n_prev_rewards", "-1"]),
    "word for several agents": (ConfigError, lambda: history(multi_agent="yes"), ["multi_agent", "'yes'"]),
    "history without an action space": (SpaceError, lambda: sees(PrevActionsPrevRewards(OBS), ROW), [
        "PrevActionsPrevRewards", "no action space", "pass the action space"]),
    "history of actions that are text": (
        SpaceError, lambda: sees(PrevActionsPrevRewards(OBS, gym.spaces.Text(3)), ROW), ["PrevActionsPrev", "Text"]),
    "history that the chunk does not carry": (LookbackError, lambda: sees(history(), ROW, **AT_T9), [
        "PrevActionsPrevRewards, episode 'ep'", "t=9", "would hide actions that exist", "len_lookback_buffer=1"]),
    "history written twice": (
        SpaceError, lambda: PrevActionsPrevRewardsLearner(history().observation_space, ACT).observation_space, [
            "PrevActionsPrevRewardsLearner", "_orig_obs", "leave this piece out"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
