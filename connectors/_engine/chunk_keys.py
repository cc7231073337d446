"""One key per chunk of a call: what per-episode batches are keyed by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["chunk_keys", "numbered"]


def chunk_keys(episodes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Key each chunk by its episode's id, or by id and position where an id occurs twice.

    Args:
        episodes: The chunks of one call; their ids are never changed.

    Returns:
        One tuple per chunk, all different.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> chunk_keys([SingleAgentEpisode(id_=name) for name in ("a", "b", "a")])
        [('a_0',), ('b',), ('a_2',)]
    """
    ids = getattr(episodes, "ids", None) or [episode.id_ for episode in episodes]
    return [(name,) for name in numbered(ids)]


def numbered(names: Sequence[Any]) -> Sequence[Any]:
    """Names of which each occurs once: those that occur more often get their position behind them.

    Example:
        >>> numbered(["a", "a", "a_1"])
        ['a_0', 'a_1_', 'a_1']
    """
    if len(set(names)) == len(names):
        return names
    counts = Counter(names)
    taken = {name for name, count in counts.items() if count == 1}
    out: list[Any] = []
    for i, name in enumerate(names):
        if counts[name] > 1:
            name = f"{name}_{i}"
            while name in taken:
                name += "_"
            taken.add(name)
        out.append(name)
    return out
