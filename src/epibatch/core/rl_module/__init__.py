"""RLModules: the networks that runners act with and learners train, and the default ones for common spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from epibatch.core.rl_module.default_actor_critic import DefaultActorCritic
    from epibatch.core.rl_module.default_lstm_actor_critic import DefaultLSTMActorCritic
    from epibatch.core.rl_module.default_model_config import DefaultModelConfig
    from epibatch.core.rl_module.default_modules import default_module_spec
    from epibatch.core.rl_module.multi_rl_module import MultiRLModule
    from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec
    from epibatch.core.rl_module.rl_module import RLModule
    from epibatch.core.rl_module.rl_module_spec import RLModuleSpec
    from epibatch.core.rl_module.torch_rl_module import TorchRLModule
    from epibatch.core.rl_module.value_function_api import ValueFunctionAPI

__all__ = [
    "DefaultActorCritic",
    "DefaultLSTMActorCritic",
    "DefaultModelConfig",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "RLModule",
    "RLModuleSpec",
    "TorchRLModule",
    "ValueFunctionAPI",
    "default_module_spec",
]

__getattr__, __dir__ = lazy_exports(__name__)
