from .env_runner import EnvRunner as EnvRunner
from .episode_metrics import EpisodeMetrics as EpisodeMetrics
from .multi_agent_env import MultiAgentEnv as MultiAgentEnv, make_multi_agent as make_multi_agent
from .multi_agent_env_runner import MultiAgentEnvRunner as MultiAgentEnvRunner
from .multi_agent_makers import make_vector_multi_agent_env as make_vector_multi_agent_env
from .pettingzoo_env import ParallelPettingZooEnv as ParallelPettingZooEnv, PettingZooEnv as PettingZooEnv
from .reset_wrappers import EpisodicLife as EpisodicLife, NoopStarts as NoopStarts
from .single_agent_env_runner import SingleAgentEnvRunner as SingleAgentEnvRunner
from .step_wrappers import ActionChunks as ActionChunks, FrameSkip as FrameSkip
from .vector_env import make_vector_env as make_vector_env
from .vector_multi_agent_env import VectorMultiAgentEnv as VectorMultiAgentEnv
