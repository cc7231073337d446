"""Names of pieces: what a configuration file may say instead of a class.

A piece is found by its registered name. Built-in names stand in a static table (nothing is imported to
list them), other packages offer theirs through the entry-point group `epibatch.connectors`, and a script
uses `register`. A dotted path is code rather than a name and is refused unless the caller allows it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from epibatch.core.errors import PieceError, RegistryError, UnknownNameError, explain, nearest

__all__ = [
    "BUILT_IN_PIECES",
    "ENTRY_POINT_GROUP",
    "PieceEntry",
    "piece_class",
    "piece_entries",
    "piece_name",
    "register",
    "snake_case",
    "unregister",
]

PieceT = TypeVar("PieceT", bound=type)

ENTRY_POINT_GROUP = "epibatch.connectors"
BUILT_IN_OWNER = "epibatch"

_COMMON = "epibatch.connectors.common"
_TO_ENV = "epibatch.connectors.module_to_env"
_LEARNER = "epibatch.connectors.learner"

BUILT_IN_PIECES: dict[str, str] = {
    "add_columns_from_episodes_to_train_batch": (
        f"{_LEARNER}.add_columns_from_episodes_to_train_batch:AddColumnsFromEpisodesToTrainBatch"
    ),
    "add_observations_from_episodes_to_batch": (
        f"{_COMMON}.add_observations_from_episodes_to_batch:AddObservationsFromEpisodesToBatch"
    ),
    "add_one_ts_to_episodes_and_truncate": (
        f"{_LEARNER}.add_one_ts_to_episodes_and_truncate:AddOneTsToEpisodesAndTruncate"
    ),
    "add_states_from_episodes_to_batch": f"{_COMMON}.add_states_from_episodes_to_batch:AddStatesFromEpisodesToBatch",
    "add_time_dim_to_batch_and_zero_pad": f"{_COMMON}.add_time_dim_to_batch_and_zero_pad:AddTimeDimToBatchAndZeroPad",
    "batch_individual_items": f"{_COMMON}.batch_individual_items:BatchIndividualItems",
    "frame_stacking": f"{_COMMON}.frame_stacking:FrameStacking",
    "general_advantage_estimation": f"{_LEARNER}.general_advantage_estimation:GeneralAdvantageEstimation",
    "get_actions": f"{_TO_ENV}.get_actions:GetActions",
    "listify_data_for_vector_env": f"{_TO_ENV}.listify_data_for_vector_env:ListifyDataForVectorEnv",
    "normalize_and_clip_actions": f"{_TO_ENV}.normalize_and_clip_actions:NormalizeAndClipActions",
    "numpy_to_tensor": f"{_COMMON}.numpy_to_tensor:NumpyToTensor",
    "remove_single_ts_time_rank_from_batch": (
        f"{_TO_ENV}.remove_single_ts_time_rank_from_batch:RemoveSingleTsTimeRankFromBatch"
    ),
    "tensor_to_numpy": f"{_COMMON}.tensor_to_numpy:TensorToNumpy",
    "unbatch_to_individual_items": f"{_TO_ENV}.unbatch_to_individual_items:UnBatchToIndividualItems",
}
"""Registered name -> `module path:Class` of every piece that comes with epibatch."""

ALIASES: dict[str, str] = {"add_columns_from_episodes_to_batch": "add_columns_from_episodes_to_train_batch"}
"""A second name of a built-in piece -> its registered name."""

_BOTH = ("env_to_module", "learner")
_BUILT_IN_PIPELINES: dict[str, tuple[str, ...]] = {
    "add_observations_from_episodes_to_batch": _BOTH,
    "add_states_from_episodes_to_batch": _BOTH,
    "add_time_dim_to_batch_and_zero_pad": _BOTH,
    "batch_individual_items": _BOTH,
    "frame_stacking": _BOTH,
    "numpy_to_tensor": _BOTH,
    "tensor_to_numpy": ("module_to_env",),
}

_registered: dict[str, type] = {}


@dataclass(frozen=True)
class PieceEntry:
    """One name of the registry: where its class is, and which package offers it.

    Attributes:
        name: what a configuration writes after `piece:`.
        path: `module path:Class`.
        owner: the distribution, or the module for a piece registered by a script.
        rivals: other distributions that offer a piece under the same name; looking it up is an error.
    """

    name: str
    path: str
    owner: str
    rivals: tuple[str, ...] = ()

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Names of the pipelines that a built-in piece is made for; empty for others, which do not say."""
        if self.owner != BUILT_IN_OWNER:
            return ()
        home = self.path.removeprefix("epibatch.connectors.").partition(".")[0]
        return _BUILT_IN_PIPELINES.get(self.name, (home,))


def snake_case(class_name: str) -> str:
    """The registered form of a class name.

    Example:
        >>> snake_case("FrameStacking"), snake_case("AddOneTsToEpisodes"), snake_case("LSTMState")
        ('frame_stacking', 'add_one_ts_to_episodes', 'lstm_state')
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name)
    return spaced.lower()


# ---------------------------------------------------------------------------------------- registering


@overload
def register(name: PieceT) -> PieceT: ...
@overload
def register(name: str | None = None) -> Callable[[PieceT], PieceT]: ...
def register(name: Any = None) -> Any:
    """Register a piece class, under its class name in snake_case unless a name is given.

    Args:
        name: the name, or nothing; the decorator also works without parentheses.

    Raises:
        RegistryError: the name is taken by another class, or is not a plain identifier.

    Example:
        >>> @register("double_rewards")
        ... class DoubleRewards: ...
        >>> piece_class("double_rewards").__name__
        'DoubleRewards'
        >>> unregister("double_rewards")
    """
    if isinstance(name, type):
        return _register(name, None)
    return lambda cls: _register(cls, name)


def _register(cls: PieceT, name: str | None) -> PieceT:
    key = snake_case(cls.__name__) if name is None else name
    if not isinstance(key, str) or not key.isidentifier():
        raise RegistryError(
            explain(
                f"register({cls.__qualname__})",
                expected="a plain name such as 'frame_stacking'",
                found=repr(key),
                do="use letters, digits and underscores; dots and colons mark import paths",
            )
        )
    owner = _registered.get(key)
    if owner is not None and _path_of(owner) != _path_of(cls):
        raise _taken(key, owner.__module__, cls.__module__)
    entry = _offered().get(ALIASES.get(key, key))
    if entry is not None and entry.path != _path_of(cls):
        raise _taken(key, entry.owner, cls.__module__)
    _registered[key] = cls
    return cls


def unregister(name: str) -> None:
    """Take a name given with `register` back; names of installed packages stay."""
    if name not in _registered:
        raise UnknownNameError(
            explain(
                "unregister",
                expected="a name given with register()",
                found=repr(name),
                do=nearest(name, _registered),
            )
        )
    del _registered[name]


def _taken(name: str, *owners: str) -> RegistryError:
    return RegistryError(
        explain(
            f"piece name {name!r}",
            expected="one owner",
            found=" and ".join(owners),
            do="register one of them under another name, or uninstall one of the packages",
        )
    )


# ------------------------------------------------------------------------------------------ looking up


@functools.cache
def _offered() -> dict[str, PieceEntry]:
    """Built-in names and those of installed packages, read once; nothing is imported."""
    entries = {name: PieceEntry(name, path, BUILT_IN_OWNER) for name, path in BUILT_IN_PIECES.items()}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        owner = point.dist.name if point.dist is not None else point.value.partition(":")[0]
        known = entries.get(point.name)
        if point.name in ALIASES:
            known = entries[ALIASES[point.name]]
        if known is None:
            entries[point.name] = PieceEntry(point.name, point.value, owner)
        elif (known.path, known.owner) != (point.value, owner):
            rivals = (*known.rivals, owner)
            entries[known.name] = PieceEntry(known.name, known.path, known.owner, rivals)
    return entries


def piece_entries() -> list[PieceEntry]:
    """Every known piece, sorted by name: built-in, from installed packages, and registered by a script."""
    entries = dict(_offered())
    for name, cls in _registered.items():
        entries[name] = PieceEntry(name, _path_of(cls), cls.__module__)
    return [entries[name] for name in sorted(entries)]


def piece_class(name: str, *, allow_imports: bool = False) -> type:
    """The class behind a registered name.

    Args:
        name: a registered name, or, if imports are allowed, `pkg.module:Class` or `pkg.module.Class`.
        allow_imports: whether a dotted path may be imported; importing runs code.

    Raises:
        UnknownNameError: no piece has this name.
        RegistryError: the name is taken twice, an import path is not allowed, or its class cannot be loaded.

    Example:
        >>> BUILT_IN_PIECES["frame_stacking"]
        'epibatch.connectors.common.frame_stacking:FrameStacking'
    """
    if not isinstance(name, str):
        raise UnknownNameError(
            explain(
                "piece name",
                expected="a string",
                found=f"{type(name).__name__} {name!r}",
                do="write the piece's registered name",
            )
        )
    if name in _registered:
        return _registered[name]
    if "." in name or ":" in name:
        return _import_class(name, allow_imports)
    entry = _offered().get(ALIASES.get(name, name))
    if entry is None:
        known = [*_offered(), *_registered, *ALIASES]
        raise UnknownNameError(
            explain(
                f"piece {name!r}", expected="a registered piece name", found="no such piece", do=nearest(name, known)
            )
        )
    if entry.rivals:
        raise _taken(name, entry.owner, *entry.rivals)
    return _load(entry.path, f"piece {name!r} of {entry.owner}")


def _import_class(path: str, allow_imports: bool) -> type:
    if not allow_imports:
        raise RegistryError(
            explain(
                f"piece {path!r}",
                expected="a registered piece name",
                found="an import path, which runs code when it is loaded",
                do="register the class under a name, or allow it with allow_imports=True "
                "(on the command line: --allow-imports)",
            )
        )
    if ":" not in path:
        module, _, attribute = path.rpartition(".")
        path = f"{module}:{attribute}"
    return _load(path, f"piece {path!r}")


def _load(path: str, where: str) -> type:
    module_name, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except Exception as error:
        raise RegistryError(
            explain(
                where,
                expected=f"the class {path}",
                found=f"{type(error).__name__}: {error}",
                do="check that the package is installed and that the path is module:Class",
            )
        ) from error
    if not isinstance(target, type):
        raise RegistryError(
            explain(where, expected="a class", found=f"{type(target).__name__}", do="point the name to a class")
        )
    return target


def _path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def piece_name(cls: type) -> str:
    """The name under which a configuration can hold a class: the registered one, else its import path.

    Raises:
        PieceError: the class has no name and no import path (it was made in a function or a script).

    Example:
        >>> piece_name(dict)
        'builtins:dict'
    """
    for name, registered in _registered.items():
        if registered is cls:
            return name
    path = _path_of(cls)
    for entry in _offered().values():
        if entry.path == path and not entry.rivals:
            return entry.name
    if "<locals>" in path or cls.__module__ == "__main__":
        raise PieceError(
            explain(
                f"piece class {cls.__qualname__}",
                expected="a class that another process can find",
                found=f"one defined in {'a function' if '<locals>' in path else 'the running script'}",
                do="move it into an importable module, or give it a name with epibatch.core.registry.register",
            )
        )
    return path
