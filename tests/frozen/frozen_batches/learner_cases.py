"""Learner pipelines of one agent: a case is a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.connectors.common import FlattenObservations, FrameStacking
from epibatch.connectors.learner import (
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
    PrevActionsPrevRewardsLearner,
    default_pipeline,
)
from epibatch.connectors.observations import CountSteps, MarkFirstSteps, TimeMaxPool
from epibatch.connectors.rewards import RewardClipping, RewardScaling, RewardSum
from epibatch.connectors.views import View

from . import pieces as users
from . import single_episodes
from .content import ACTIONS, OBSERVATIONS, chance, pick
from .describing import Description
from .modules import spec
from .single_episodes import Columns

STACKED = {
    "box": {"num_frames": 3, "new_axis": True},
    "matrix": {"num_frames": 2, "axis": 0, "padding": "same"},
    "image": {"num_frames": 4},
}
MORE = (
    AddNextObservationsFromEpisodesToTrainBatch,
    AddInfosFromEpisodesToTrainBatch,
    CountSteps,
    MarkFirstSteps,
    RewardSum,
)
MIDDLE = (users.LeaveAlone, users.DoubleRewardItems, RewardScaling, users.AddRowNumbers)
VIEWS = {
    "prev_rewards": View("rewards", -1),
    "next_actions": View("actions", 1),
    "last_obs": View("obs", "-2:0", mask=True),
    "far": View("rewards", [-3, 0, 2], fill=-9.0),
    "step": View("t"),
}


class LearnerCase:
    """One random call of a learner pipeline.

    Args:
        seed: What the case follows from.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng([1, seed])
        self.observations, self.actions = pick(rng, OBSERVATIONS), pick(rng, ACTIONS)
        self.source = pick(rng, ["listed", "listed", "cut", "recorded", "recorded", "sampled"])
        self.state = pick(rng, ["", "", "h", "nested"])
        self.views = {name: view for name, view in VIEWS.items() if chance(rng, 40)} if chance(rng, 30) else {}
        self.advantages = chance(rng, 55)
        self.burn_in = pick(rng, [0, 1, 3]) if self.state else 0
        self.history = max([1, *(view.lookback for view in self.views.values())])
        self.whole_history = False

    def front(self) -> list[Any]:
        """Build the pieces before the default ones."""
        rng, front = self.rng, []
        if chance(rng, 25):
            front.append(pick(rng, [users.RaiseRewardsInPlace, users.SetRewards, users.LeaveAlone])())
        windows = ["stack", "stack", "pool"] if self.observations in STACKED else []
        kind = pick(rng, ["", "", "previous", "flat", *windows])
        if kind == "stack":
            front.append(FrameStacking(as_learner_connector=True, **STACKED[self.observations]))
        elif kind == "previous":
            front.append(PrevActionsPrevRewardsLearner(n_prev_actions=2, n_prev_rewards=int(rng.integers(4))))
        elif kind == "flat":
            front.append(FlattenObservations(as_learner_connector=True))
        elif kind == "pool":
            front.append(TimeMaxPool(num_frames=2, as_learner_connector=True))
        for make in MORE:
            if chance(rng, 18):
                front.append(make())
                self.whole_history |= make is RewardSum
        if chance(rng, 20):
            front.append(ComputeReturnsToGo(gamma=pick(rng, [1.0, 0.5])))
        return front

    def pipeline(self, columns: Columns, front: list[Any]) -> LearnerConnectorPipeline:
        """Build the pipeline, which may end before the batch is made of arrays."""
        rng = self.rng
        pipeline = default_pipeline(
            columns.observation_space,
            columns.action_space,
            connectors=front,
            advantages=self.advantages,
            gamma=0.75,
            lambda_=pick(rng, [1.0, 0.5]),
            standardize_advantages=chance(rng, 50),
            burn_in=bool(self.burn_in),
            views=self.views,
        )
        if chance(rng, 35):
            piece = pick(rng, MIDDLE[: 3 if self.advantages else 4])
            made = piece(scale=2.0) if piece is RewardScaling else piece()
            pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", made)
        if chance(rng, 15):
            pipeline.insert_after("BatchIndividualItems", pick(rng, [users.TagArrays, users.LeaveAlone])())
        if chance(rng, 15):
            pipeline.insert_before("NumpyToTensor", RewardClipping(low=-1.0, high=0.75))
        if not self.advantages and not self.burn_in and chance(rng, 30):
            last = pick(rng, ["NumpyToTensor", "BatchIndividualItems", "AddStatesFromEpisodesToBatch"])
            names = [type(piece).__name__ for piece in pipeline]
            for name in names[: names.index(last) - 1 : -1]:
                pipeline.remove(name)
        return pipeline

    def run(self) -> Description:
        """Make the batch and describe it."""
        rng, front = self.rng, self.front()
        columns = Columns(
            OBSERVATIONS[self.observations](),
            ACTIONS[self.actions](),
            state=self.state,
            outputs=chance(rng, 70),
            history=max([self.history, *(getattr(piece, "lookback", None) or 0 for piece in front)]),
            whole_history=self.whole_history,
            integers=chance(rng, 25),
        )
        pipeline = self.pipeline(columns, front)
        episodes = getattr(single_episodes, self.source)(columns, rng, int(rng.integers(1, 6)), pick(rng, [2, 5, 9]))
        options = {"state": self.state, "max_seq_len": self.burn_in + int(rng.integers(1, 6)), "burn_in": self.burn_in}
        if self.state and chance(rng, 40):
            options["sequence_end"] = end = pick(rng, ["overlap", "drop", "truncate"][: 2 if self.burn_in else 3])
            if end == "drop":  # which needs a chunk that is long enough
                options["max_seq_len"] = self.burn_in + (2 if max(map(len, episodes)) > 1 else 1)
        module = spec(columns.observation_space, columns.action_space, **options).build()
        batch = pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})
        computed = [*(["state_in"] if self.burn_in else []), *(["action_logp"] if self.source == "sampled" else [])]
        found = Description(computed, episodes)
        found.add("", batch)
        found.add_episodes(episodes)
        return found
