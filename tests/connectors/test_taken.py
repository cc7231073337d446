"""The batch's column, or the episodes'."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors._engine.call import PipelineCall
from epibatch.connectors._engine.columns import EpisodeColumn
from epibatch.connectors._engine.gather import taken
from epibatch.core.errors import ColumnError
from epibatch.episodes import SingleAgentEpisode


def episode():
    return SingleAgentEpisode(
        observations=[0, 1, 2],
        actions=[5, 6],
        rewards=[0.5, 1.5],
        extra_model_outputs={"v": [7, 8]},
        len_lookback_buffer=0,
    )


def call(training, plus_one=False):
    return PipelineCall(rl_module=None, episodes=[episode(), episode()], training=training, plus_one=plus_one).groups[
        None
    ]


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        ("obs", [0, 1, 0, 1]),
        ("actions", [5, 6, 5, 6]),
        ("rewards", [0.5, 1.5, 0.5, 1.5]),
        ("v", [7, 8, 7, 8]),
        ("new_obs", [1, 2, 1, 2]),
    ],
)
@pytest.mark.parametrize("training", [True, None])
def test_all_steps_for_training(column, rows, training):
    assert taken({}, call(training), column, "P").data.tolist() == rows


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        ("obs", [0, 1, 2]),
        ("actions", [5, 6, 6]),
        ("rewards", [0.5, 1.5, 0.0]),
        ("v", [7, 8, 8]),
        ("new_obs", [1, 2, 2]),
    ],
)
def test_behind_the_piece_that_adds_bootstrap_rows_each_column_has_them(column, rows):
    found = taken({}, call(True, plus_one=True), column, "P")
    assert found.data.tolist() == 2 * rows
    assert found.counts.tolist() == [3, 3]


def test_the_newest_observations_for_acting():
    assert taken({}, call(False), "obs", "P").data.tolist() == [2, 2]


def test_what_the_batch_has_comes_first():
    mine = EpisodeColumn(np.arange(4))
    assert taken({"rewards": mine}, call(True), "rewards", "P") is mine
    assert taken({"actions": mine}, call(False), "actions_for_env", "P") is mine


@pytest.mark.parametrize(
    ("training", "column", "match"),
    [
        (True, "reward", "did you mean 'rewards'"),
        (False, "rewards", "learner pipeline"),
        (True, "observations", "did you mean 'obs'"),
        (False, "observation", "did you mean 'obs'"),
        (True, "next_obs", "did you mean 'new_obs'"),
        (False, "reward", "name it 'rewards', and put the piece into the learner"),
        (False, "v", "Known: obs"),
    ],
)
def test_what_is_nowhere_is_named(training, column, match):
    with pytest.raises(ColumnError, match=match):
        taken({}, call(training), column, "P")
