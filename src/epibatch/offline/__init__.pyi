from .dataset_writer import DatasetWriter as DatasetWriter
from .episode_dataset import EpisodeDataset as EpisodeDataset
from .formats import read_episodes as read_episodes, write_episodes as write_episodes
from .data_folder import repair as repair, verify as verify
from .multi_agent_dataset import MultiAgentDataset as MultiAgentDataset, MultiAgentWriter as MultiAgentWriter
