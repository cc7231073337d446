"""Names of pieces: what a configuration file may say instead of a class.

A piece is found by its registered name. Built-in names stand in a static table (nothing is imported to
list them), other packages offer theirs through the entry-point group `epibatch.connectors`, and a script
uses `register`. A dotted path is code rather than a name and is refused unless the caller allows it.
A name that several offer is an error when it is registered or used, and none before.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, TypeVar, overload

from epibatch.core.built_in_pieces import ALIASES, BUILT_IN_PIECES
from epibatch.core.errors import PieceError, RegistryError, UnknownNameError, nearest
from epibatch.core.piece_counterparts import named_elsewhere
from epibatch.core.piece_offers import (
    ENTRY_POINT_GROUP,
    PieceEntry,
    check_piece_class,
    class_path,
    load_class,
    load_entry,
    offered_pieces,
    taken,
)

__all__ = [
    "ALIASES",
    "BUILT_IN_PIECES",
    "ENTRY_POINT_GROUP",
    "PieceEntry",
    "piece_class",
    "piece_entries",
    "piece_name",
    "register",
    "registered_name",
    "snake_case",
    "unregister",
]

PieceT = TypeVar("PieceT", bound=type)

_registered: dict[str, type] = {}


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

    A class that is defined again under the same name in the same place, by running a notebook's cell twice
    or reloading a module, takes the place of the earlier one.

    Args:
        name: the name, or nothing; the decorator also works without parentheses.

    Raises:
        RegistryError: the name is taken by another class, or is not a plain identifier.
        PieceError: it is no subclass of ConnectorV2.

    Example:
        >>> from epibatch.connectors import ConnectorV2
        >>> @register("double_rewards")
        ... class DoubleRewards(ConnectorV2):
        ...     def __call__(self, *, rl_module, batch, episodes, **kwargs):
        ...         return batch
        >>> piece_class("double_rewards").__name__
        'DoubleRewards'
        >>> unregister("double_rewards")
    """
    if isinstance(name, type):
        return _register(name, None)
    return lambda cls: _register(cls, name)


def _register(cls: PieceT, name: str | None) -> PieceT:
    where = f"register({getattr(cls, '__qualname__', cls)!s})"
    check_piece_class(cls, where)
    key = snake_case(cls.__name__) if name is None else name
    if not isinstance(key, str) or not key.isidentifier():
        raise RegistryError(
            where,
            expected="a plain name such as 'frame_stacking'",
            found=repr(key),
            do="use letters, digits and underscores; dots and colons mark import paths",
        )
    own = _registered_entry(key, cls)
    others = [_registered_entry(key, _registered[key])] if key in _registered else []
    # A package may register a class that it also offers; `piece_class` checks that both are the same.
    others += [one for one in _claims(key) if one.package != own.package]
    others = [one for one in others if one.path != own.path]
    if others:
        advice = "register it under another name" + (f", or unregister({key!r}) first" if key in _registered else "")
        raise taken(key, [one.describe() for one in (*others, own)], advice)
    _registered[key] = cls
    return cls


def unregister(name: str) -> None:
    """Take a name given with `register` back; names of installed packages stay."""
    if name not in _registered:
        raise UnknownNameError(
            "unregister",
            expected="a name given with register()",
            found=repr(name),
            do=nearest(str(name), _registered),
        )
    del _registered[name]


def _registered_entry(name: str, cls: type) -> PieceEntry:
    return PieceEntry(name, class_path(cls), cls.__module__)


# ------------------------------------------------------------------------------------------ looking up


@functools.cache
def _offered() -> dict[str, PieceEntry]:
    """Built-in names and those of installed packages, read once; nothing is imported."""
    return offered_pieces(BUILT_IN_PIECES, ALIASES)


def _claims(name: str) -> list[PieceEntry]:
    """What is offered under a name: none, one, or several entries."""
    entry = _offered().get(ALIASES.get(name, name))
    return [] if entry is None else [entry, *entry.rivals]


def piece_entries() -> list[PieceEntry]:
    """Every known piece, sorted by name: built-in, from installed packages, and registered by a script."""
    entries = {name: _registered_entry(name, cls) for name, cls in _registered.items()}
    entries.update(_offered())
    return [entries[name] for name in sorted(entries)]


def piece_class(name: str, *, allow_imports: bool = False) -> type:
    """The class behind a registered name.

    Args:
        name: a registered name, or, if imports are allowed, `pkg.module:Class` or `pkg.module.Class`.
        allow_imports: whether a dotted path may be imported; importing runs code.

    Raises:
        UnknownNameError: no piece has this name.
        RegistryError: the name is taken twice, an import path is not allowed, or its class cannot be loaded.
        PieceError: what the name leads to is no connector piece.

    Example:
        >>> BUILT_IN_PIECES["frame_stacking"]
        'epibatch.connectors.common.frame_stacking:FrameStacking'
    """
    if not isinstance(name, str):
        raise UnknownNameError(
            "piece name",
            expected="a string",
            found=f"{type(name).__name__} {name!r}",
            do="write the piece's registered name",
        )
    claims = _claims(name)
    if not claims and name not in _registered:
        if "." in name or ":" in name:
            return _import_class(name, allow_imports)
        claims = _look_again(name)
    if len(claims) > 1:
        advice = "uninstall all but one, or, with imports allowed, write the import path of the one you mean"
        raise taken(name, [claim.describe() for claim in claims], advice)
    if name not in _registered:
        return load_entry(claims[0])
    cls = _registered[name]
    if claims and class_path(load_entry(claims[0])) != class_path(cls):
        owners = [claims[0].describe(), _registered_entry(name, cls).describe()]
        raise taken(name, owners, "let register() and the entry point of the package name the same class")
    return cls


def _look_again(name: str) -> list[PieceEntry]:
    """What is offered under a name that was unknown so far: its package may have been installed since."""
    importlib.invalidate_caches()
    _offered.cache_clear()
    claims = _claims(name)
    if claims:
        return claims
    known = [*_offered(), *_registered, *ALIASES]
    elsewhere, _ = named_elsewhere(name)
    do = elsewhere or _what_was_meant(name, known)
    raise UnknownNameError(f"piece {name!r}", expected="a registered piece name", found="no such piece", do=do)


def _what_was_meant(name: str, known: Sequence[str]) -> str:
    """The nearest names; of a module, or of what looks like a class, how a class of one's own is named."""
    try:
        is_module = name.isidentifier() and find_spec(name) is not None
    except (ImportError, ValueError):
        is_module = False
    if is_module:
        return f"that is a module: name the class in it too, {name}:MyPiece, and allow imports (--allow-imports)"
    hint = nearest(name, known)
    if name[:1].isupper() and "did you mean" not in hint:
        return f"a class of your own is named with its module, my_module:{name}, and imports allowed; {hint}"
    if "did you mean" not in hint:
        own = "my_module:" + "".join(part.title() for part in name.split("_"))
        return f"a name that a file of yours registers is known once that file was imported: write '{own}'; {hint}"
    return hint


def _import_class(path: str, allow_imports: bool) -> type:
    if path.endswith(".py") or ".py:" in path or "/" in path:
        raise _is_a_file(path)
    if not allow_imports:
        raise RegistryError(
            f"piece {path!r}",
            expected="a registered piece name",
            found="an import path, which runs code when it is loaded",
            do="register the class under a name, or allow it with allow_imports=True "
            "(on the command line: --allow-imports)",
        )
    if ":" not in path:
        module, _, attribute = path.rpartition(".")
        path = f"{module}:{attribute}"
    return load_class(path, f"piece {path!r}")


def _is_a_file(path: str) -> RegistryError:
    file, _, name = path.partition(":")
    module = ".".join(part for part in PurePath(file.removesuffix(".py")).parts if part not in (".", "/"))
    do = f"name the module, without .py: {module or 'my_module'}:{name or 'MyPiece'}, from the folder that it is in"
    return RegistryError(
        f"piece {path!r}", expected="a registered name, or module:Class", found="the path of a file", do=do
    )


def registered_name(cls: type) -> str | None:
    """The name that `register` gave a class; None if it gave none.

    Example:
        >>> registered_name(int) is None
        True
    """
    return next((name for name, registered in _registered.items() if registered is cls), None)


def piece_name(cls: type) -> str:
    """The name under which a configuration can hold a class: the registered one, else its import path.

    Raises:
        PieceError: the class has no name and no import path (it was made in a function or a script).

    Example:
        >>> from epibatch.connectors.common import FrameStacking
        >>> piece_name(FrameStacking)
        'frame_stacking'
    """
    given = registered_name(cls)
    if given is not None:
        return given
    path = class_path(cls)
    for entry in _offered().values():
        if not entry.rivals and _is_offered_class(entry, cls, path):
            return entry.name
    if "<locals>" in path or cls.__module__ == "__main__":
        raise PieceError(
            f"piece class {cls.__qualname__}",
            expected="a class that another process can find",
            found=f"one defined in {'a function' if '<locals>' in path else 'the running script'}",
            do="move it into an importable module, or give it a name with epibatch.core.registry.register",
        )
    return path


def _is_offered_class(entry: PieceEntry, cls: type, path: str) -> bool:
    """Whether an entry leads to a class; it may name another module of its package, which re-exports the class."""
    if entry.path == path:
        return True
    module, _, attribute = entry.path.partition(":")
    return (
        entry.package == cls.__module__.partition(".")[0] and getattr(sys.modules.get(module), attribute, None) is cls
    )
