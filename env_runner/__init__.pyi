from .env_context import EnvContext as EnvContext
from .env_runner import EnvRunner as EnvRunner
from .env_runner_group import EnvRunnerGroup as EnvRunnerGroup
from .envs.external_envs import ExternalEnvs as ExternalEnvs
from .external_env_runner import ExternalEnvRunner as ExternalEnvRunner
from .metrics import AgentMetrics as AgentMetrics, EpisodeMetrics as EpisodeMetrics, SamplingMetrics as SamplingMetrics
from .multi_agent_env import MultiAgentEnv as MultiAgentEnv, make_multi_agent as make_multi_agent
from .multi_agent_env_runner import MultiAgentEnvRunner as MultiAgentEnvRunner
from .envs.agents_as_envs import AgentsAsEnvs as AgentsAsEnvs
from .envs.make_env import make_vector_multi_agent_env as make_vector_multi_agent_env
from .pettingzoo_env import ParallelPettingZooEnv as ParallelPettingZooEnv, PettingZooEnv as PettingZooEnv
from .envs.reset_seeds import environment_seeds as environment_seeds
from .envs.wrappers import EpisodicLife as EpisodicLife, NoopStarts as NoopStarts
from .single_agent_env_runner import SingleAgentEnvRunner as SingleAgentEnvRunner
from .envs.wrappers import ActionChunks as ActionChunks, FrameSkip as FrameSkip
from .runner_config import OwnLoopConfig as OwnLoopConfig
from .tensor_env_runner import TensorEnvRunner as TensorEnvRunner
from .envs.make_env import make_vector_env as make_vector_env
from .envs.vector_envs import AsyncEnvs as AsyncEnvs, SyncEnvs as SyncEnvs, VectorMultiAgentEnv as VectorMultiAgentEnv
from .envs.stateless_env import LearnedEnv as LearnedEnv, StatelessEnv as StatelessEnv
from .envs.stateless_env import StatelessVectorEnv as StatelessVectorEnv
