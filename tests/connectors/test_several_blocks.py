"""Train batches of episodes from several deliveries of runners are those of plain lists of episodes."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    FrameStacking,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
)
from epibatch.episodes import InfiniteLookbackBuffer, VectorRecorder


class Recurrent:
    """A module with a state, and sequences of four steps."""

    model_config = {"max_seq_len": 4}  # noqa: RUF012

    def is_stateful(self):
        return True

    def get_initial_state(self):
        return {"h": np.zeros(2, np.float32)}


class ReplacesRewards(ConnectorV2):
    """A plain piece that gives one episode rewards of its own."""

    mutates_episodes = True

    def __call__(self, *, batch, episodes, **kwargs):
        rows = np.arange(len(episodes[1]) + episodes[1].lookback, dtype=np.float64)
        episodes[1].rewards = InfiniteLookbackBuffer(rows, lookback=episodes[1].lookback)
        return batch


def delivered(seed):
    rng = np.random.default_rng(seed)
    recorder = VectorRecorder(3, autoreset="same_step", capacity=2)
    recorder.reset(rng.standard_normal((3, 2)))
    out, no = [], np.zeros(3, bool)
    for _ in range(2):
        for _ in range(8):
            recorder.step(
                rng.integers(0, 4, 3), rng.standard_normal(3), rng.random(3) < 0.2, no, rng.standard_normal((3, 2)),
                extras={"state_out": {"h": rng.standard_normal((3, 2)).astype(np.float32)}, "vf_preds": rng.random(3)},
                final_observations=rng.standard_normal((3, 2)),
            )  # fmt: skip
        out.append(recorder.harvest(3))
    return out


def pieces(bootstrap, stacked, replaced):
    return [
        *([ReplacesRewards()] if replaced else []),
        *([AddOneTsToEpisodesAndTruncate()] if bootstrap else []),
        *([FrameStacking(num_frames=3, axis=-1, as_learner_connector=True)] if stacked else []),
        *([] if stacked else [AddObservationsFromEpisodesToBatch(as_learner_connector=True)]),
        AddColumnsFromEpisodesToTrainBatch(),
        *([] if stacked else [AddNextObservationsFromEpisodesToTrainBatch()]),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        BatchIndividualItems(),
    ]


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        for key in found:
            assert_same(found[key], expected[key])
    else:
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("order", ["one after another", "in turns"])
def test_batches_are_those_of_plain_lists(bootstrap, stacked, replaced, order):
    episodes = [episode for seed in (0, 1) for delivery in delivered(seed) for episode in delivery]
    if order == "in turns":
        episodes = [episodes[i] for i in np.random.default_rng(0).permutation(len(episodes))]
    twins = pickle.loads(pickle.dumps(episodes))
    box = gym.spaces.Box(-9, 9, (2,), np.float64)
    batches = []
    for given in (episodes, twins):
        pipeline = LearnerConnectorPipeline(box, None, connectors=pieces(bootstrap, stacked, replaced))
        batches.append(pipeline(rl_module=Recurrent(), batch={}, episodes=given))
    assert_same(*batches)
