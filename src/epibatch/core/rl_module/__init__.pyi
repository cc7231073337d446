from .default_modules import DefaultActorCritic as DefaultActorCritic
from .default_modules import DefaultGRUActorCritic as DefaultGRUActorCritic
from .default_modules import DefaultLSTMActorCritic as DefaultLSTMActorCritic
from .default_q_modules import DefaultImplicitQ as DefaultImplicitQ, DefaultQNetwork as DefaultQNetwork
from .default_q_modules import DefaultSoftActorCritic as DefaultSoftActorCritic
from .default_model_config import DefaultModelConfig as DefaultModelConfig
from .rl_module import MultiRLModule as MultiRLModule, MultiRLModuleSpec as MultiRLModuleSpec
from .rl_module import RLModule as RLModule, RLModuleSpec as RLModuleSpec, TorchRLModule as TorchRLModule
from .rl_module import default_module_spec as default_module_spec
from .rl_module import QDistributionAPI as QDistributionAPI, QValueAPI as QValueAPI
from .rl_module import ValueFunctionAPI as ValueFunctionAPI
