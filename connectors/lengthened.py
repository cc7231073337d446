"""Episodes with one more step, for plain pieces behind the one that adds bootstrap rows."""

from __future__ import annotations

from typing import Any

__all__ = ["lengthened"]


def lengthened(episode: Any) -> Any:
    """A copy of an episode with one artificial step at its end, truncated if it was not terminated.

    Args:
        episode: A single-agent episode of at least one step; it stays as it is.

    Returns:
        The copy: last observation, info, action and model outputs once more, reward 0. It shares
        the episode's `custom_data`.
    """
    copy = episode.slice(slice(None))
    copy._custom_data = episode.custom_data
    copy.is_terminated = copy.is_truncated = False
    copy.add_env_step(
        copy.get_observations(-1),
        copy.get_actions(-1),
        0.0,
        copy.get_infos(-1),
        terminated=episode.is_terminated,
        truncated=not episode.is_terminated,
        extra_model_outputs={key: copy.get_extra_model_outputs(key, -1) for key in copy.extra_model_outputs},
    )
    return copy
