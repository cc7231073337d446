"""How to build one RLModule, as data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.rl_module.default_actor_critic import DefaultActorCritic
from epibatch.core.rl_module.default_lstm_actor_critic import DefaultLSTMActorCritic
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.observation_input import ObservationInput
from epibatch.core.rl_module.rl_module import RLModule
from epibatch.core.rl_module.spec_data import class_from_name, class_name, fields_from_data, fields_to_data

if TYPE_CHECKING:
    from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec

__all__ = ["RLModuleSpec", "default_module_spec", "saved_spec", "weights_at_most"]


class _Budget:
    """Bytes that weights of built-in modules may still take."""

    def __init__(self, nbytes: int) -> None:
        self.whole = self.left = nbytes

    def spend(self, make: Callable[[], Any]) -> None:
        """Build a module without memory for its weights, to see how much they take.

        Raises:
            CheckpointError: more than is left.
        """
        with torch.device("meta"):
            weights = make().state_dict().values()
        size = sum(weight.numel() * weight.element_size() for weight in weights)
        if size > self.left:
            raise CheckpointError(
                "building the module of a checkpoint",
                expected=f"weights of at most {self.whole:,} bytes, which are as many as the checkpoint has",
                found=f"settings of a network with {size:,}",
                do="restore the files from a copy; a module that is built in Python may have any size",
            )
        self.left -= size


_budget: ContextVar[_Budget | None] = ContextVar("weights_at_most", default=None)


@contextmanager
def weights_at_most(nbytes: int) -> Iterator[None]:
    """Bound the weights of built-in modules that are built inside, all together.

    The settings of a network in a file may ask for any amount of memory; its weights in the file say how much is right.

    Args:
        nbytes: how many bytes they may take.
    """
    token = _budget.set(_Budget(nbytes))
    try:
        yield
    finally:
        _budget.reset(token)


def saved_spec(cls: Any, data: Mapping[str, Any], *, allow_imports: bool) -> Any:
    """The spec in a checkpoint, which reads no state from elsewhere: its state is in the checkpoint.

    Args:
        cls: `RLModuleSpec` or `MultiRLModuleSpec`.
        data: what `to_dict` gave.
        allow_imports: whether a class that is not built in may be imported.

    Raises:
        CheckpointError: the spec, or one inside it, has a `load_state_path`.
    """
    spec = cls.from_dict(data, allow_imports=allow_imports)
    for each in (spec, *getattr(spec, "rl_module_specs", {}).values()):
        if each.load_state_path is not None:
            raise CheckpointError(
                "the spec in a checkpoint",
                expected="no load_state_path, because the state is in the checkpoint",
                found=repr(each.load_state_path)[:120],
                do="build the module, and call its restore_from_path",
            )
    return spec


_FIELDS = ("observation_space", "action_space", "inference_only", "learner_only", "model_config")


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
        load_state_path: a checkpoint that `save_to_path` of such a module wrote, from which a newly built one takes its
            state; `"folder/main"` for the module `main` of several.

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
    load_state_path: str | os.PathLike[str] | None = None

    def build(self) -> RLModule:
        """Build the module.

        Raises:
            ConfigError: `module_class` is no RLModule class.
            SpaceError: no default module fits the spaces.
            CheckpointError: the state at `load_state_path` cannot be read, or does not fit.
        """
        module_class = self.module_class
        if module_class is None:
            default = default_module_spec(self.observation_space, self.action_space, self.model_config)
            module_class = default.module_class
        if not (isinstance(module_class, type) and issubclass(module_class, RLModule)):
            raise ConfigError(
                "RLModuleSpec.module_class",
                expected="a subclass of RLModule",
                found=repr(module_class),
                do="pass the class itself, not an instance or a name",
            )
        make = partial(
            module_class,
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            learner_only=self.learner_only,
            model_config=self.model_config,
        )
        budget = _budget.get()
        if budget is not None and module_class.__module__.startswith(RLModule.__module__.rpartition(".")[0]):
            budget.spend(make)
        module = make()
        if self.load_state_path is not None:
            module.restore_from_path(self.load_state_path)
        return module

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

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data, for JSON and YAML; a `DefaultModelConfig` becomes the dict of its options.

        Raises:
            ConfigError: something in it is code: a class defined in a script, a function among the options.
            SpaceError: a space that cannot be described.

        Example:
            >>> RLModuleSpec(observation_space=gym.spaces.Discrete(3)).to_dict()["observation_space"]["n"]
            3
        """
        data = {"module_class": class_name(self.module_class, "RLModuleSpec.to_dict"), **fields_to_data(self, _FIELDS)}
        return data if self.load_state_path is None else {**data, **fields_to_data(self, ("load_state_path",))}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, allow_imports: bool = False) -> RLModuleSpec:
        """The spec that `to_dict` expressed.

        Args:
            d: what `to_dict` gave.
            allow_imports: whether a class of yours may be imported by its path; importing runs code.

        Raises:
            ConfigError: unknown entries.
            RegistryError: the class is an import path, and imports are not allowed, or it cannot be imported.
            SpaceError: a space cannot be read.
        """
        fields = fields_from_data(cls, d, ("module_class", *_FIELDS, "load_state_path"))
        name = fields.pop("module_class", None)
        return cls(
            module_class=class_from_name(name, f"{cls.__name__}.from_dict", allow_imports=allow_imports), **fields
        )

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """A MultiRLModuleSpec with this one under the default module id."""
        from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec

        return MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: self}, inference_only=self.inference_only)


def default_module_spec(
    observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None, model_config: Any = None
) -> RLModuleSpec:
    """The spec of the default actor-critic for some spaces.

    Args:
        observation_space: what the module sees: Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples.
        action_space: likewise; integer Boxes need bounds.
        model_config: a `DefaultModelConfig`, a dict of its fields, or None; `use_lstm` picks the recurrent module.

    Raises:
        SpaceError: no default module takes the spaces; the message says what to do.
        ConfigError: unknown or wrong options in `model_config`.

    Example:
        >>> spec = default_module_spec(gym.spaces.Discrete(5), gym.spaces.Discrete(2), {"use_lstm": True})
        >>> spec.module_class.__name__
        'DefaultLSTMActorCritic'
    """
    config = DefaultModelConfig.from_dict(model_config)
    ObservationInput(observation_space, config)
    distribution_for(action_space)
    module_class: type[RLModule] = DefaultLSTMActorCritic if config.use_lstm else DefaultActorCritic
    return RLModuleSpec(
        module_class=module_class,
        observation_space=observation_space,
        action_space=action_space,
        model_config=config if model_config is None else model_config,
    )
