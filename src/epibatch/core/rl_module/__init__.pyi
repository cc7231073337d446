from .default_actor_critic import DefaultActorCritic as DefaultActorCritic
from .default_gru_actor_critic import DefaultGRUActorCritic as DefaultGRUActorCritic
from .default_lstm_actor_critic import DefaultLSTMActorCritic as DefaultLSTMActorCritic
from .default_model_config import DefaultModelConfig as DefaultModelConfig
from .rl_module import MultiRLModule as MultiRLModule, MultiRLModuleSpec as MultiRLModuleSpec
from .rl_module import RLModule as RLModule, RLModuleSpec as RLModuleSpec, TorchRLModule as TorchRLModule
from .rl_module import default_module_spec as default_module_spec
from .value_function_api import ValueFunctionAPI as ValueFunctionAPI
