from ._storage.infos_buffer import InfosBuffer as InfosBuffer
from .flat_columns import columns_to_episodes as columns_to_episodes, episodes_to_columns as episodes_to_columns
from .infinite_lookback_buffer import InfiniteLookbackBuffer as InfiniteLookbackBuffer
from .multi_agent_episode import MultiAgentEpisode as MultiAgentEpisode
from .packing import join_episodes as join_episodes, pack_episodes as pack_episodes, unpack_episodes as unpack_episodes
from .reader import EpisodeReader as EpisodeReader, reader_of as reader_of
from .single_agent_episode import SingleAgentEpisode as SingleAgentEpisode
from .chunk_table import ChunkTable as ChunkTable
from .chunks_by_module import ChunksByModule as ChunksByModule
from .store import StoreColumn as StoreColumn
from .vector_episodes import VectorEpisodes as VectorEpisodes, count_steps as count_steps
from .vector_recorder import VectorRecorder as VectorRecorder
