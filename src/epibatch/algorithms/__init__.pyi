from .config.multi_agent import AgentMapping as AgentMapping
from .algorithm import Algorithm as Algorithm, StepResult as StepResult
from .algorithm_config import AlgorithmConfig as AlgorithmConfig
from .config.signatures import describe_settings as describe_settings
from .appo import APPOConfig as APPOConfig, APPORule as APPORule
from .bc import BC as BC, BCConfig as BCConfig, BCRule as BCRule
from .cql import CQLConfig as CQLConfig, CQLRule as CQLRule
from .dqn import DQNConfig as DQNConfig, DQNRule as DQNRule
from .exported_policy import ExportedPolicy as ExportedPolicy, load_exported as load_exported
from .impala import IMPALAConfig as IMPALAConfig, IMPALARule as IMPALARule
from .iql import IQLConfig as IQLConfig, IQLRule as IQLRule
from .loggers import Logger as Logger
from .run.mlflow_logger import MLflowLogger as MLflowLogger
from .marwil import MARWILConfig as MARWILConfig, MARWILRule as MARWILRule
from .policy import MultiAgentPolicy as MultiAgentPolicy, MultiAgentPolicyState as MultiAgentPolicyState
from .policy import Policy as Policy, PolicyState as PolicyState
from .policy_spec import PolicySpec as PolicySpec
from .ppo import PPO as PPO, PPOConfig as PPOConfig
from .registry import algorithm_names as algorithm_names, config_class as config_class
from .registry import register_algorithm as register_algorithm
from .sac import SACConfig as SACConfig, SACRule as SACRule
from .run.run_folder import RunFolder as RunFolder
from .config.settings import TrainingSettings as TrainingSettings
from .run.training_run import TrainingRun as TrainingRun
from .run.wandb_logger import WandbLogger as WandbLogger
