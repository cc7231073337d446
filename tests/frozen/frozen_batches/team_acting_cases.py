"""Both acting pipelines of several agents for some steps: a case is a seed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from epibatch.connectors.common import AddOtherAgentsFromEpisodesToBatch, FrameStacking, StackAgents
from epibatch.connectors.env_to_module import (
    AgentIndicator,
    FlattenObservations,
    MeanStdFilter,
    PadObservations,
    PrevActionsPrevRewards,
)
from epibatch.connectors.env_to_module import default_pipeline as env_to_module_pipeline
from epibatch.connectors.module_to_env import UnstackAgents
from epibatch.connectors.module_to_env import default_pipeline as module_to_env_pipeline
from epibatch.connectors.observations import CountSteps, MarkFirstSteps
from epibatch.connectors.views import View
from epibatch.episodes import MultiAgentEpisode

from . import pieces as users
from .content import chance, pick
from .describing import Description, digest_of_episodes
from .teams import AGENTS, Game, Team

STEPS = 5
VIEWS = {
    "prev_rewards": View("rewards", -1),
    "others": View("obs", agent="*"),
    "last_obs": View("obs", "-2:0", mask=True),
}


class TeamActingCase:
    """A few random steps of several agents between the two acting pipelines.

    Args:
        seed: What the case follows from.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng([4, seed])
        self.team = team = Team(rng, ("alike", "alike", "shared", "shared", "different", "padded"))
        self.alike = team.kind in ("alike", "shared")
        self.views = {n: v for n, v in VIEWS.items() if chance(rng, 50)} if self.alike and chance(rng, 30) else {}
        self.filtered = False
        self.stacked: tuple[str, ...] = ()
        if self.alike and not self.views and chance(rng, 50):
            self.stacked = tuple(m for m in team.module_ids if m != "thinker" or not team.state)
        options = {"agent_to_module_mapping_fn": team.module_of, "rl_module_specs": team.specs()}
        spaces = (team.observation_space, team.action_space)
        self.to_module = env_to_module_pipeline(*spaces, connectors=self._front(), views=self.views, **options)
        self.to_env = module_to_env_pipeline(
            *spaces, connectors=[users.LeaveAlone()] if chance(rng, 30) else [], clip_actions=chance(rng, 40), **options
        )
        if self.stacked:
            self.to_module.insert_after("BatchIndividualItems", StackAgents(agent_ids=AGENTS, module_ids=self.stacked))
            self.to_env.prepend(UnstackAgents())
        if chance(rng, 30):
            self.to_module.insert_after("AddObservationsFromEpisodesToBatch", users.LeaveAlone())
        self.module = team.modules(self.stacked, max_seq_len=20, by_place=self.filtered)
        self.batches: list[dict[str, Any]] = []

    def _front(self) -> list[Any]:
        rng, front = self.rng, []
        if chance(rng, 25):
            front.append(users.LeaveAlone())
        if self.team.kind == "padded":
            front.append(PadObservations(agent_ids=["a", "c"]))
        elif self.team.kind == "different":
            front.append(FlattenObservations())
        kind = ""
        if self.alike and not self.views:
            kind = pick(rng, ["", "", "stack", "stack", "previous", "indicator"])
            if kind == "stack" and not self.stacked:
                front.append(FrameStacking(num_frames=3, new_axis=True))
            elif kind == "previous":
                front.append(PrevActionsPrevRewards(n_prev_actions=1, n_prev_rewards=2))
            elif kind == "indicator":
                front.append(AgentIndicator(agent_ids=["a", "b", "c", "d"]))
        if chance(rng, 20) and self.team.kind != "padded" and not kind:
            front.append(MeanStdFilter())
            self.filtered = True
        elif self.alike and kind in ("", "stack") and chance(rng, 50):
            front.append(AddOtherAgentsFromEpisodesToBatch(agent_ids=AGENTS))
        return front + [make() for make in (CountSteps, MarkFirstSteps) if chance(rng, 20)]

    def _started(self, name: str) -> tuple[MultiAgentEpisode, Game]:
        game = Game(self.team, self.rng, int(self.rng.integers(2, 7)))
        episode = self.team.episode(name)
        episode.add_env_reset(observations=game.reset()[0])
        return episode, game

    def run(self) -> Description:
        """Act some steps and describe every batch."""
        played = [self._started(f"team_{i}") for i in range(int(self.rng.integers(1, 4)))]
        for t in range(STEPS):
            columns = self._called([episode for episode, _ in played])
            for i, (episode, game) in enumerate(played):
                self._step(episode, game, {name: column[i] for name, column in columns.items()})
                if episode.is_done:
                    played[i] = self._started(f"team_{i}_{t}")
                elif chance(self.rng, 20):
                    needed = max(1, self.to_module.lookback_needed)
                    played[i] = episode.cut(needed, agent_steps=needed), game
        names = ["obs", "others", "last_obs", "other_obs", "score", "state_in", "state_out"]
        found = Description(["action_logp", *(names if self.filtered else [])])
        found.add_steps(self.batches)
        return found

    def _step(self, episode: MultiAgentEpisode, game: Game, columns: dict[str, Any]) -> None:
        actions, for_env = columns.pop("actions"), columns.pop("actions_for_env", {})
        outputs = {
            agent: {key: column[agent] for key, column in columns.items() if agent in column} for agent in actions
        }
        observations, rewards, terminateds, truncateds, infos = game.step(for_env or actions)
        flags = {"terminateds": terminateds, "truncateds": truncateds, "extra_model_outputs": outputs}
        episode.add_env_step(observations, actions, rewards, infos, **flags)

    def _called(self, episodes: list[MultiAgentEpisode]) -> dict[str, Any]:
        """Call both pipelines."""
        call: dict[str, Any] = {"rl_module": self.module, "episodes": episodes, "explore": False}
        shared: dict[str, Any] = {}
        batch = self.to_module(batch={}, shared_data=shared, **call)
        before = {"in": copy.deepcopy(batch)}
        columns = self.to_env(batch=self.module.forward_inference(batch), shared_data=shared, **call)
        self.batches.append({**before, "out": copy.deepcopy(columns)})
        if not self.filtered:
            parts = [segment.episode for episode in episodes for segment in episode.segments]
            self.batches[-1]["episodes"] = np.array(digest_of_episodes(parts))
        return columns
