"""Learner pipelines of several agents: a case is a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.connectors.common import (
    AddOtherAgentsFromEpisodesToBatch,
    FlattenObservations,
    FrameStacking,
    StackAgents,
)
from epibatch.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    ComputeReturnsToGo,
    default_pipeline,
)
from epibatch.connectors.observations import CountSteps, MarkFirstSteps
from epibatch.connectors.rewards import RewardClipping, RewardScaling, RewardSum
from epibatch.connectors.views import View

from . import pieces as users
from . import teams
from .content import chance, pick
from .describing import Description
from .teams import AGENTS, Team

VIEWS = {
    "prev_rewards": View("rewards", -1),
    "next_actions": View("actions", 1),
    "others": View("obs", agent="*"),
    "last_of_a": View("rewards", "-1:0", agent="a", fill=-9.0),
}


class TeamLearnerCase:
    """One random call of a learner pipeline for several agents.

    Args:
        seed: What the case follows from.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng([3, seed])
        self.team = Team(rng, ("alike", "alike", "shared", "different"))
        alike = self.team.kind != "different"
        self.source = pick(rng, ["grown", "grown", "sampled"]) if alike else "grown"
        self.views = {n: v for n, v in VIEWS.items() if chance(rng, 50)} if alike and chance(rng, 30) else {}
        self.advantages = chance(rng, 55)
        self.stacked: tuple[str, ...] = ()
        if alike and not self.views and chance(rng, 40):
            ids = [m for m in self.team.module_ids if m != "thinker" or not self.team.state]
            self.stacked = tuple(ids if chance(rng, 60) else ids[:1])

    def front(self) -> list[Any]:
        """Build the pieces before the default ones."""
        rng, front = self.rng, []
        if chance(rng, 25):
            front.append(pick(rng, [users.RaiseRewardsInPlace, users.SetRewards, users.LeaveAlone])())
        if self.team.kind == "different":
            front.append(FlattenObservations(as_learner_connector=True))
        elif chance(rng, 25) and not self.stacked:
            front.append(FrameStacking(num_frames=3, new_axis=True, as_learner_connector=True))
        if self.team.kind != "different" and chance(rng, 30):
            arguments = {"agent_ids": pick(rng, [AGENTS, ("d", "c", "b", "a")]), "actions": chance(rng, 50)}
            front.append(AddOtherAgentsFromEpisodesToBatch(as_learner_connector=True, **arguments))
        makers = [CountSteps, MarkFirstSteps, RewardSum]
        if self.team.kind != "different":
            makers.append(AddNextObservationsFromEpisodesToTrainBatch)
        front += [make() for make in makers if chance(rng, 20)]
        if chance(rng, 20):
            front.append(ComputeReturnsToGo(gamma=pick(rng, [1.0, 0.5])))
        return front

    def pipeline(self, front: list[Any]) -> Any:
        """Build the pipeline, which may end before the batch is made of arrays."""
        rng, team = self.rng, self.team
        pipeline = default_pipeline(
            team.observation_space,
            team.action_space,
            connectors=front,
            advantages=self.advantages,
            gamma=0.75,
            lambda_=pick(rng, [1.0, 0.5]),
            standardize_advantages=chance(rng, 50),
            agent_to_module_mapping_fn=team.module_of,
            rl_module_specs=team.specs(),
            views=self.views,
        )
        if chance(rng, 35):
            piece = pick(rng, [users.LeaveAlone, users.DoubleRewardItems, RewardScaling, users.AddRowNumbers])
            if piece is not users.AddRowNumbers or not self.advantages:
                made = piece(scale=2.0) if piece is RewardScaling else piece()
                pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", made)
        if self.stacked:
            stack = StackAgents(agent_ids=AGENTS, module_ids=self.stacked, as_learner_connector=True)
            pipeline.insert_after("BatchIndividualItems", stack)
        elif chance(rng, 15):
            pipeline.insert_after("BatchIndividualItems", pick(rng, [users.TagArrays, users.LeaveAlone])())
        if chance(rng, 15):
            pipeline.insert_before("NumpyToTensor", RewardClipping(low=-1.0, high=0.75))
        if not self.advantages and not self.stacked and chance(rng, 35):
            ends = ["NumpyToTensor", "BatchIndividualItems", "AgentToModuleMapping", "AddStatesFromEpisodesToBatch"]
            last = pick(rng, ends)
            names = [type(piece).__name__ for piece in pipeline]
            for name in names[: names.index(last) - 1 : -1]:
                pipeline.remove(name)
        return pipeline

    def run(self) -> Description:
        """Make the batch and describe it."""
        pipeline = self.pipeline(self.front())
        lookback = pipeline.lookback_needed + int(self.rng.integers(3))
        make = getattr(teams, self.source)
        episodes = make(self.team, self.rng, int(self.rng.integers(1, 4)), max(1, lookback))
        module = self.team.modules(self.stacked, max_seq_len=int(self.rng.integers(1, 6)))
        batch = pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})
        found = Description(["action_logp"] if self.source == "sampled" else [], episodes)
        found.add("", batch)
        found.add_episodes([segment.episode for episode in episodes for segment in episode.segments])
        return found
