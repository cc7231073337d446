"""One key per chunk of a call: what per-episode batches are keyed by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["chunk_keys"]


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
    if len(set(ids)) == len(ids):
        return [(id_,) for id_ in ids]
    counts = Counter(ids)
    taken = {id_ for id_, count in counts.items() if count == 1}
    keys: list[tuple[Any, ...]] = []
    for i, id_ in enumerate(ids):
        name = id_
        if counts[id_] > 1:
            name = f"{id_}_{i}"
            while name in taken:
                name += "_"
            taken.add(name)
        keys.append((name,))
    return keys
