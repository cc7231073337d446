"""How to build one RLModule, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError, explain
from epibatch.core.rl_module.rl_module import RLModule

if TYPE_CHECKING:
    from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec

__all__ = ["RLModuleSpec"]


@dataclass
class RLModuleSpec:
    """A module class and the arguments to build it with.

    Args:
        module_class: the RLModule subclass; None takes the default actor-critic for the spaces.
        observation_space: what the module sees.
        action_space: what it decides on.
        inference_only: build it for acting only.
        learner_only: build it on learners only.
        model_config: a dict of options or a `DefaultModelConfig`.

    Example:
        >>> box, choice = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
        >>> spec = RLModuleSpec(observation_space=box, action_space=choice)
        >>> type(spec.build()).__name__
        'DefaultActorCritic'
    """

    module_class: type[RLModule] | None = None
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    inference_only: bool = False
    learner_only: bool = False
    model_config: Any = None

    def build(self) -> RLModule:
        """Build the module.

        Raises:
            ConfigError: `module_class` is no RLModule class.
            SpaceError: no default module fits the spaces.
        """
        module_class = self.module_class
        if module_class is None:
            from epibatch.core.rl_module.default_modules import default_module_spec

            default = default_module_spec(self.observation_space, self.action_space, self.model_config)
            module_class = default.module_class
        if not (isinstance(module_class, type) and issubclass(module_class, RLModule)):
            raise ConfigError(
                explain(
                    "RLModuleSpec.module_class",
                    expected="a subclass of RLModule",
                    found=repr(module_class),
                    do="pass the class itself, not an instance or a name",
                )
            )
        return module_class(
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            learner_only=self.learner_only,
            model_config=self.model_config,
        )

    @classmethod
    def from_module(cls, module: RLModule) -> RLModuleSpec:
        """The spec that builds a module like `module`."""
        module = module.unwrapped()
        return cls(
            module_class=type(module),
            observation_space=module.observation_space,
            action_space=module.action_space,
            inference_only=module.inference_only,
            learner_only=module.learner_only,
            model_config=module.model_config,
        )

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """A MultiRLModuleSpec with this one under the default module id."""
        from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec

        return MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: self}, inference_only=self.inference_only)
