"""How to build a MultiRLModule, as data; how to build a module from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym

from epibatch.core.checkpoints import arrays_size, load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError, UnknownNameError, add_context, nearest
from epibatch.core.restoring import restoring
from epibatch.core.rl_module.module_checkpoints import SPEC, STATE, is_description, load_modules, part_of, split_path
from epibatch.core.rl_module.multi_rl_module import MultiRLModule
from epibatch.core.rl_module.rl_module import RLModule
from epibatch.core.rl_module.rl_module_spec import RLModuleSpec, saved_spec, weights_at_most
from epibatch.core.rl_module.spec_data import class_from_name, class_name, fields_from_data, fields_to_data

__all__ = ["MultiRLModuleSpec", "build_module", "write_module"]

_FIELDS = ("observation_space", "action_space", "inference_only", "model_config")
_LOADING = ("load_state_path", "modules_to_load")


@dataclass
class MultiRLModuleSpec:
    """The specs of several modules and the class that holds them.

    Args:
        multi_rl_module_class: MultiRLModule or a subclass.
        observation_space: handed to the class.
        action_space: handed to the class.
        inference_only: build all modules for acting only and leave learner-only ones out; None if all specs are for
            acting only. A spec that is added later and is not ends that.
        model_config: handed to the class.
        rl_module_specs: module id to RLModuleSpec.
        load_state_path: a checkpoint that `save_to_path` of a MultiRLModule wrote, from which newly built modules take
            their states.
        modules_to_load: the ids of those that do; None for all, and then these have to be the checkpoint's modules.

    Raises:
        ConfigError: a value of `rl_module_specs` is no RLModuleSpec, or there are `modules_to_load` without a path.

    Example:
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
        specs, self.rl_module_specs, given = self.rl_module_specs, {}, self.inference_only
        self.add_modules(specs)
        self.inference_only = all(spec.inference_only for spec in specs.values()) if given is None else given
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
            module_specs: module id to RLModuleSpec.
            override: replace specs whose id is taken; with False they are kept.

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
                known = nearest(module_id, self.rl_module_specs)
                raise UnknownNameError(
                    "MultiRLModuleSpec.remove_modules", expected="a module id", found=repr(module_id), do=known
                )
            del self.rl_module_specs[module_id]

    def __getitem__(self, module_id: str) -> RLModuleSpec:
        if module_id not in self.rl_module_specs:
            known = nearest(module_id, self.rl_module_specs)
            raise UnknownNameError("MultiRLModuleSpec", expected="a module id", found=repr(module_id), do=known)
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
        multi = self.multi_rl_module_class(
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            model_config=self.model_config,
            rl_module_specs=self.rl_module_specs,
        )
        if self.load_state_path is not None:
            load_modules(multi, self.load_state_path, self.modules_to_load)
        return multi

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

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data, for JSON and YAML; see `RLModuleSpec.to_dict`.

        Raises:
            ConfigError: something in it is code; the message names the module.
            SpaceError: a space that cannot be described.
        """
        specs: dict[str, Any] = {}
        for module_id, spec in self.rl_module_specs.items():
            try:
                specs[module_id] = spec.to_dict()
            except EpibatchError as error:
                add_context(error, f"in rl_module_specs[{module_id!r}]:")
                raise
        name = class_name(self.multi_rl_module_class, "MultiRLModuleSpec.to_dict")
        loading = [key for key in _LOADING if getattr(self, key) is not None]
        fields = fields_to_data(self, (*_FIELDS, *loading))
        return {"multi_rl_module_class": name, **fields, "rl_module_specs": specs}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, allow_imports: bool = False) -> MultiRLModuleSpec:
        """The spec that `to_dict` expressed.

        Args:
            d: what `to_dict` gave.
            allow_imports: whether classes of yours may be imported by their paths; importing runs code.

        Raises:
            ConfigError: unknown entries.
            RegistryError: a class is an import path, and imports are not allowed, or it cannot be imported.
            SpaceError: a space cannot be read.

        Example:
            >>> spec = MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(model_config={"fcnet_hiddens": [8]})})
            >>> MultiRLModuleSpec.from_dict(spec.to_dict()) == spec
            True
        """
        fields = fields_from_data(cls, d, ("multi_rl_module_class", *_FIELDS, "rl_module_specs", *_LOADING))
        where, allowed = f"{cls.__name__}.from_dict", {"allow_imports": allow_imports}
        name = fields.pop("multi_rl_module_class", "MultiRLModule")
        specs: dict[str, RLModuleSpec] = {}
        for module_id, spec in fields.pop("rl_module_specs", {}).items():
            try:
                specs[module_id] = RLModuleSpec.from_dict(spec, **allowed)
            except EpibatchError as error:
                add_context(error, f"in rl_module_specs[{module_id!r}]:")
                raise
        return cls(multi_rl_module_class=class_from_name(name, where, **allowed), rl_module_specs=specs, **fields)

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """This spec."""
        return self


def write_module(path: str | os.PathLike[str], module: RLModule, state: Mapping[str, Any]) -> str:
    """Write a module's state and, where it can be expressed as data, its spec.

    Args:
        path: the folder.
        module: the module.
        state: its state.

    Raises:
        CheckpointError: the folder holds something else, or the state something that is no data.
    """
    description: dict[str, Any] = {"spec": None, "not_data": None}
    try:
        several = isinstance(module, MultiRLModule)
        spec: Any = MultiRLModuleSpec if several else RLModuleSpec
        description["spec"] = spec.from_module(module).to_dict()
    except EpibatchError as error:
        description["not_data"] = str(error)
    return str(save_state(path, {SPEC: description, STATE: dict(state)}))


def build_module(path: str | os.PathLike[str], component: str | None, *, allow_imports: bool) -> RLModule:
    """Build a module, or one of several, from a checkpoint, and give it its state.

    Args:
        path: as in `read_states`.
        component: likewise.
        allow_imports: whether classes that are not built in may be imported; importing runs code.

    Raises:
        CheckpointError: there is no such checkpoint or part, or the module cannot be built from data.
    """
    folder, name = split_path(path, component)
    content = load_state(folder)
    spec = content[SPEC]["spec"] if is_description(content) else None
    if spec is None:
        found = str(content[SPEC]["not_data"]) if is_description(content) else "a state without a description"
        raise _unfit(folder, found, "build the module, and call its restore_from_path")
    state = part_of(content[STATE], name, folder)
    with restoring(f"checkpoint {folder}", SPEC):
        several = "rl_module_specs" in spec
        if name and several:
            spec, several = spec["rl_module_specs"].get(name), False
    cls: Any = MultiRLModuleSpec if several else RLModuleSpec
    try:
        with weights_at_most(arrays_size(content)), restoring(f"checkpoint {folder}", SPEC):
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
