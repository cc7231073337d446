"""The arrays that hold the rows of episodes.

One episode:
    growing_column: rows of one stream in arrays that grow, and the provisional newest row; blocks have such columns.
    lookback_buffer: the index rules of every column of an episode.
    infos_buffer: the info dicts of an episode.

Environments that step together:
    block: time-major arrays of all environments, and the infos of whole steps.
    chunk: the part of a block that is one episode.
    packed_chunks: chunks as data for another process.
"""

__all__: list[str] = []
