"""Several RLModules under their ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium as gym
from torch import nn

from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ConfigError,
    NotAvailableError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.rl_module.module_checkpoints import load_modules, read_states
from epibatch.core.rl_module.rl_module import RLModule
from epibatch.core.rl_module.rl_module_spec import RLModuleSpec
from epibatch.core.rl_module.torch_rl_module import TorchRLModule
from epibatch.core.state_codec import state_parts

if TYPE_CHECKING:
    from epibatch.core.distributions.distribution import Distribution

__all__ = ["MultiRLModule"]


class MultiRLModule(TorchRLModule):
    """A mapping of module ids to RLModules that is one RLModule itself.

    Batches are dicts of module ids; a forward method calls the modules that have a batch. All
    parameters of torch modules are reachable through the `torch.nn.Module` interface.

    Args:
        rl_module_specs: module id to RLModuleSpec; the modules are built here, in this order. With
            `inference_only` they are built for acting only and learner-only ones are left out.
        observation_space: kept for callers; every module has its own.
        action_space: likewise.
        inference_only: build for acting only; None if all specs are for acting only. A module that is added later and
            can be trained ends that.
        learner_only: build on learners only.
        model_config: options for subclasses that share parts between modules.

    Example:
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
            module_id: the id.
            module: the module; an RLModule.
            override: replace the module that has the id.

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
            func: the function.
            return_dict: give a dict of module ids instead of a list.
            **kwargs: handed to `func`.
        """
        results = {module_id: func(module_id, module.unwrapped(), **kwargs) for module_id, module in self.items()}
        return results if return_dict else list(results.values())

    def is_stateful(self) -> bool:
        """Whether any of the modules has a recurrent state."""
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
            components: the ids to take; None takes all.
            not_components: ids to leave out.
            inference_only: leave out learner-only modules and what acting does not need.

        Raises:
            UnknownNameError: a component is no module id.
        """
        chosen = set(self if components is None else _names(components))
        left_out = set(_names(not_components))
        for module_id in chosen | left_out:
            self[module_id]
        return {
            module_id: module.get_state(inference_only=inference_only, **kwargs)
            for module_id, module in self.items()
            if module_id in chosen - left_out and not (inference_only and module.learner_only)
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the modules that `state` holds; the others stay as they are.

        Args:
            state: module id to what that module's `get_state` gave. One module's weights become another's with
                `multi.set_state({"past": multi["main"].get_state()})`.

        Raises:
            CheckpointError: `state` holds a module that is not here, or one does not fit; all are as they were.
        """
        state_parts("MultiRLModule.set_state", state)
        unknown = [module_id for module_id in state if module_id not in self]
        if unknown:
            raise CheckpointError(
                "MultiRLModule.set_state",
                expected=f"states of {', '.join(map(str, self)) or 'no modules'}",
                found=f"states of {', '.join(map(str, unknown))}",
                do="add the missing modules first, or leave their states out",
            )
        before: dict[str, Any] = {}
        for module_id, module_state in state.items():
            before[module_id] = self[module_id].get_state()
            try:
                self[module_id].set_state(module_state)
            except Exception as error:
                add_context(error, f"in module {module_id!r}:")
                for changed, own in before.items():
                    self[changed].set_state(own)
                raise

    def restore_from_path(self, path: str | os.PathLike[str], *, component: str | None = None) -> None:
        """Take over the states of all modules, or of one, from a folder that `save_to_path` wrote.

        Args:
            path: the folder.
            component: the id of the one module to restore; None restores all, which have to be those of the folder.

        Raises:
            CheckpointError: the folder cannot be read, lacks a module or has one that is not here, or a state does not
                fit; all modules are as they were.
            UnknownNameError: there is no module `component` here.
        """
        if component is None:
            load_modules(self, path)
        else:
            self[component]
            self.set_state({component: read_states(path, component)})


def _names(names: str | Collection[str] | None) -> Collection[str]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else names


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
