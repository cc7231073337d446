"""Checkpoints of modules: states, and how to build the modules, in one folder without pickle."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epibatch.core.checkpoints import arrays_size, is_checkpoint, load_state, save_state
from epibatch.core.errors import CheckpointError, EpibatchError, nearest
from epibatch.core.restoring import restoring

if TYPE_CHECKING:
    from epibatch.core.rl_module.multi_rl_module import MultiRLModule
    from epibatch.core.rl_module.rl_module import RLModule

__all__ = ["build_module", "load_modules", "read_states", "write_module"]

_SPEC, _STATE = "rl_module", "state"


def write_module(path: str | os.PathLike[str], module: RLModule, state: Mapping[str, Any]) -> str:
    """Write a module's state and, where it can be expressed as data, its spec.

    Args:
        path: the folder.
        module: the module.
        state: its state.

    Raises:
        CheckpointError: the folder holds something else, or the state something that is no data.
    """
    from epibatch.core.rl_module.multi_rl_module import MultiRLModule
    from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec
    from epibatch.core.rl_module.rl_module_spec import RLModuleSpec

    description: dict[str, Any] = {"spec": None, "not_data": None}
    try:
        several = isinstance(module, MultiRLModule)
        spec: Any = MultiRLModuleSpec if several else RLModuleSpec
        description["spec"] = spec.from_module(module).to_dict()
    except EpibatchError as error:
        description["not_data"] = str(error)
    return str(save_state(path, {_SPEC: description, _STATE: dict(state)}))


def read_states(path: str | os.PathLike[str], component: str | None = None) -> dict[str, Any]:
    """The state of a module, or of one of several, in a checkpoint.

    Args:
        path: a folder that `save_to_path` wrote; behind it there may be the id of a module in it, as in
            `"checkpoint/main"`.
        component: the id of a module in it. Of other states than modules' the names of the parts that lead there,
            with `/` between them: `"state/learner/module/main"` in the checkpoint of an Algorithm.

    Raises:
        CheckpointError: there is no such checkpoint or part.
    """
    folder, names = _split(path, component)
    content = load_state(folder)
    state = content[_STATE] if _is_description(content) else content
    return _part(state, names, folder)


def build_module(path: str | os.PathLike[str], component: str | None, *, allow_imports: bool) -> RLModule:
    """Build a module, or one of several, from a checkpoint, and give it its state.

    Args:
        path: as in `read_states`.
        component: likewise.
        allow_imports: whether classes that are not built in may be imported; importing runs code.

    Raises:
        CheckpointError: there is no such checkpoint or part, or the module cannot be built from data.
    """
    from epibatch.core.rl_module.multi_rl_module_spec import MultiRLModuleSpec
    from epibatch.core.rl_module.rl_module_spec import RLModuleSpec, saved_spec, weights_at_most

    folder, name = _split(path, component)
    content = load_state(folder)
    spec = content[_SPEC]["spec"] if _is_description(content) else None
    if spec is None:
        found = str(content[_SPEC]["not_data"]) if _is_description(content) else "a state without a description"
        raise _unfit(folder, found, "build the module, and call its restore_from_path")
    state = _part(content[_STATE], name, folder)
    with restoring(f"checkpoint {folder}", _SPEC):
        several = "rl_module_specs" in spec
        if name and several:
            spec, several = spec["rl_module_specs"].get(name), False
    cls: Any = MultiRLModuleSpec if several else RLModuleSpec
    try:
        with weights_at_most(arrays_size(content)), restoring(f"checkpoint {folder}", _SPEC):
            module: RLModule = saved_spec(cls, spec, allow_imports=allow_imports).build()
    except EpibatchError as error:
        do = "pass allow_imports=True for a checkpoint that you trust, or build the module and call restore_from_path"
        raise _unfit(folder, str(error), do) from error
    module.set_state(state)
    return module


def load_modules(multi: MultiRLModule, path: str | os.PathLike[str], module_ids: Collection[str] | None = None) -> None:
    """Give modules of a MultiRLModule the states that they have in a checkpoint.

    Args:
        multi: the modules.
        path: as in `read_states`.
        module_ids: which of them; None for all.

    Raises:
        CheckpointError: the checkpoint lacks one of them, or its state does not fit; with `module_ids` None also if it
            holds another one. Nothing was changed.
        UnknownNameError: an id is none of `multi`.
    """
    states = read_states(path)
    chosen = list(multi if module_ids is None else module_ids)
    for module_id in chosen:
        multi[module_id]
    lacking = [module_id for module_id in chosen if module_id not in states]
    if lacking:
        raise CheckpointError(
            f"checkpoint {path}",
            expected=f"states of {', '.join(map(repr, chosen))}",
            found=f"none of {', '.join(map(repr, lacking))}",
            do=f"name modules that are in it. {nearest(str(lacking[0]), map(str, states))}",
        )
    multi.set_state(states if module_ids is None else {module_id: states[module_id] for module_id in chosen})


def _is_description(content: Any) -> bool:
    if not isinstance(content, Mapping) or content.keys() != {_SPEC, _STATE}:
        return False
    return isinstance(content[_SPEC], Mapping) and {"spec", "not_data"} <= content[_SPEC].keys()


def _split(path: str | os.PathLike[str], component: str | None) -> tuple[Path, str]:
    """A checkpoint's folder, and the names behind it."""
    folder, names = Path(path), [component] if component else []
    for parent in folder.parents if not folder.exists() else ():
        if is_checkpoint(parent):
            return parent, "/".join([folder.relative_to(parent).as_posix(), *names])
    return folder, "/".join(names)


def _part(state: Any, names: str, folder: Path) -> dict[str, Any]:
    """What `names`, with slashes between them, lead to; a key may hold slashes itself."""
    while names:
        keys = [key for key in state if isinstance(key, str)] if isinstance(state, Mapping) else []
        fitting = [key for key in keys if names == key or names.startswith(f"{key}/")]
        if not fitting:
            raise CheckpointError(
                f"checkpoint {folder}",
                expected="a module, or another part, that is in it",
                found=repr(names),
                do=nearest(names.partition("/")[0], keys),
            )
        key = max(fitting, key=len)
        state, names = state[key], names[len(key) + 1 :]
    if not isinstance(state, Mapping):
        found = type(state).__name__
        raise CheckpointError(
            f"checkpoint {folder}", expected="the state of a module", found=found, do="name the module"
        )
    return dict(state)


def _unfit(folder: Path, found: str, do: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {folder}",
        expected="a module that can be built from data",
        found=found.replace("\n", "\n            "),
        do=do,
    )
