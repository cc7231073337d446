"""An episode as plain data: dicts, arrays, strings and numbers, and back."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from epibatch.core.errors import CheckpointError

from ..infinite_lookback_buffer import InfiniteLookbackBuffer

if TYPE_CHECKING:
    from ..single_agent_episode import SingleAgentEpisode

__all__ = ["episode_from_state", "episode_state"]

E = TypeVar("E", bound="SingleAgentEpisode")

_PLAIN = ("id_", "agent_id", "module_id", "multi_agent_episode_id", "t_started", "is_terminated", "is_truncated")

_PARTS = (
    *_PLAIN,
    *("observation_space", "action_space", "given_observation_space", "lookback", "observations", "raw_observation"),
    *("provisional", "infos", "actions", "rewards", "extra_model_outputs", "custom_data", "duration_s"),
)


def episode_state(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Copy an episode's content into plain data; spaces become dicts."""
    from epibatch.core.space_dicts import space_to_dict

    spaces = {
        "observation_space": episode.observation_space,
        "action_space": episode.action_space,
        "given_observation_space": episode._given_observation_space,
    }
    return {
        **{name: getattr(episode, name) for name in _PLAIN},
        **{name: None if space is None else space_to_dict(space) for name, space in spaces.items()},
        "lookback": episode.lookback,
        **_observations(episode.observations),
        "infos": _infos(episode.infos.data),
        "actions": _rows(episode.actions),
        "rewards": _rows(episode.rewards),
        "extra_model_outputs": {key: _rows(column) for key, column in episode.extra_model_outputs.items()},
        "custom_data": copy.deepcopy(episode.custom_data),
        "duration_s": episode.get_duration_s(),
        "return_before": episode.return_before,
    }


def _observations(column: InfiniteLookbackBuffer) -> dict[str, Any]:
    """The rows, and apart from them a newest one that a piece has yet to bring into their form."""
    rows, raw = column.rows_and_raw_row()
    return {"observations": rows, "raw_observation": raw, "provisional": column.provisional}


def _rows(column: InfiniteLookbackBuffer) -> Any:
    return column.rows_and_raw_row()[0]


def _infos(rows: list[Any]) -> list[Any]:
    return [copy.deepcopy(row) if row else row.copy() for row in rows]


def episode_from_state(cls: type[E], state: dict[str, Any]) -> E:
    """Rebuild an episode from `episode_state`.

    Raises:
        CheckpointError: `state` is no episode's.
    """
    from epibatch.core.space_dicts import space_from_dict

    missing = [name for name in _PARTS if name not in state] if isinstance(state, Mapping) else []
    if missing or not isinstance(state, Mapping):
        raise CheckpointError(
            f"{cls.__name__}.from_state",
            expected="the state of an episode",
            found=f"no {', '.join(missing)}" if missing else f"{type(state).__name__} {state!r}",
            do="pass what get_state of an episode gave; RLlib's have another, and are converted as episodes "
            "(epibatch.interop.rllib.from_rllib)",
        )
    given, observation_space, action_space = (
        None if state[name] is None else space_from_dict(state[name])
        for name in ("given_observation_space", "observation_space", "action_space")
    )
    observations = InfiniteLookbackBuffer(state["observations"], 0, observation_space)
    observations.restore_newest(state["raw_observation"], state["provisional"])
    episode = cls(
        state["id_"],
        observations=observations,
        observation_space=observation_space,
        infos=_infos(state["infos"]),
        actions=state["actions"],
        action_space=action_space,
        rewards=state["rewards"],
        extra_model_outputs=state["extra_model_outputs"],
        terminated=state["is_terminated"],
        truncated=state["is_truncated"],
        t_started=state["t_started"],
        len_lookback_buffer=state["lookback"],
        agent_id=state["agent_id"],
        module_id=state["module_id"],
        multi_agent_episode_id=state["multi_agent_episode_id"],
    )
    episode._given_observation_space, episode._return_before = given, state.get("return_before", math.nan)
    episode.custom_data.update(copy.deepcopy(state["custom_data"]))
    episode._start_time, episode._last_step_time = 0.0, state["duration_s"]
    return episode
