from . import checking as checking, commands as commands, overview as overview
from .checking import DataFault as DataFault, check_episodes as check_episodes
from .dataset_writer import DatasetWriter as DatasetWriter
from .episode_batches import EpisodeBatches as EpisodeBatches
from .episode_dataset import EpisodeDataset as EpisodeDataset
from .formats import read_episodes as read_episodes, write_episodes as write_episodes
from .multi_agent_dataset import MultiAgentDataset as MultiAgentDataset, MultiAgentWriter as MultiAgentWriter
from .verifying import repair as repair, verify as verify
