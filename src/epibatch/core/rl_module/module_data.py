"""Modules as data: what specs and checkpoints hold, finding a state there, and how large networks may be."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

import torch

from epibatch.core.checkpoints import is_checkpoint, load_state
from epibatch.core.errors import CheckpointError, ConfigError, RegistryError, error_context, nearest
from epibatch.core.imports import load_object
from epibatch.core.registry import plain_data
from epibatch.core.space_dicts import space_from_dict, space_to_dict

_PACKAGE = "epibatch.core.rl_module"
_BUILT_IN = (
    *("DefaultActorCritic", "DefaultGRUActorCritic", "DefaultLSTMActorCritic"),
    *("DefaultImplicitQ", "DefaultQNetwork", "DefaultSoftActorCritic", "MultiRLModule"),
)
_SPACES = ("observation_space", "action_space")


def class_name(cls: type | None, where: str) -> str | None:
    """The name under which a class is found again: of a built-in one its own, of others the import path.

    Args:
        cls: The class; None stays None.
        where: The beginning of the error message.

    Raises:
        ConfigError: the class is defined in a function or a script.

    Examples:
        >>> from epibatch.core.rl_module import DefaultActorCritic
        >>> class_name(DefaultActorCritic, "an example")
        'DefaultActorCritic'
    """
    if cls is None:
        return None
    name = cls.__name__
    if name in _BUILT_IN and cls is load_object(f"{_PACKAGE}:{name}", where):
        return name
    if "<locals>" in cls.__qualname__ or cls.__module__ == "__main__":
        _refuse(where, f"the class {cls.__qualname__}, which is defined in a function or a script")
    return f"{cls.__module__}:{cls.__qualname__}"


def class_from_name(name: str | None, where: str, *, allow_imports: bool) -> Any:
    """The class that `class_name` named.

    Raises:
        RegistryError: it is no built-in one and imports are not allowed, or it cannot be imported.
    """
    if name is None:
        return None
    if name in _BUILT_IN:
        return load_object(f"{_PACKAGE}:{name}", where)
    if not isinstance(name, str) or ":" not in name:
        raise RegistryError(
            where,
            expected="the name of a module class, or an import path module:Class",
            found=repr(name),
            do=nearest(str(name), _BUILT_IN),
        )
    if not allow_imports:
        raise RegistryError(
            where,
            expected="a module class that may be imported",
            found=f"the import path {name!r}, which runs code when it is loaded",
            do="pass allow_imports=True if you trust whoever wrote it",
        )
    return load_object(name, f"{where}: module class {name!r}")


def fields_to_data(spec: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Some fields of a spec: spaces, options and plain values.

    Raises:
        ConfigError: a field holds code.
    """
    where = f"{type(spec).__name__}.to_dict"
    data: dict[str, Any] = {}
    for name in names:
        value = getattr(spec, name)
        if name in _SPACES:
            with error_context(f"in {where}, {name}:"):
                data[name] = None if value is None else space_to_dict(value)
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        try:
            data[name] = plain_data(str(value) if isinstance(value, Path) else value)
        except TypeError as error:
            _refuse(where, f"{name} with {error}")
    return data


def fields_from_data(cls: type, data: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the keywords of a spec's class from the output of `fields_to_data`.

    Raises:
        ConfigError: it is no dict, or has entries that the class does not know.
        SpaceError: a space cannot be read.
    """
    where = f"{cls.__name__}.from_dict"
    if not isinstance(data, Mapping):
        raise ConfigError(
            where, expected="a dict", found=type(data).__name__, do=f"pass what {cls.__name__}.to_dict gave"
        )
    for name in data:
        if name not in names:
            raise ConfigError(where, expected="entries of to_dict", found=repr(name), do=nearest(str(name), names))
    return {
        name: space_from_dict(value) if name in _SPACES and value is not None else value for name, value in data.items()
    }


def _refuse(where: str, found: str) -> NoReturn:
    raise ConfigError(
        where,
        expected="a spec that is data: an importable class, spaces, and options of plain values",
        found=found,
        do="define the class in a module, and name functions instead of passing them",
    )


SPEC, STATE = "rl_module", "state"


def load_module_state(path: str | os.PathLike[str], component: str | None = None) -> dict[str, Any]:
    """The state of a module, or of one of several, in a checkpoint.

    Args:
        path: A folder that `save_to_path` wrote; it may be followed by the id of a module in it, as in
            `"checkpoint/main"`.
        component: The id of a module in it. Of other states than modules' the names of the parts that lead there,
            with `/` between them: `"state/learner/module/main"` in the checkpoint of an Algorithm.

    Raises:
        CheckpointError: there is no such checkpoint or part.
    """
    folder, names = split_path(path, component)
    content = load_state(folder)
    state = content[STATE] if is_description(content) else content
    return state_at(state, names, folder)


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


def state_at(state: Any, names: str, folder: Path) -> dict[str, Any]:
    """Return the part of a state at `names`, with slashes between them; a key may contain slashes itself."""
    while names:
        keys = [key for key in state if isinstance(key, str)] if isinstance(state, Mapping) else []
        matches = [key for key in keys if names == key or names.startswith(f"{key}/")]
        if not matches:
            raise CheckpointError(
                f"checkpoint {folder}",
                expected="a module, or another part, that is in it",
                found=repr(names),
                do=nearest(names.partition("/")[0], keys),
            )
        key = max(matches, key=len)
        state, names = state[key], names[len(key) + 1 :]
    if not isinstance(state, Mapping):
        found = type(state).__name__
        raise CheckpointError(
            f"checkpoint {folder}", expected="the state of a module", found=found, do="name the module"
        )
    return dict(state)


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


_budget: ContextVar[_Budget | None] = ContextVar("weight_limit", default=None)


@contextmanager
def weight_limit(nbytes: int) -> Iterator[None]:
    """Bound the weights of built-in modules that are built inside, all together.

    The settings of a network in a file may ask for any amount of memory; its weights in the file say how much is right.

    Args:
        nbytes: How many bytes they may take.
    """
    token = _budget.set(_Budget(nbytes))
    try:
        yield
    finally:
        _budget.reset(token)


def count_weights(make: Callable[[], Any]) -> None:
    """Count the weights of a module that is about to be built, if there is a bound.

    Args:
        make: Builds it.

    Raises:
        CheckpointError: they are too many.
    """
    budget = _budget.get()
    if budget is not None:
        budget.spend(make)
