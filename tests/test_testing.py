"""`check_connector` passes good pieces and finds each way in which a piece breaks the contract."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import ColumnarPiece, ConnectorV2
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
)
from epibatch.connectors.module_to_env import NormalizeAndClipActions
from epibatch.core.columns import Columns
from epibatch.core.errors import PieceCheckError, PieceError
from epibatch.episodes.vector_episodes import VectorEpisodes
from epibatch.testing import check_connector

ONE_CHANNEL = gym.spaces.Box(-1, 1, (4, 1))
TORQUE = gym.spaces.Box(-2, 2, (2,))


class Good(ConnectorV2):
    """Counts steps, and adds the count to every row of the batch."""

    pipelines = ("learner",)
    reads = ()
    writes = ("count",)

    def __init__(self, input_observation_space=None, input_action_space=None, *, by=1, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.by = by
        self.reset_state()

    def reset_state(self):
        self.count = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_n_batch_items(batch, "count", self.count + np.arange(len(episode)), len(episode), episode)
            self.count += self.by * len(episode)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


class Scales(ConnectorV2):
    """Writes the newest observation back, scaled."""

    pipelines = ("env_to_module",)
    low, high, dtype, shape = -2.0, 2.0, np.float32, None

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(self.low, self.high, self.shape or input_observation_space.shape, self.dtype)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=2 * episode.get_observations(-1), at_indices=-1)
        return batch


ONE_PIECE = Good()
GOOD = [
    (Good, {}),
    (lambda: Good(by=3), {}),
    (Scales, {}),
    (Scales, {"model_config": {"use_lstm": True, "lstm_cell_size": 4}}),
    (lambda: FrameStacking(num_frames=3), {"pipeline": "env_to_module", "observation_space": ONE_CHANNEL}),
    (
        lambda: FrameStacking(num_frames=3, as_learner_connector=True),
        {"pipeline": "learner", "observation_space": ONE_CHANNEL},
    ),
    (MeanStdFilter, {}),
    (AddOneTsToEpisodesAndTruncate, {}),
    (AddColumnsFromEpisodesToTrainBatch, {}),
    (lambda: AddObservationsFromEpisodesToBatch(as_learner_connector=True), {"pipeline": "learner"}),
    (lambda: NormalizeAndClipActions(normalize_actions=True), {"action_space": TORQUE}),
]


@pytest.mark.parametrize(("make", "how"), GOOD)
def test_pieces_that_keep_the_contract(make, how):
    check_connector(make, **how)


# ----------------------------------------------------------------------------------------- pieces that do not


class ReturnsNothing(Good):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        pass


class WritesInSilence(ConnectorV2):
    pipelines = ("learner",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in episodes:
            episode.set_rewards(new_data=episode.get_rewards() - 1)
        return batch


class HidesItsState(Good):
    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {}


class ForgetsPartOfItsState(Good):
    def set_state(self, state):
        pass


class KeepsItsState(Good):
    def reset_state(self):
        self.count = getattr(self, "count", 0)


class HasAStateThatIsNoData(Good):
    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count, "object": object()}


class DeclaresAString(Good):
    writes = "count"


class TakesNoFurtherKeywords(Good):
    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None):
        return batch


class TakesAFunction(Good):
    def __init__(self, input_observation_space=None, input_action_space=None, *, function=None, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)


class ForgetsItsArguments(Good):
    asked = 0

    def get_ctor_args_and_kwargs(self):
        ForgetsItsArguments.asked += 1
        return (), {"by": self.asked}


class OutOfBounds(Scales):
    low, high = -1.0, 1.0


class OtherShape(Scales):
    shape = (5,)


class OtherType(Scales):
    dtype = np.int32


class OnlyPlain(ColumnarPiece):
    """Looks at how the episodes are handed over."""

    pipelines = ("learner",)

    def run(self, batch, call):
        batch["block"] = np.full(int(call.counts.sum()), isinstance(call.episodes, VectorEpisodes))
        return batch


class TooStrong(ConnectorV2):
    pipelines = ("module_to_env",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        batch[Columns.ACTIONS_FOR_ENV] = {
            key: [row * 0 + 9.0 for row in rows] for key, rows in batch["actions"].items()
        }
        return batch


@pytest.mark.parametrize(
    ("make", "how", "fault"),
    [
        (ReturnsNothing, {}, "PieceOutputError"),
        (WritesInSilence, {}, "mutates_episodes = True"),
        (HidesItsState, {}, "another batch for the same episodes the second time"),
        (ForgetsPartOfItsState, {}, "get_state after set_state gives something else"),
        (ForgetsPartOfItsState, {}, "goes on differently than the one that gave it"),
        (KeepsItsState, {}, "reset_state leaves something else"),
        (HasAStateThatIsNoData, {}, "state['object']"),
        (DeclaresAString, {}, "attribute writes"),
        (TakesNoFurtherKeywords, {}, "end its parameters with **kwargs"),
        (lambda: TakesAFunction(function=min), {}, "argument 'function'"),
        (ForgetsItsArguments, {}, "built from {"),
        (OutOfBounds, {}, "outside the bounds of its output space"),
        (OtherShape, {}, "shape"),
        (OtherType, {}, "come out as float32, its output space says int32"),
        (OnlyPlain, {}, "a runner's episodes than for a list"),
        (TooStrong, {"action_space": TORQUE}, "which is not in Box"),
        (
            FrameStacking,
            {"pipeline": "module_to_env", "observation_space": ONE_CHANNEL},
            "it is checked in module_to_env",
        ),
    ],
)
def test_pieces_that_do_not(make, how, fault):
    with pytest.raises(PieceCheckError) as caught:
        check_connector(make, **how)
    message = str(caught.value)
    assert fault in message
    assert message.startswith("check_connector(") and "expected: " in message and "do:" in message
    assert isinstance(caught.value, AssertionError)


def test_a_class_that_nobody_else_finds_is_no_data():
    class Local(Good):
        pass

    with pytest.raises(PieceCheckError, match="defined in a function"):
        check_connector(Local)


@pytest.mark.parametrize(
    ("make", "how", "message"),
    [
        (Good(), {}, "a piece's class, or a function that makes a new piece each time"),
        (lambda: ONE_PIECE, {}, "the same piece twice"),
        (dict, {}, "a function that returns a dict"),
        (FrameStacking, {}, "one of env_to_module, module_to_env, learner"),
        (Good, {"pipeline": "lerner"}, "'lerner'"),
    ],
)
def test_what_cannot_be_checked(make, how, message):
    with pytest.raises(PieceError, match=message):
        check_connector(make, **how)
