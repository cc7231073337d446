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
from fixture_pieces import Lab


class Shift(ColumnTransform):
    """Adds 100."""

    columns: Any = "obs"
    takes_tensors = True

    def transform(self, x):
        return x + 100


def arrays(struct):
    return {key: arrays(own) for key, own in struct.items()} if isinstance(struct, dict) else np.asarray(struct)


def batch_of(behind, *, multi, tensors=False, state=0):
    makers = [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        AddStatesFromEpisodesToBatch(as_learner_connector=True),
        BatchIndividualItems(),
    ]
    pipeline = LearnerConnectorPipeline(connectors=[*makers, *([NumpyToTensor()] if tensors else []), *behind])
    episodes = [Lab.episode("a", 3, state=state), Lab.episode("b", 2, offset=20, state=state)]
    out = pipeline(rl_module=Lab.module(state, multi=multi), episodes=episodes)
    if multi:
        assert list(out) == ["default_policy"]
        out = out["default_policy"]
    return arrays(out)


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
def test_a_module_of_modules_has_what_one_module_has(make, tensors, state):
    one, other = (batch_of([make()], multi=multi, tensors=tensors, state=state) for multi in (False, True))
    assert one.keys() == other.keys()
    np.testing.assert_equal(one, other)


def test_called_by_itself_a_piece_finds_the_modules_columns_too():
    batch = {"default_policy": {"obs": np.zeros((2, 2), np.float32)}}
    out = Shift()(rl_module=Lab.module(multi=True), batch=batch, episodes=[Lab.episode("a", 2)])
    assert out["default_policy"]["obs"].tolist() == [[100, 100], [100, 100]] and list(out) == ["default_policy"]


def test_an_error_names_the_module():
    class Breaks(Shift):
        def transform(self, x):
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"(?s)piece 5 \(Breaks\):.*for module 'default_policy':.*column 'obs':.*no"):
        batch_of([Breaks()], multi=True)


@pytest.mark.parametrize("multi", [False, True])
def test_behind_batching_a_column_that_is_not_there_is_not_pulled_from_the_episodes(multi):
    makers = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    pipeline = LearnerConnectorPipeline(connectors=[*makers, Shift()])
    with pytest.raises(ColumnError, match="put Shift before BatchIndividualItems"):
        pipeline(rl_module=Lab.module(multi=multi), episodes=[Lab.episode("a", 2)])
