"""The table of tests/test_named_errors.py, for mistakes with running statistics, histories and their states."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.env_to_module import (
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from epibatch.connectors.learner import PrevActionsPrevRewardsLearner
from epibatch.core.errors import (
    ConfigError,
    LookbackError,
    SpaceError,
    StateError,
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
    "merging states of two spaces": (StateError, lambda: FILTER.merge_states([state(2), state(3)]), [
        "MeanStdFilter.merge_states, state 1", "[2]", "[3]"]),
    # filters
    "limit of nothing": (ConfigError, lambda: MeanStdFilter(clip_by_value=0.0), ["MeanStdFilter.clip_by_value", "0.0"]),
    "observation of another shape": (SpaceError, lambda: sees(MeanStdFilter(OBS), np.zeros(3)), [
        "observation", "shape (2,)", "shape (3,)"]),
    # histories
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
