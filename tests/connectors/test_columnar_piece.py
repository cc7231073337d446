"""Columnar pieces behind BatchIndividualItems, where a MultiRLModule's batch has columns by module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import (
    CastColumns,
    CheckFinite,
    ConcatenateColumns,
    DropColumns,
    HashColumns,
    RenameColumns,
    SelectColumns,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    LearnerConnectorPipeline,
    NumpyToTensor,
)
from epibatch.connectors.observations import Clip
from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct


class Shift(ColumnTransform):
    """Adds 100."""

    columns: Any = "obs"
    takes_tensors = True

    def transform(self, x):
        return x + 100


def batch_of(lab, behind, *, multi, tensors=False, state=0):
    makers = [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        AddStatesFromEpisodesToBatch(as_learner_connector=True),
        BatchIndividualItems(),
    ]
    pipeline = LearnerConnectorPipeline(connectors=[*makers, *([NumpyToTensor()] if tensors else []), *behind])
    episodes = [lab.episode("a", 3, state=state), lab.episode("b", 2, offset=20, state=state)]
    out = pipeline(rl_module=lab.module(state, multi=multi), episodes=episodes)
    if multi:
        assert list(out) == ["default_policy"]
        out = out["default_policy"]
    return map_struct(np.asarray, out)


def test_a_transform_changes_the_modules_columns(lab):
    batch = batch_of(lab, [Shift()], multi=True)
    assert batch["obs"].tolist() == [[100, 110], [101, 111], [102, 112], [120, 130], [121, 131]]


def test_a_transform_changes_the_modules_sequences(lab):
    batch = batch_of(lab, [Shift(columns="rewards")], multi=True, tensors=True, state=2)
    assert batch["rewards"][:, :3].tolist() == [[100.5, 101.5, 102.5], [120.5, 121.5, 0.0]]


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("state", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Shift(columns=("rewards", "obs")),
        lambda: Clip(low=1, high=12),
        lambda: CastColumns(columns="rewards", dtype="float64"),
        lambda: CheckFinite(columns="obs"),
        lambda: CheckFinite(),
        lambda: RenameColumns(names={"rewards": "r", "obs": "rewards"}),
        lambda: DropColumns(columns="action_logp"),
        lambda: SelectColumns(columns=["obs"]),
        lambda: ConcatenateColumns(columns=["obs", "action_logp"], to="both"),
    ],
)
def test_a_module_of_modules_has_what_one_module_has(lab, make, tensors, state):
    one, other = (batch_of(lab, [make()], multi=multi, tensors=tensors, state=state) for multi in (False, True))
    assert one.keys() == other.keys()
    map_struct(np.testing.assert_array_equal, one, other)


def test_hashes_are_made_of_the_modules_columns(lab):
    one, other = (batch_of(lab, [HashColumns(columns="obs")], multi=multi) for multi in (False, True))
    assert one["hash"].tolist() == other["hash"].tolist()


def test_called_by_itself_a_piece_finds_the_modules_columns_too(lab):
    batch = {"default_policy": {"obs": np.zeros((2, 2), np.float32)}}
    out = Shift()(rl_module=lab.module(multi=True), batch=batch, episodes=[lab.episode("a", 2)])
    assert out["default_policy"]["obs"].tolist() == [[100, 100], [100, 100]] and list(out) == ["default_policy"]


def test_an_error_names_the_module(lab):
    class Breaks(Shift):
        def transform(self, x):
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"(?s)piece 5 \(Breaks\):.*for module 'default_policy':.*column 'obs':.*no"):
        batch_of(lab, [Breaks()], multi=True)


@pytest.mark.parametrize("multi", [False, True])
def test_behind_batching_a_column_that_is_not_there_is_not_pulled_from_the_episodes(lab, multi):
    makers = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    pipeline = LearnerConnectorPipeline(connectors=[*makers, Shift()])
    with pytest.raises(ColumnError, match="put Shift before BatchIndividualItems"):
        pipeline(rl_module=lab.module(multi=multi), episodes=[lab.episode("a", 2)])
