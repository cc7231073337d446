"""Pieces by themselves: a user's, and those that rewrite observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from oracle.probes import plain

DISCRETE = gym.spaces.Discrete(3)


def wired(piece: Any, observations: gym.Space[Any], actions: gym.Space[Any] = DISCRETE) -> Any:
    """The piece with the spaces that a pipeline gives it."""
    piece.input_action_space = actions
    piece.input_observation_space = observations
    return piece


def rounded(value: Any) -> Any:
    """Plain values, fractions to four digits."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(item) for item in value)
    return round(value, 4) if isinstance(value, float) else value


def filtered(library: Any, piece: Any, rows: Any) -> list[Any]:
    """What a filter makes of one episode's observations, one call each."""
    episode = library.SingleAgentEpisode(id_="e")
    shown = []
    for i, row in enumerate(rows):
        if i:
            episode.add_env_step(row, 0, 0.0)
        else:
            episode.add_env_reset(row)
        piece(rl_module=None, batch={}, episodes=[episode])
        shown.append(episode.get_observations(-1))
    return shown


def user_piece(library: Any, function: Callable[[Any, Any, Any], None]) -> Any:
    """A piece that calls `function(piece, batch, episodes)`."""

    class User(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            function(self, batch, episodes)
            return batch

    return User()
