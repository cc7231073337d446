"""Episodes of several sources together, and as data for another process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ._parts.packed_columns import PackedColumns
from ._storage.chunk import chunk_of
from .vector_episodes import VectorEpisodes


def join_episodes(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Join sequences of episodes, without making an object for an episode that has none.

    Args:
        parts: What runners returned: each a `VectorEpisodes` or a list.

    Returns:
        The episodes in the order of the parts: a `VectorEpisodes` if all parts are such, else a list. Nothing is
        copied.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> one, other = SingleAgentEpisode(id_="a"), SingleAgentEpisode(id_="b")
        >>> [episode.id_ for episode in join_episodes([[one], [], [other]])]
        ['a', 'b']
    """
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    if filled and all(type(part) is VectorEpisodes and not part.recording for part in filled):
        return VectorEpisodes.joined(filled)  # type: ignore[arg-type]
    return list(chain.from_iterable(filled))


def pack_episodes(episodes: Sequence[Any], indices: Sequence[int] | None = None) -> Any:
    """Return episodes as what travels well to another process: pickle makes a few large arrays of it.

    Nothing may be written to the episodes between packing and pickling.

    Args:
        episodes: Single-agent episodes, or multi-agent episodes: a list or a `VectorEpisodes`.
        indices: Which of them, in this order; default: all.

    Returns:
        What `unpack_episodes` takes.
    """
    if type(episodes) is VectorEpisodes and not episodes.recording:
        return episodes if indices is None else episodes.take(indices)
    chosen = list(episodes) if indices is None else [episodes[i] for i in indices]
    chunks = [chunk_of(episode) for episode in chosen]
    if chunks and None not in chunks:
        return VectorEpisodes.over(chunks, chosen)  # type: ignore[arg-type]
    try:
        return PackedColumns(chosen)
    except (pickle.PicklingError, AttributeError, TypeError):  # what sends them may be able to pickle more
        return chosen


def unpack_episodes(packed: Any) -> Sequence[Any]:
    """Return the episodes that were packed: the same values, ids and facts.

    Their arrays may show those of `packed`. Arrays in read-only memory are copied by the first getter or setter that
    may write.

    Args:
        packed: What `pack_episodes` returned, here or in another process.

    Returns:
        A `VectorEpisodes` or a list.
    """
    episodes: Sequence[Any] = packed.unpacked() if isinstance(packed, PackedColumns) else packed
    return episodes
