from .episode_replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from .lanes import Lanes as Lanes
from .prioritized_episode_replay_buffer import PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer
from .sampled_episodes import SampledEpisodes as SampledEpisodes
from .sum_tree import SumTree as SumTree
