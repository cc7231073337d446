"""Windows lie in the episodes until they are batched."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from epibatch.connectors import ColumnarPiece
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
)
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.rl_module import RLModule
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import played

ROW_MAP, WIDTH = 32_768, 64
LENGTHS = [300] * (ROW_MAP // 300) + [ROW_MAP % 300]


class Memory(RLModule):
    """A recurrent module."""

    def get_initial_state(self) -> Any:
        return {"h": np.zeros(2, np.float32)}


@pytest.fixture(scope="module")
def episodes() -> list[SingleAgentEpisode]:
    rng = np.random.default_rng(0)
    return [
        SingleAgentEpisode(
            id_=f"{i}",
            observations=rng.random((length + 1, WIDTH)).astype(np.float32),
            actions=np.zeros(length, np.int64),
            rewards=np.zeros(length),
            len_lookback_buffer=0,
        )
        for i, length in enumerate(LENGTHS)
    ]


def window_of(episode: SingleAgentEpisode, t: int) -> Any:
    return episode.get_observations(slice(t - 50, t), neg_index_as_lookback=True, fill=0.0)


class Measures(ColumnarPiece):
    """Ends the measuring of memory, and keeps the columns."""

    def run(self, columns: Any, group: Any) -> Any:
        self.held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.columns = dict(columns)
        return {}


@pytest.mark.parametrize("recurrent", [False, True])
def test_nothing_is_copied_before_the_batch_is_made(episodes: list[SingleAgentEpisode], recurrent: bool) -> None:
    """All pieces in front of the one that batches, or that pads: 420 MB from then on, kilobytes until then."""
    measures = Measures()
    pieces = [
        TrajectoryViews(views={"window": View("obs", "-50:-1"), "next": View("obs", 1)}, as_learner_connector=True),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        measures,
    ]
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    module = Memory(model_config={"max_seq_len": 20}) if recurrent else None
    tracemalloc.start()
    pipeline(rl_module=module, episodes=episodes)
    assert measures.held < ROW_MAP * WIDTH  # not even a quarter of the observations, and the flags are among it


def test_batches_have_the_windows_of_the_loop(episodes: list[SingleAgentEpisode]) -> None:
    pieces = [
        TrajectoryViews(views={"window": View("obs", "-50:-1")}, as_learner_connector=True),
        BatchIndividualItems(),
    ]
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    with pipeline.profile() as profile:
        found = pipeline(episodes=episodes[:2])["window"]
    assert [(cost.rows, cost.bytes) for cost in profile.rows()] == [(600, 600 * 50 * WIDTH * 4)] * 2
    expected = [window_of(episode, t) for episode in episodes[:2] for t in range(300)]
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("shift", [-1, [-3, -1], "-4:1", [0, -2]])
@pytest.mark.parametrize("fill", [None, 7])
def test_padded_for_recurrent_modules(shift: Any, fill: Any) -> None:
    """[B, T, ...] with zeros behind a chunk's end, whatever stands in front of the episode's start."""
    chunks = [played(np.arange(1.0, length + 2)) for length in (5, 1, 3)]
    view = View("obs", shift, fill=fill)
    pieces = [
        TrajectoryViews(views={"x": view}, as_learner_connector=True),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        BatchIndividualItems(),
    ]
    found = LearnerConnectorPipeline(connectors=pieces)(
        rl_module=Memory(model_config={"max_seq_len": 4}), episodes=chunks
    )
    expected = []
    for chunk in chunks:
        for first in range(0, len(chunk), 4):
            for t in range(first, first + 4):
                own = [_at(chunk, t + one, fill or 0) if t < len(chunk) else 0 for one in view.shifts]
                expected.append(own[0] if view.is_single else own)
    shape = (4, 4) if view.is_single else (4, 4, len(view.shifts))
    np.testing.assert_array_equal(found["x"], np.reshape(expected, shape))


def _at(chunk: SingleAgentEpisode, t: int, fill: float) -> float:
    return float(chunk.get_observations(t)) if 0 <= t <= len(chunk) else fill
