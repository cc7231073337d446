from .episode_replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from .lanes import Lanes as Lanes
from .mixed_episodes import MixedEpisodes as MixedEpisodes
from .mixed_replay import MixedReplay as MixedReplay
from .multi_agent_episode_replay_buffer import MultiAgentEpisodeReplayBuffer as MultiAgentEpisodeReplayBuffer
from .multi_agent_prioritized_episode_replay_buffer import (
    MultiAgentPrioritizedEpisodeReplayBuffer as MultiAgentPrioritizedEpisodeReplayBuffer,
)
from .prioritized_episode_replay_buffer import PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer
from .sampled_episodes import SampledEpisodes as SampledEpisodes
from .sampled_transitions import SampledTransitions as SampledTransitions
from .sum_tree import SumTree as SumTree
