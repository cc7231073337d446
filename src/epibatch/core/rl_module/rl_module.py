"""Networks, single and several by id, and how to build them: the contract, its torch form, and specs as data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
import inspect
import os
import warnings
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NoReturn, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.checkpoints import Checkpointable, arrays_size, load_state
from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ColumnError,
    ConfigError,
    EpibatchError,
    EpibatchWarning,
    NotAvailableError,
    RunnerError,
    UnknownNameError,
    error_context,
    nearest,
)
from epibatch.core.restoring import converted_numbers, restore_on_error, restoring
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.module_data import (
    SPEC,
    STATE,
    class_from_name,
    class_name,
    count_weights,
    fields_from_data,
    fields_to_data,
    is_description,
    load_module_state,
    split_path,
    state_at,
    weight_limit,
)
from epibatch.core.rl_module.observation_input import group_inputs
from epibatch.core.state_codec import require_mapping, select_components
from epibatch.core.structs import convert_to_numpy


class ValueFunctionAPI(ABC):
    """Mixin for RLModules with a value function; advantage estimation and PPO's loss call it."""

    @abstractmethod
    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """The value of every observation of a batch.

        Args:
            batch: The module's input columns, `obs` `[B, ...]` (recurrent: `[B, T, ...]` and `state_in`).
            embeddings: The `embeddings` that `forward_train` gave for the same batch, to save computing
                them again; None computes them from `batch`.

        Returns:
            A float tensor `[B]` (recurrent: `[B, T]`).
        """


class QValueAPI(ABC):
    """Mixin for RLModules with K critics, which give the values of actions; losses of DQN, SAC and others call it."""

    @property
    @abstractmethod
    def critic(self) -> nn.Module:
        """The networks that the critics' loss moves and that a target copies; the others are the policy's."""

    @abstractmethod
    def compute_q_values(self, batch: dict[str, Any], actions: Any = None) -> torch.Tensor:
        """The value of actions at every observation of a batch, by each critic.

        Args:
            batch: The module's input columns, `obs` `[B, ...]` (recurrent: `[B, T, ...]` and `state_in`).
            actions: As the policy gives them, `[B, ...]`; None: all actions of a Discrete space.

        Returns:
            A float tensor `[K, B]`, of all actions `[K, B, n]` (recurrent: `[K, B, T]`, `[K, B, T, n]`).
        """


class QDistributionAPI(QValueAPI):
    """Mixin for RLModules that give the distribution of each action's return, as in C51."""

    @property
    @abstractmethod
    def atoms(self) -> torch.Tensor:
        """The returns that the distributions are over, float `[atoms]`; one of them stands for a plain value."""

    @abstractmethod
    def compute_q_distribution(self, batch: dict[str, Any]) -> torch.Tensor:
        """The logits of every action's distribution, `[K, B, n, atoms]` (recurrent: `[K, B, T, n, atoms]`).

        Args:
            batch: The module's input columns, as for `compute_q_values`.
        """


ModuleT = TypeVar("ModuleT", bound="RLModule")

_FIELDS = ("observation_space", "action_space", "inference_only", "model_config")
_LOADING = ("load_state_path", "modules_to_load")
_OPTIONS = ("observation_space", "action_space", "inference_only", "learner_only", "model_config")


def _options_of(owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}


class RLModule(Checkpointable, ABC):
    """A network (or any other policy) with three forward methods: inference, exploration, training.

    Subclasses build what they need in `setup` and implement `_forward`, or one method per situation:
    `_forward_inference`, `_forward_exploration`, `_forward_train`. All take a dict of columns and give one.

    Args:
        observation_space: What the module sees, that is after the env-to-module connectors.
        action_space: What it decides on.
        inference_only: Built for acting only; it refuses `forward_train` and may leave parts out.
        learner_only: Built for training only; runners leave it out.
        model_config: A dict of options, or any config object; it is kept as it is, None becomes `{}`.

    Raises:
        ConfigError: an unknown keyword.

    Examples:
        >>> class Still(RLModule):
        ...     framework = "numpy"
        ...     def _forward(self, batch, **kwargs):
        ...         return {"actions": [0] * len(batch["obs"])}
        >>> Still().forward_exploration({"obs": [1.0, 2.0]})
        {'actions': [0, 0]}
    """

    framework: str | None = None
    default_max_seq_len: ClassVar[int | None] = None
    """Rows per training sequence of a recurrent module whose `model_config` has no `max_seq_len`; None: it must."""
    handles_resets: ClassVar[bool] = False
    """True if a recurrent module begins again from `reset_states` at steps where the column `resets` is True."""

    view_requirements: ClassVar[Mapping[str, Any]] = {}
    """Columns of other steps that the module reads, by name: `epibatch.connectors.views.View`s, or their arguments.

    Set it on the class: a config makes the pipelines before it builds the module. What `setup` sets is not seen.
    """

    _dist_cls: type[Distribution] | None = None

    def __init__(
        self,
        *,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        inference_only: bool = False,
        learner_only: bool = False,
        model_config: Any = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            raise ConfigError(
                f"{type(self).__name__}(...)",
                expected="a keyword of RLModule",
                found=repr(key),
                do=f"{nearest(key, _OPTIONS)}; options of your own belong into model_config",
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.learner_only = learner_only
        self.model_config: Any = {} if model_config is None else model_config
        self._is_stateful: bool | None = None
        with error_context(f"in {type(self).__name__}.setup:", Exception):
            self.setup()

    def setup(self) -> None:
        """Build the module; called once, at the end of the constructor."""

    @classmethod
    def get_view_requirements(cls, model_config: Any) -> Mapping[str, Any]:
        """The views that a module with these options reads; a config puts them into both pipelines.

        Args:
            model_config: The options that the module will be built with.

        Returns:
            Name of the column -> View, or a dict of its arguments; by default `view_requirements`.
        """
        return cls.view_requirements

    def get_initial_state(self) -> Any:
        """The recurrent state an episode starts with: a dict of unbatched arrays or tensors, empty without one."""
        return {}

    def is_stateful(self) -> bool:
        """True if the module has a recurrent state.

        Raises:
            ColumnError: `get_initial_state` gave something other than a dict.
        """
        if self._is_stateful is None:
            state = self.get_initial_state()
            if not isinstance(state, Mapping):
                raise ColumnError(
                    f"{type(self).__name__}.get_initial_state",
                    expected="a dict of unbatched arrays, empty for a module without a state",
                    found=type(state).__name__,
                    do='give every part a name, for example {"h": torch.zeros(64)}',
                )
            self._is_stateful = bool(state)
        return self._is_stateful

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs for acting greedily.

        Args:
            batch: Columns with the batch axis first; `obs`, and `state_in` if the module is stateful.

        Returns:
            Columns: `action_dist_inputs` or `actions`, `state_out` if stateful, and any others.
        """
        return self._forward_inference(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs for acting with exploration; columns as for `forward_inference`."""
        return self._forward_exploration(batch, **kwargs)

    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs that a loss needs; columns as for `forward_inference`.

        Raises:
            RunnerError: the module was built with `inference_only=True`.
        """
        if self.inference_only:
            raise RunnerError(
                f"{type(self).__name__}.forward_train",
                expected="a module built for training",
                found="inference_only=True",
                do="build it with inference_only=False, or call forward_inference",
            )
        return self._forward_train(batch, **kwargs)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotAvailableError(
            f"{type(self).__name__}._forward",
            expected="a module that implements _forward, or _forward_inference, "
            "_forward_exploration and _forward_train",
            found="none of them",
            do="implement _forward(self, batch, **kwargs) and return a dict of columns",
        )

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """The distribution class of `forward_inference`'s `action_dist_inputs`.

        Raises:
            SpaceError: none fits the action space.
        """
        return self._default_dist_cls()

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """The distribution class of `forward_exploration`'s `action_dist_inputs`.

        Raises:
            SpaceError: none fits the action space.
        """
        return self._default_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """The distribution class of `forward_train`'s `action_dist_inputs`.

        Raises:
            SpaceError: none fits the action space.
        """
        return self._default_dist_cls()

    def _default_dist_cls(self) -> type[Distribution]:
        """The class for the action space, made once: asking for it is part of every step."""
        if self._dist_cls is None:
            self._dist_cls = self._make_dist_cls()
        return self._dist_cls

    def _make_dist_cls(self) -> type[Distribution]:
        return distribution_for(self.action_space)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles, without the distribution class, which may have no importable name."""
        return {**self.__dict__, "_dist_cls": None}

    def unwrapped(self) -> RLModule:
        """The module without wrappers, for example of distributed training."""
        return self

    def as_multi_rl_module(self) -> MultiRLModule:
        """A MultiRLModule that holds this module under the default module id."""
        multi = MultiRLModule()
        multi.add_module(DEFAULT_MODULE_ID, self)
        return multi

    def save_to_path(self, path: str | os.PathLike[str] | None = None, *, state: dict[str, Any] | None = None) -> str:
        """Write the state to a folder, with what it takes to build the module, and return the path.

        Args:
            path: The folder; None makes a new one among the system's temporary files.
            state: What to write instead of `get_state()`.

        Raises:
            CheckpointError: the state holds something that cannot be saved as data.
        """
        description: dict[str, Any] = {"spec": None, "not_data": None}
        try:
            spec: Any = MultiRLModuleSpec if isinstance(self, MultiRLModule) else RLModuleSpec
            description["spec"] = spec.from_module(self).to_dict()
        except EpibatchError as error:
            description["not_data"] = str(error)
        return super().save_to_path(
            path, state={SPEC: description, STATE: dict(self.get_state() if state is None else state)}
        )

    def restore_from_path(self, path: str | os.PathLike[str], *, component: str | None = None) -> None:
        """Take over the state in a folder that `save_to_path` wrote.

        Args:
            path: The folder; `"folder/main"` is the module `main` of the several in it.
            component: The same id by itself. Of other states than modules' the names that lead to the module's, such as
                `"state/learner/module/main"` in the checkpoint of an Algorithm.

        Raises:
            CheckpointError: the folder is missing, incomplete, damaged or of another version, has no such part, or the
                state does not fit; the module is as it was.
        """
        self.set_state(load_module_state(path, component))

    @classmethod
    def from_checkpoint(
        cls: type[ModuleT],
        path: str | os.PathLike[str],
        *,
        component: str | None = None,
        allow_imports: bool = False,
    ) -> ModuleT:
        """Build a module from a folder that `save_to_path` wrote.

        Args:
            path: The folder; `"folder/main"` is the module `main` of the several in it.
            component: The same id by itself.
            allow_imports: True if a custom class may be imported by its path; importing runs code.

        Raises:
            CheckpointError: the folder cannot be read, has no such module, or how to build it is no data: a class
                defined in a script, or functions among the options.
        """
        module = _built(path, component, allow_imports=allow_imports)
        if not isinstance(module, cls):
            raise CheckpointError(
                f"{cls.__name__}.from_checkpoint({str(path)!r})",
                expected=f"a {cls.__name__}",
                found=type(module).__name__,
                do=f"use {type(module).__name__}.from_checkpoint",
            )
        return module


# One for all calls: it is entered only where gradients are on, so that what it puts back is always that.
_NO_GRAD = torch.no_grad()


class TorchRLModule(nn.Module, RLModule):
    """An RLModule that is a `torch.nn.Module`: assign layers in `setup`, compute in `_forward`.

    Acting (`forward_inference`, `forward_exploration`) computes no gradients. The methods do not switch between
    `train()` and `eval()`: their callers do. Runners, policies and the learner pipeline run the module in evaluation
    mode, and the learner's gradient steps in the mode that you gave it (training mode, unless you call `eval()`).

    Args:
        **kwargs: The keywords of `RLModule`.

    Examples:
        >>> class Linear(TorchRLModule):
        ...     def setup(self):
        ...         self.layer = nn.Linear(4, 2)
        ...     def _forward(self, batch, **kwargs):
        ...         return {"action_dist_inputs": self.layer(batch["obs"])}
        >>> Linear().forward_exploration({"obs": torch.zeros(3, 4)})["action_dist_inputs"].shape
        torch.Size([3, 2])
    """

    framework: str | None = "torch"

    def __init__(self, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        RLModule.__init__(self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles; torch's own method, which comes first, does not call RLModule's."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_dist_cls": None}

    def forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the same as `forward_train`; calling the module runs this method."""
        return self.forward_train(batch, **kwargs)

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if torch.is_grad_enabled():
            with _NO_GRAD:
                return self._forward_inference(batch, **kwargs)
        return self._forward_inference(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if torch.is_grad_enabled():
            with _NO_GRAD:
                return self._forward_exploration(batch, **kwargs)
        return self._forward_exploration(batch, **kwargs)

    @property
    def device(self) -> torch.device:
        """The device of the module's parameters; the CPU for a module without any."""
        parameter = next(self.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need, such as the value head."""
        return []

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Copies of all parameters and buffers, by name.

        Args:
            components: Accepted for all checkpointable classes; a module has no parts to choose from.
            not_components: Likewise.
            inference_only: Leave out the attributes in `get_non_inference_attributes`.
        """
        tensors = self.state_dict()
        return {
            name: np.array(convert_to_numpy(tensor))
            for name, tensor in tensors.items()
            if not (inference_only and self._is_for_training(name))
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Copy parameters and buffers in, by name.

        A module built with `inference_only=True` passes over what only training needs.

        Args:
            state: What `get_state` gave; arrays or tensors.

        Raises:
            CheckpointError: names are missing or unknown, shapes differ, or values are no numbers of the kind that
                they are for, such as 0.5 for a counter; nothing was changed.
        """
        where = f"{type(self).__name__}.set_state"
        require_mapping(where, state)
        target = self.state_dict()
        if self.inference_only:
            state = {name: value for name, value in state.items() if name in target or not self._is_for_training(name)}
            target = {name: value for name, value in target.items() if name in state or not self._is_for_training(name)}
        problems = [f"{name} is missing" for name in target if name not in state]
        problems += [f"{name} is unknown" for name in state if name not in target]
        with restoring(where, "weights"):
            problems += [
                f"{name} has shape {tuple(np.shape(state[name]))}, not {tuple(target[name].shape)}"
                for name in target
                if name in state and tuple(np.shape(state[name])) != tuple(target[name].shape)
            ]
        if problems:
            raise CheckpointError(
                where,
                expected="the state of a module of the same class, spaces and model_config",
                found="; ".join(problems),
                do="build the module as it was built when the state was taken",
            )
        with restoring(where, "weights"), torch.no_grad():
            values = {name: converted_numbers(f"{where}, {name!r}", state[name], target[name]) for name in target}
            for name, tensor in target.items():
                tensor.copy_(values[name])

    def _is_for_training(self, name: str) -> bool:
        return any(name == part or name.startswith(f"{part}.") for part in self.get_non_inference_attributes())


class MultiRLModule(TorchRLModule):
    """A mapping of module ids to RLModules that is one RLModule itself.

    Batches are dicts of module ids; a forward method calls the modules that have a batch. All
    parameters of torch modules are reachable through the `torch.nn.Module` interface.

    Args:
        rl_module_specs: Module id to RLModuleSpec; the modules are built here, in this order. With
            `inference_only` they are built for acting only and learner-only ones are left out.
        observation_space: Kept for callers; every module has its own.
        action_space: Likewise.
        inference_only: Build for acting only; None if all specs are for acting only. A module that is added later and
            can be trained ends that.
        learner_only: Build on learners only.
        model_config: Options for subclasses that share parts between modules.

    Examples:
        >>> from epibatch.core.rl_module import RLModuleSpec
        >>> box, choice = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
        >>> spec = RLModuleSpec(observation_space=box, action_space=choice)
        >>> multi = MultiRLModule(rl_module_specs={"red": spec, "blue": spec})
        >>> "red" in multi, len(multi), list(multi.keys())
        (True, 2, ['red', 'blue'])
    """

    def __init__(
        self,
        *,
        rl_module_specs: Mapping[str, RLModuleSpec] | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        inference_only: bool | None = None,
        learner_only: bool = False,
        model_config: Any = None,
        **kwargs: Any,
    ) -> None:
        self.rl_module_specs = dict(rl_module_specs or {})
        if inference_only is None:
            inference_only = all(spec.inference_only for spec in self.rl_module_specs.values())
        super().__init__(
            observation_space=observation_space,
            action_space=action_space,
            inference_only=inference_only,
            learner_only=learner_only,
            model_config=model_config,
            **kwargs,
        )

    def setup(self) -> None:
        """Build the modules of `rl_module_specs`."""
        self._rl_modules: dict[str, RLModule] = {}
        for module_id, spec in list(self.rl_module_specs.items()):
            if self.inference_only and spec.learner_only:
                continue
            if self.inference_only and not spec.inference_only:
                spec = replace(spec, inference_only=True)
            self.add_module(module_id, spec.build())

    def add_module(self, module_id: str, module: Any, *, override: bool = False) -> None:
        """Add a module under an id; `rl_module_specs` gets its spec.

        Args:
            module_id: The id.
            module: The module; an RLModule.
            override: Replace the module that has the id.

        Raises:
            ConfigError: the id is taken and `override` is False, or `module` is no RLModule.
        """
        if not isinstance(module, RLModule):
            raise _refuse(module_id, "an RLModule", type(module).__name__, "build its RLModuleSpec first")
        if module_id in self._rl_modules and not override:
            raise _refuse(module_id, "an id that is free", repr(module_id), "pass override=True to replace the module")
        self.inference_only = self.inference_only and module.inference_only
        self._rl_modules[module_id] = module
        self.rl_module_specs[module_id] = RLModuleSpec.from_module(module)
        self._modules.pop(module_id, None)
        if isinstance(module, nn.Module):
            self._modules[module_id] = module  # past nn.Module.add_module: ids may hold dots or equal attributes

    def remove_module(self, module_id: str, *, raise_err_if_not_found: bool = True) -> None:
        """Remove a module.

        Raises:
            UnknownNameError: there is none under the id and `raise_err_if_not_found` is True.
        """
        if raise_err_if_not_found or module_id in self._rl_modules:
            self[module_id]
            del self._rl_modules[module_id], self.rl_module_specs[module_id]
            self._modules.pop(module_id, None)

    def __contains__(self, module_id: object) -> bool:
        return module_id in self._rl_modules

    def __getitem__(self, module_id: str) -> RLModule:
        try:
            return self._rl_modules[module_id]
        except KeyError:
            raise UnknownNameError(
                "MultiRLModule",
                expected="the id of one of its modules",
                found=repr(module_id),
                do=nearest(str(module_id), map(str, self._rl_modules)),
            ) from None

    def __len__(self) -> int:
        return len(self._rl_modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rl_modules)

    def __bool__(self) -> bool:
        return True

    def get(self, module_id: str, default: RLModule | None = None) -> RLModule | None:
        """The module under an id, or `default`."""
        return self._rl_modules.get(module_id, default)

    def keys(self) -> KeysView[str]:
        """The module ids."""
        return self._rl_modules.keys()

    def values(self) -> ValuesView[RLModule]:
        """The modules."""
        return self._rl_modules.values()

    def items(self) -> ItemsView[str, RLModule]:
        """Pairs of module id and module."""
        return self._rl_modules.items()

    def foreach_module(self, func: Callable[..., Any], *, return_dict: bool = False, **kwargs: Any) -> Any:
        """Call `func(module_id, module, **kwargs)` for every module.

        Args:
            func: The function.
            return_dict: Give a dict of module ids instead of a list.
            **kwargs: Handed to `func`.
        """
        results = {module_id: func(module_id, module.unwrapped(), **kwargs) for module_id, module in self.items()}
        return results if return_dict else list(results.values())

    def is_stateful(self) -> bool:
        """True if any of the modules has a recurrent state."""
        return any(module.is_stateful() for module in self._rl_modules.values())

    def get_initial_state(self) -> dict[str, Any]:
        """Each module's initial state under its id."""
        return {module_id: module.get_initial_state() for module_id, module in self.items()}

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {key: self._rl_modules[key].forward_inference(batch[key], **kwargs) for key in self._present(batch)}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {key: self._rl_modules[key].forward_exploration(batch[key], **kwargs) for key in self._present(batch)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {key: self._rl_modules[key].forward_train(batch[key], **kwargs) for key in self._present(batch)}

    def _present(self, batch: dict[str, Any]) -> list[str]:
        """The ids of a batch that have a module; columns of its own a batch may carry beside them."""
        present = [key for key in batch if key in self._rl_modules]
        if batch and not present:
            raise BatchLayoutError(
                "MultiRLModule",
                expected=f"a batch keyed by module id ({', '.join(map(str, self._rl_modules)) or 'none'})",
                found=f"keys {', '.join(map(str, batch))}",
                do="put the columns under their module id: {'default_policy': {'obs': ...}}",
            )
        return present

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        _ask_the_module("get_inference_action_dist_cls")

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        _ask_the_module("get_exploration_action_dist_cls")

    def get_train_action_dist_cls(self) -> type[Distribution]:
        _ask_the_module("get_train_action_dist_cls")

    def as_multi_rl_module(self) -> MultiRLModule:
        return self

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Each module's state under its id.

        Args:
            components: The ids to take; None takes all.
            not_components: Ids to leave out.
            inference_only: Leave out learner-only modules and what acting does not need.

        Raises:
            UnknownNameError: a component is no module id.
        """
        parts = {
            module_id: partial(module.get_state, inference_only=inference_only, **kwargs)
            for module_id, module in self.items()
        }
        expected = "the id of one of its modules"
        chosen = select_components(parts, components, not_components, where="MultiRLModule", expected=expected)
        return {key: state for key, state in chosen.items() if not (inference_only and self[key].learner_only)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the modules that `state` holds; the others stay as they are.

        Args:
            state: Module id to what that module's `get_state` gave. One module's weights become another's with
                `multi.set_state({"past": multi["main"].get_state()})`.

        Raises:
            CheckpointError: `state` holds a module that is not here, or one does not fit; all are as they were.
        """
        require_mapping("MultiRLModule.set_state", state)
        unknown = [module_id for module_id in state if module_id not in self]
        if unknown:
            raise CheckpointError(
                "MultiRLModule.set_state",
                expected=f"states of {', '.join(map(str, self)) or 'no modules'}",
                found=f"states of {', '.join(map(str, unknown))}",
                do="add the missing modules first, or leave their states out",
            )
        before: dict[str, Any] = {}

        def put_back() -> None:
            for changed, old_state in before.items():
                self[changed].set_state(old_state)

        with restore_on_error(put_back):
            for module_id, module_state in state.items():
                before[module_id] = self[module_id].get_state()
                with error_context(f"in module {module_id!r}:", Exception):
                    self[module_id].set_state(module_state)

    def restore_from_path(self, path: str | os.PathLike[str], *, component: str | None = None) -> None:
        """Take over the states of all modules, or of one, from a folder that `save_to_path` wrote.

        Args:
            path: The folder.
            component: The id of the one module to restore; None restores all, which have to be those of the folder.

        Raises:
            CheckpointError: the folder cannot be read, lacks a module or has one that is not here, or a state does not
                fit; all modules are as they were.
            UnknownNameError: there is no module `component` here.
        """
        if component is None:
            _load_modules(self, path)
        else:
            self[component]
            self.set_state({component: load_module_state(path, component)})


def _load_modules(
    multi: MultiRLModule, path: str | os.PathLike[str], module_ids: Collection[str] | None = None
) -> None:
    """Give modules of a MultiRLModule the states that they have in a checkpoint.

    Args:
        multi: The modules.
        path: As in `load_module_state`.
        module_ids: Which of them; None for all.

    Raises:
        CheckpointError: the checkpoint lacks one of them, or its state does not fit; with `module_ids` None also if it
            holds another one. Nothing was changed.
        UnknownNameError: an id is none of `multi`.
    """
    states = load_module_state(path)
    chosen = list(multi if module_ids is None else module_ids)
    for module_id in chosen:
        multi[module_id]
    missing = [module_id for module_id in chosen if module_id not in states]
    if missing:
        raise CheckpointError(
            f"checkpoint {path}",
            expected=f"states of {', '.join(map(repr, chosen))}",
            found=f"none of {', '.join(map(repr, missing))}",
            do=f"name modules that are in it. {nearest(str(missing[0]), map(str, states))}",
        )
    multi.set_state(states if module_ids is None else {module_id: states[module_id] for module_id in chosen})


def _refuse(module_id: object, expected: str, found: str, do: str) -> ConfigError:
    where = f"MultiRLModule.add_module({module_id!r})"
    return ConfigError(where, expected=expected, found=found, do=do)


def _ask_the_module(method: str) -> NoReturn:
    raise NotAvailableError(
        f"MultiRLModule.{method}",
        expected="one module",
        found="several, each with action distributions of its own",
        do=f"call multi_rl_module[module_id].{method}()",
    )


def saved_spec(cls: Any, data: Mapping[str, Any], *, allow_imports: bool) -> Any:
    """The spec in a checkpoint, which reads no state from elsewhere: its state is in the checkpoint.

    Args:
        cls: `RLModuleSpec` or `MultiRLModuleSpec`.
        data: What `to_dict` gave.
        allow_imports: Whether a class that is not built in may be imported.

    Raises:
        CheckpointError: the spec, or one inside it, has a `load_state_path`.
    """
    spec = cls.from_dict(data, allow_imports=allow_imports)
    for part in (spec, *getattr(spec, "rl_module_specs", {}).values()):
        if part.load_state_path is not None:
            raise CheckpointError(
                "the spec in a checkpoint",
                expected="no load_state_path, because the state is in the checkpoint",
                found=repr(part.load_state_path)[:120],
                do="build the module, and call its restore_from_path",
            )
    return spec


def _hidden_layers(module: nn.Module) -> Iterator[str]:
    """Attributes with layers that would train, and that torch does not see in a list, tuple or dict."""
    seen = {id(part) for part in (*module.modules(), *module.parameters())}

    def would_train(value: Any) -> bool:
        if isinstance(value, nn.Module):
            return id(value) not in seen and any(part.requires_grad for part in value.parameters())
        if isinstance(value, nn.Parameter):
            return id(value) not in seen and value.requires_grad
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return any(map(would_train, parts))

    for path, owner in module.named_modules():
        for name, value in vars(owner).items():
            if name != "model_config" and isinstance(value, (list, tuple, dict)) and would_train(value):
                yield f"{path}.{name}" if path else name


def _warn_of_hidden_layers(module: nn.Module) -> None:
    names = list(_hidden_layers(module))
    if names:
        warning = EpibatchWarning(
            f"module {type(module).__name__}, attribute {names[0]!r}",
            expected="layers where torch finds them, or layers without gradients",
            found="a list, tuple or dict of layers: they are not trained, not saved and not sent to runners",
            do="put them into nn.ModuleList or nn.ModuleDict; or call requires_grad_(False) on frozen ones",
        )
        warnings.warn(warning, stacklevel=3)


@dataclass
class RLModuleSpec:
    """A module class and the arguments to build it with.

    Args:
        module_class: The RLModule subclass; None takes the default actor-critic for the spaces.
        observation_space: What the module sees.
        action_space: What it decides on.
        inference_only: Build it for acting only.
        learner_only: Build it on learners only.
        model_config: A dict of options or a `DefaultModelConfig`.
        load_state_path: A checkpoint that `save_to_path` of such a module wrote, from which a newly built one takes its
            state; `"folder/main"` for the module `main` of several.

    Examples:
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
            ConfigError: `module_class` is no RLModule class, or has a constructor with other keywords.
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
        options = _options_of(self, _OPTIONS)
        signature = inspect.signature(module_class)
        try:
            signature.bind(**options)
        except TypeError as error:
            raise ConfigError(
                f"RLModuleSpec, {module_class.__name__}(...)",
                expected=f"a constructor with the keywords of RLModule: {', '.join(options)}",
                found=f"{module_class.__name__}.__init__{signature}: {error}",
                do="write setup(self) in place of __init__: layers go there, options of your own into model_config",
            ) from None
        make = partial(module_class, **options)
        if module_class.__module__.startswith(RLModule.__module__.rpartition(".")[0]):
            count_weights(make)
        module = make()
        if isinstance(module, nn.Module):
            _warn_of_hidden_layers(module)
        if self.load_state_path is not None:
            module.restore_from_path(self.load_state_path)
        return module

    @classmethod
    def from_module(cls, module: RLModule) -> RLModuleSpec:
        """The spec that builds a module like `module`."""
        module = module.unwrapped()
        return cls(module_class=type(module), **_options_of(module, _OPTIONS))

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data, for JSON and YAML; a `DefaultModelConfig` becomes the dict of its options.

        Raises:
            ConfigError: something in it is code: a class defined in a script, a function among the options.
            SpaceError: a space that cannot be described.

        Examples:
            >>> RLModuleSpec(observation_space=gym.spaces.Discrete(3)).to_dict()["observation_space"]["n"]
            3
        """
        data = {"module_class": class_name(self.module_class, "RLModuleSpec.to_dict"), **fields_to_data(self, _OPTIONS)}
        return data if self.load_state_path is None else {**data, **fields_to_data(self, ("load_state_path",))}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, allow_imports: bool = False) -> RLModuleSpec:
        """The spec that `to_dict` expressed.

        Args:
            d: What `to_dict` gave.
            allow_imports: True if a custom class may be imported by its path; importing runs code.

        Raises:
            ConfigError: unknown entries.
            RegistryError: the class is an import path, and imports are not allowed, or it cannot be imported.
            SpaceError: a space cannot be read.
        """
        fields = fields_from_data(cls, d, ("module_class", *_OPTIONS, "load_state_path"))
        name = fields.pop("module_class", None)
        return cls(
            module_class=class_from_name(name, f"{cls.__name__}.from_dict", allow_imports=allow_imports), **fields
        )

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """A MultiRLModuleSpec with this one under the default module id."""
        return MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: self}, inference_only=self.inference_only)


Heads: TypeAlias = Literal["actor_critic", "q_values", "soft_actor_critic", "implicit_q"]
"""What a default module gives: a policy and values, the value of each action, a policy and values of its actions, or
all of these."""


def default_module_spec(
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    model_config: Any = None,
    heads: Heads = "actor_critic",
) -> RLModuleSpec:
    """The spec of the default module for some spaces.

    Args:
        observation_space: What the module sees: Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples.
        action_space: Likewise; integer Boxes need bounds.
        model_config: A `DefaultModelConfig`, a dict of its fields, or None; `use_lstm` or `use_gru` makes it recurrent.
        heads: "actor_critic" for a policy and a value function, as PPO needs them; "q_values" for the value of each
            action of a Discrete space (DQN); "soft_actor_critic" for a policy and `num_critics` critics (SAC);
            "implicit_q" for these and a value function (IQL).

    Raises:
        SpaceError: no default module takes the spaces; the message says what to do.
        ConfigError: unknown or wrong options in `model_config`; or heads that do not exist, or have no memory.

    Examples:
        >>> spec = default_module_spec(gym.spaces.Discrete(5), gym.spaces.Discrete(2), {"use_lstm": True})
        >>> spec.module_class.__name__
        'DefaultLSTMActorCritic'
    """
    config = DefaultModelConfig.from_dict(model_config)
    group_inputs(observation_space, config, with_critic=False)
    distribution_for(action_space)
    memory = "LSTM" if config.use_lstm else "GRU" if config.use_gru else ""
    names = {
        "actor_critic": f"Default{memory}ActorCritic",
        "q_values": "DefaultQNetwork",
        "soft_actor_critic": "DefaultSoftActorCritic",
        "implicit_q": "DefaultImplicitQ",
    }
    if heads not in names:
        expected = " or ".join(map(repr, names))
        raise ConfigError("heads of a default module", expected=expected, found=repr(heads), do="correct it")
    name = names[heads]
    return RLModuleSpec(
        module_class=class_from_name(name, "default_module_spec", allow_imports=False),
        observation_space=observation_space,
        action_space=action_space,
        model_config=config if model_config is None else model_config,
    )


@dataclass
class MultiRLModuleSpec:
    """The specs of several modules and the class that holds them.

    Args:
        multi_rl_module_class: MultiRLModule or a subclass.
        observation_space: Handed to the class.
        action_space: Handed to the class.
        inference_only: Build all modules for acting only and leave learner-only ones out; None if all specs are for
            acting only. A spec that is added later and is not ends that.
        model_config: Handed to the class.
        rl_module_specs: Module id to RLModuleSpec.
        load_state_path: A checkpoint that `save_to_path` of a MultiRLModule wrote, from which newly built modules take
            their states.
        modules_to_load: The ids of those that do; None for all, and then these have to be the checkpoint's modules.

    Raises:
        ConfigError: a value of `rl_module_specs` is no RLModuleSpec, or there are `modules_to_load` without a path.

    Examples:
        >>> box, choice = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
        >>> spec = RLModuleSpec(observation_space=box, action_space=choice)
        >>> sorted(MultiRLModuleSpec(rl_module_specs={"red": spec, "blue": spec}).build().keys())
        ['blue', 'red']
    """

    multi_rl_module_class: type[MultiRLModule] = MultiRLModule
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    inference_only: bool | None = None
    model_config: Any = None
    rl_module_specs: dict[str, RLModuleSpec] = field(default_factory=dict)
    load_state_path: str | os.PathLike[str] | None = None
    modules_to_load: Collection[str] | None = None

    def __post_init__(self) -> None:
        specs, self.rl_module_specs, setting = self.rl_module_specs, {}, self.inference_only
        self.add_modules(specs)
        self.inference_only = all(spec.inference_only for spec in specs.values()) if setting is None else setting
        if self.modules_to_load is not None and self.load_state_path is None:
            raise ConfigError(
                "modules_to_load",
                expected="a load_state_path to load them from",
                found="none",
                do="give load_state_path too",
            )

    def add_modules(self, module_specs: Mapping[str, RLModuleSpec], override: bool = True) -> None:
        """Add specs under their ids.

        Args:
            module_specs: Module id to RLModuleSpec.
            override: Replace specs whose id is taken; with False they are kept.

        Raises:
            ConfigError: a value is no RLModuleSpec.
        """
        for module_id, spec in module_specs.items():
            if not isinstance(spec, RLModuleSpec):
                raise ConfigError(
                    f"rl_module_specs[{module_id!r}]",
                    expected="an RLModuleSpec",
                    found=type(spec).__name__,
                    do="wrap it: RLModuleSpec(module_class=...)",
                )
            if override or module_id not in self.rl_module_specs:
                self.rl_module_specs[module_id] = spec
                self.inference_only = self.inference_only and spec.inference_only

    def remove_modules(self, module_ids: str | Collection[str]) -> None:
        """Remove the specs of some ids.

        Raises:
            UnknownNameError: an id has no spec.
        """
        for module_id in [module_ids] if isinstance(module_ids, str) else module_ids:
            if module_id not in self.rl_module_specs:
                hint = nearest(module_id, self.rl_module_specs)
                raise UnknownNameError(
                    "MultiRLModuleSpec.remove_modules", expected="a module id", found=repr(module_id), do=hint
                )
            del self.rl_module_specs[module_id]

    def __getitem__(self, module_id: str) -> RLModuleSpec:
        if module_id not in self.rl_module_specs:
            hint = nearest(module_id, self.rl_module_specs)
            raise UnknownNameError("MultiRLModuleSpec", expected="a module id", found=repr(module_id), do=hint)
        return self.rl_module_specs[module_id]

    def __contains__(self, module_id: object) -> bool:
        return module_id in self.rl_module_specs

    def build(self, module_id: str | None = None) -> RLModule:
        """Build the MultiRLModule, or only the module under one id, which takes nothing from `load_state_path`.

        Raises:
            CheckpointError: a state that is to be loaded cannot be read, or does not fit.
        """
        if module_id is not None:
            return self[module_id].build()
        multi = self.multi_rl_module_class(rl_module_specs=self.rl_module_specs, **_options_of(self, _FIELDS))
        if self.load_state_path is not None:
            _load_modules(multi, self.load_state_path, self.modules_to_load)
        return multi

    @classmethod
    def from_module(cls, module: MultiRLModule) -> MultiRLModuleSpec:
        """The spec that builds a MultiRLModule like `module`."""
        specs = {key: RLModuleSpec.from_module(value) for key, value in module.items()}
        return cls(multi_rl_module_class=type(module), rl_module_specs=specs, **_options_of(module, _FIELDS))

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data, for JSON and YAML; see `RLModuleSpec.to_dict`.

        Raises:
            ConfigError: something in it is code; the message names the module.
            SpaceError: a space that cannot be described.
        """
        specs: dict[str, Any] = {}
        for module_id, spec in self.rl_module_specs.items():
            with error_context(f"in rl_module_specs[{module_id!r}]:"):
                specs[module_id] = spec.to_dict()
        name = class_name(self.multi_rl_module_class, "MultiRLModuleSpec.to_dict")
        loading = [key for key in _LOADING if getattr(self, key) is not None]
        fields = fields_to_data(self, (*_FIELDS, *loading))
        return {"multi_rl_module_class": name, **fields, "rl_module_specs": specs}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, allow_imports: bool = False) -> MultiRLModuleSpec:
        """The spec that `to_dict` expressed.

        Args:
            d: What `to_dict` gave.
            allow_imports: True if custom classes may be imported by their paths; importing runs code.

        Raises:
            ConfigError: unknown entries.
            RegistryError: a class is an import path, and imports are not allowed, or it cannot be imported.
            SpaceError: a space cannot be read.

        Examples:
            >>> spec = MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(model_config={"fcnet_hiddens": [8]})})
            >>> MultiRLModuleSpec.from_dict(spec.to_dict()) == spec
            True
        """
        fields = fields_from_data(cls, d, ("multi_rl_module_class", *_FIELDS, "rl_module_specs", *_LOADING))
        where, allowed = f"{cls.__name__}.from_dict", {"allow_imports": allow_imports}
        name = fields.pop("multi_rl_module_class", "MultiRLModule")
        specs: dict[str, RLModuleSpec] = {}
        for module_id, spec in fields.pop("rl_module_specs", {}).items():
            with error_context(f"in rl_module_specs[{module_id!r}]:"):
                specs[module_id] = RLModuleSpec.from_dict(spec, **allowed)
        return cls(multi_rl_module_class=class_from_name(name, where, **allowed), rl_module_specs=specs, **fields)

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """This spec."""
        return self


def _built(path: str | os.PathLike[str], component: str | None, *, allow_imports: bool) -> RLModule:
    """Build a module, or one of several, from a checkpoint, and give it its state."""
    folder, name = split_path(path, component)
    content = load_state(folder)
    spec = content[SPEC]["spec"] if is_description(content) else None
    if spec is None:
        found = str(content[SPEC]["not_data"]) if is_description(content) else "a state without a description"
        raise _unfit(folder, found, "build the module, and call its restore_from_path")
    state = state_at(content[STATE], name, folder)
    with restoring(f"checkpoint {folder}", SPEC):
        is_multi = "rl_module_specs" in spec
        if name and is_multi:
            spec, is_multi = spec["rl_module_specs"].get(name), False
    cls: Any = MultiRLModuleSpec if is_multi else RLModuleSpec
    try:
        with weight_limit(arrays_size(content)), restoring(f"checkpoint {folder}", SPEC):
            module: RLModule = saved_spec(cls, spec, allow_imports=allow_imports).build()
    except EpibatchError as error:
        do = "pass allow_imports=True for a checkpoint that you trust, or build the module and call restore_from_path"
        raise _unfit(folder, str(error), do) from error
    module.set_state(state)
    return module


def _unfit(folder: Path, found: str, do: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {folder}",
        expected="a module that can be built from data",
        found=found.replace("\n", "\n            "),
        do=do,
    )
