"""Both acting pipelines of one agent for some steps: a case is a seed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from epibatch.connectors.env_to_module import default_pipeline as env_to_module_pipeline
from epibatch.connectors.module_to_env import default_pipeline as module_to_env_pipeline
from epibatch.connectors.observations import CountSteps, MarkFirstSteps, TimeMaxPool
from epibatch.connectors.views import View
from epibatch.episodes import SingleAgentEpisode, VectorRecorder

from . import pieces as users
from .content import ACTIONS, OBSERVATIONS, chance, draw, pick, row
from .describing import Description, digest_of_episodes
from .learner_cases import STACKED
from .modules import spec
from .single_episodes import Columns, step

STEPS = 5
VIEWS = {
    "prev_rewards": View("rewards", -1),
    "prev_actions": View("actions", "-2:-1"),
    "last_obs": View("obs", "-2:0", mask=True),
    "step": View("t"),
}


class ActingCase:
    """A few random steps of one agent between the two acting pipelines.

    Args:
        seed: What the case follows from.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng([2, seed])
        self.observations, self.actions = pick(rng, OBSERVATIONS), pick(rng, ACTIONS)
        self.source = pick(rng, ["list", "recorder"])
        self.state = pick(rng, ["", "", "h", "nested"])
        self.views = {name: view for name, view in VIEWS.items() if chance(rng, 40)} if chance(rng, 30) else {}
        self.explore = chance(rng, 30) and self.actions in ("discrete", "multi")
        self.filtered = self.rewritten = False
        self.batches: list[dict[str, Any]] = []
        front = self._front()
        history = max([1, *(view.lookback for view in self.views.values()), *(p.lookback or 0 for p in front)])
        self.columns = Columns(
            OBSERVATIONS[self.observations](),
            ACTIONS[self.actions](),
            state=self.state,
            outputs=False,
            history=history,
        )
        spaces = (self.columns.observation_space, self.columns.action_space)
        self.to_module = env_to_module_pipeline(*spaces, connectors=front, views=self.views)
        users_pieces = [users.LeaveAlone()] if chance(rng, 30) else []
        scaled = chance(rng, 60)
        options = {"normalize_actions": scaled, "clip_actions": not scaled}
        self.to_env = module_to_env_pipeline(*spaces, connectors=users_pieces, **options)
        if chance(rng, 30):
            self.to_module.insert_after("AddObservationsFromEpisodesToBatch", users.LeaveAlone())
        config = {"state": self.state, "max_seq_len": 20, "by_place": self.filtered}
        self.module = spec(*spaces, **config).build()

    def _front(self) -> list[Any]:
        rng, front = self.rng, []
        if chance(rng, 25):
            front.append(users.LeaveAlone())
        windows = ["stack", "stack", "stack", "pool", "filter"] if self.observations in STACKED else []
        kind = pick(rng, ["", "previous", "flat", "flat filter", *windows])
        if kind == "stack":
            front.append(FrameStacking(**STACKED[self.observations]))
        elif kind == "previous":
            front.append(PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=int(rng.integers(4))))
        elif kind == "pool":
            front.append(TimeMaxPool(num_frames=2))
        elif kind.startswith("flat"):
            front.append(FlattenObservations())
        if kind == "flat filter" or (kind == "filter" and self.observations != "image"):
            front.append(MeanStdFilter())
            self.filtered = True
        self.rewritten = kind == "previous" or "fl" in kind or self.filtered
        return front + [make() for make in (CountSteps, MarkFirstSteps) if chance(rng, 20)]

    def run(self) -> Description:
        """Act some steps and describe every batch."""
        act = self._act_in_a_block if self.source == "recorder" else self._act_in_a_list
        act(int(self.rng.integers(1, 6)))
        found = Description(
            ["action_logp", *(["obs", "last_obs", "score", "state_in", "state_out"] if self.filtered else [])]
        )
        found.add_steps(self.batches)
        return found

    def _called(self, episodes: Any) -> dict[str, Any]:
        """Call both pipelines."""
        call: dict[str, Any] = {"rl_module": self.module, "episodes": episodes, "explore": self.explore}
        shared: dict[str, Any] = {}
        batch = self.to_module(batch={}, shared_data=shared, **call)
        before = {"in": copy.deepcopy(batch)}
        outputs = self.module.forward_exploration(batch) if self.explore else self.module.forward_inference(batch)
        columns = self.to_env(batch=outputs, shared_data=shared, **call)
        self.batches.append({**before, "out": copy.deepcopy(columns)})
        if not self.filtered:
            self.batches[-1]["episodes"] = np.array(digest_of_episodes(episodes))
        return columns

    def _observation(self) -> Any:
        return row(draw(self.columns.observation_space, self.rng, 1), 0)

    def _started(self, number: int) -> SingleAgentEpisode:
        episode = SingleAgentEpisode(f"episode_{number}")
        episode.add_env_reset(self._observation(), {})
        return episode

    def _act_in_a_list(self, count: int) -> None:
        episodes = [self._started(i) for i in range(count)]
        for t in range(STEPS):
            columns = self._called(episodes)
            columns.pop("actions_for_env", None)
            for i, episode in enumerate(episodes):
                outputs = {key: row(column, i) for key, column in columns.items() if key != "actions"}
                reward = float(self.rng.integers(-4, 5)) / 4
                episode.add_env_step(
                    self._observation(), row(columns["actions"], i), reward, {}, extra_model_outputs=outputs
                )
                if chance(self.rng, 15):
                    episodes[i] = self._started(10 * t + i + 10)
                elif chance(self.rng, 25):
                    episodes[i] = episode.cut(len_lookback_buffer=self.columns.lookback(self.rng, episode.t))

    def _act_in_a_block(self, count: int) -> None:
        spaces = (self.columns.observation_space, self.columns.action_space)
        mode = pick(self.rng, ["next_step"] if self.rewritten else ["next_step", "same_step"])
        recorder = VectorRecorder(count, *spaces, autoreset=mode, capacity=3)
        recorder.reset(draw(spaces[0], self.rng, count))
        for t in range(STEPS):
            columns = self._called(recorder.episodes)
            recorder.commit()
            if chance(self.rng, 30):
                recorder.flush(self.columns.lookback(self.rng, t + 1))
            actions = columns.pop("actions")
            columns.pop("actions_for_env", None)
            step(recorder, self.columns, self.rng, actions, columns, mode)
