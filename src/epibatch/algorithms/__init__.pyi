from . import error_reports as error_reports, learning_curves as learning_curves, playing as playing
from . import training_run as training_run
from .multi_agent import AgentMapping as AgentMapping
from .algorithm import Algorithm as Algorithm
from .algorithm_config import AlgorithmConfig as AlgorithmConfig
from .loggers import Logger as Logger
from .policy import MultiAgentPolicy as MultiAgentPolicy, MultiAgentPolicyState as MultiAgentPolicyState
from .policy import Policy as Policy, PolicyState as PolicyState
from .policy_spec import PolicySpec as PolicySpec
from .ppo import PPO as PPO, PPOConfig as PPOConfig
from .run_folder import RunFolder as RunFolder
from .training_run import TrainingRun as TrainingRun
