from .default_actor_critic import DefaultActorCritic as DefaultActorCritic
from .default_lstm_actor_critic import DefaultLSTMActorCritic as DefaultLSTMActorCritic
from .default_model_config import DefaultModelConfig as DefaultModelConfig
from .multi_rl_module import MultiRLModule as MultiRLModule
from .multi_rl_module_spec import MultiRLModuleSpec as MultiRLModuleSpec
from .rl_module import RLModule as RLModule
from .rl_module_spec import RLModuleSpec as RLModuleSpec, default_module_spec as default_module_spec
from .torch_rl_module import TorchRLModule as TorchRLModule
from .value_function_api import ValueFunctionAPI as ValueFunctionAPI
