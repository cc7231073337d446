"""Episodes of several agents for pipelines: what their agents' modules are, and how they are cut."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from oracle.agents import AGENTS, Schedule, schedules

MODULES = {"b": "walker", "a": "thinker", "c": "walker", "d": "scout"}
"""Agents' modules: two agents share one, `thinker` is recurrent, `scout` has other spaces."""
ACTIONS = gym.spaces.Discrete(4)
SPACES = {agent: gym.spaces.Box(-np.inf, np.inf, (5 if agent == "d" else 2,), np.float32) for agent in AGENTS}
STATE = {"walker": 0, "thinker": 2, "scout": 0}


def module_of(agent_id: Any, episode: Any = None, **_: Any) -> str:
    """The mapping function."""
    return MODULES[agent_id]


def keywords() -> dict[str, Any]:
    """What episodes of a team are made with."""
    return {
        "observation_space": gym.spaces.Dict(SPACES),
        "action_space": gym.spaces.Dict(dict.fromkeys(SPACES, ACTIONS)),
        "agent_to_module_mapping_fn": module_of,
    }


def _fitted(agent: str, observation: Any) -> Any:
    return np.resize(observation, SPACES[agent].shape).astype(np.float32)


def fitted(schedule: Schedule) -> Schedule:
    """The schedule with observations of each agent's own space."""
    reset = {**schedule.reset, "observations": {a: _fitted(a, o) for a, o in schedule.reset["observations"].items()}}
    steps = [
        {**step, "observations": {a: _fitted(a, o) for a, o in step["observations"].items()}} for step in schedule.steps
    ]
    return replace(schedule, reset=reset, steps=steps)


@dataclass(frozen=True)
class Team:
    """Some episodes, each cut where its number of env steps says.

    Attributes:
        schedules: one per episode.
        cuts: env step at which each is cut, or None; what follows is the chunk.
        lookback: how much the cuts keep.
    """

    schedules: list[Schedule]
    cuts: list[int | None]
    lookback: int
    ids: list[str] = field(default_factory=list)

    def chunks(self, cls: Any, **keep: int) -> list[Any]:
        """The chunks, newly made by a library's class; episodes that ended before their cut are whole.

        Args:
            cls: MultiAgentEpisode.
            **keep: what cuts are told to keep; default: `lookback` env steps.
        """
        out = []
        for name, schedule, cut in zip(self.ids, self.schedules, self.cuts):
            episode = cls(id_=name, **keywords())
            episode.add_env_reset(**schedule.reset)
            for t, step in enumerate(schedule.steps):
                if t == cut and not episode.is_done:
                    episode = episode.cut(**(keep or {"len_lookback_buffer": self.lookback}))
                episode.add_env_step(**step)
            out.append(episode)
        return out


@st.composite
def teams(draw: st.DrawFn, episodes: int = 3, length: int = 8, mild: bool = False) -> Team:
    """Some random episodes of up to four agents.

    Args:
        episodes: most episodes.
        length: most env steps of each.
        mild: whether RLlib's episodes hold them, too.
    """
    count = draw(st.integers(1, episodes))
    own = [fitted(draw(schedules(agents=4, length=length, mild=mild))) for _ in range(count)]
    cuts = [draw(st.none() | st.integers(1, length)) for _ in own]
    ids = [draw(st.sampled_from([f"e{i}", "same"])) for i in range(count)]
    return Team(own, cuts, draw(st.integers(1, 3)), ids)
