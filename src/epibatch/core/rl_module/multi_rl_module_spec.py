"""How to build a MultiRLModule, as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, UnknownNameError, explain, nearest
from epibatch.core.rl_module.multi_rl_module import MultiRLModule
from epibatch.core.rl_module.rl_module import RLModule
from epibatch.core.rl_module.rl_module_spec import RLModuleSpec

__all__ = ["MultiRLModuleSpec"]


@dataclass
class MultiRLModuleSpec:
    """The specs of several modules and the class that holds them.

    Args:
        multi_rl_module_class: MultiRLModule or a subclass.
        observation_space: handed to the class.
        action_space: handed to the class.
        inference_only: build all modules for acting only and leave learner-only ones out.
        model_config: handed to the class.
        rl_module_specs: module id to RLModuleSpec.

    Raises:
        ConfigError: a value of `rl_module_specs` is no RLModuleSpec.

    Example:
        >>> box, choice = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
        >>> spec = RLModuleSpec(observation_space=box, action_space=choice)
        >>> sorted(MultiRLModuleSpec(rl_module_specs={"red": spec, "blue": spec}).build().keys())
        ['blue', 'red']
    """

    multi_rl_module_class: type[MultiRLModule] = MultiRLModule
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    inference_only: bool = False
    model_config: Any = None
    rl_module_specs: dict[str, RLModuleSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        specs, self.rl_module_specs = self.rl_module_specs, {}
        self.add_modules(specs)

    def add_modules(self, module_specs: Mapping[str, RLModuleSpec], override: bool = True) -> None:
        """Add specs under their ids.

        Args:
            module_specs: module id to RLModuleSpec.
            override: replace specs whose id is taken; with False they are kept.

        Raises:
            ConfigError: a value is no RLModuleSpec.
        """
        for module_id, spec in module_specs.items():
            if not isinstance(spec, RLModuleSpec):
                raise ConfigError(
                    explain(
                        f"rl_module_specs[{module_id!r}]",
                        expected="an RLModuleSpec",
                        found=type(spec).__name__,
                        do="wrap it: RLModuleSpec(module_class=...)",
                    )
                )
            if override or module_id not in self.rl_module_specs:
                self.rl_module_specs[module_id] = spec

    def remove_modules(self, module_ids: str | Collection[str]) -> None:
        """Remove the specs of some ids.

        Raises:
            UnknownNameError: an id has no spec.
        """
        for module_id in [module_ids] if isinstance(module_ids, str) else module_ids:
            if module_id not in self.rl_module_specs:
                known = nearest(module_id, self.rl_module_specs)
                raise UnknownNameError(
                    explain("MultiRLModuleSpec.remove_modules", expected="a module id", found=repr(module_id), do=known)
                )
            del self.rl_module_specs[module_id]

    def __getitem__(self, module_id: str) -> RLModuleSpec:
        if module_id not in self.rl_module_specs:
            known = nearest(module_id, self.rl_module_specs)
            raise UnknownNameError(
                explain("MultiRLModuleSpec", expected="a module id", found=repr(module_id), do=known)
            )
        return self.rl_module_specs[module_id]

    def __contains__(self, module_id: object) -> bool:
        return module_id in self.rl_module_specs

    def build(self, module_id: str | None = None) -> RLModule:
        """Build the MultiRLModule, or only the module under one id."""
        if module_id is not None:
            return self[module_id].build()
        return self.multi_rl_module_class(
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            model_config=self.model_config,
            rl_module_specs=self.rl_module_specs,
        )

    @classmethod
    def from_module(cls, module: MultiRLModule) -> MultiRLModuleSpec:
        """The spec that builds a MultiRLModule like `module`."""
        return cls(
            multi_rl_module_class=type(module),
            observation_space=module.observation_space,
            action_space=module.action_space,
            inference_only=module.inference_only,
            model_config=module.model_config,
            rl_module_specs={key: RLModuleSpec.from_module(value) for key, value in module.items()},
        )

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """This spec."""
        return self
