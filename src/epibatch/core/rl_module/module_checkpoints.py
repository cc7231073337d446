"""States in checkpoints of modules, which hold a spec and a state each, in one folder without pickle."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epibatch.core.checkpoints import is_checkpoint, load_state
from epibatch.core.errors import CheckpointError, nearest

if TYPE_CHECKING:
    from epibatch.core.rl_module.multi_rl_module import MultiRLModule

__all__ = ["SPEC", "STATE", "is_description", "load_modules", "part_of", "read_states", "split_path"]

SPEC, STATE = "rl_module", "state"


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
    folder, names = split_path(path, component)
    content = load_state(folder)
    state = content[STATE] if is_description(content) else content
    return part_of(state, names, folder)


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


def is_description(content: Any) -> bool:
    """True if a checkpoint's content is a module's spec and state, rather than a state alone."""
    if not isinstance(content, Mapping) or content.keys() != {SPEC, STATE}:
        return False
    return isinstance(content[SPEC], Mapping) and {"spec", "not_data"} <= content[SPEC].keys()


def split_path(path: str | os.PathLike[str], component: str | None) -> tuple[Path, str]:
    """Return a checkpoint's folder, and the names after it."""
    folder, names = Path(path), [component] if component else []
    for parent in folder.parents if not folder.exists() else ():
        if is_checkpoint(parent):
            return parent, "/".join([folder.relative_to(parent).as_posix(), *names])
    return folder, "/".join(names)


def part_of(state: Any, names: str, folder: Path) -> dict[str, Any]:
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
