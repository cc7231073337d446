"""Who offers which piece: epibatch itself, and installed packages through an entry-point group.

Listing what is offered imports nothing. Loading one piece imports its module; whatever is wrong with it, or
with the package, is an error that names the piece, the package and the entry point, and concerns no other piece.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from epibatch.core.errors import PieceError, RegistryError
from epibatch.core.foreign import advice_for_piece
from epibatch.core.import_paths import load_object
from epibatch.core.piece_declarations import check_declarations
from epibatch.core.version import __version__

__all__ = [
    "BUILT_IN_OWNER",
    "ENTRY_POINT_GROUP",
    "PieceEntry",
    "check_piece_class",
    "class_path",
    "load_class",
    "load_entry",
    "offered_pieces",
    "taken",
]

ENTRY_POINT_GROUP = "epibatch.connectors"
BUILT_IN_OWNER = "epibatch"
_CONTRACT = "epibatch.connectors.connector_v2:ConnectorV2"


@dataclass(frozen=True)
class PieceEntry:
    """One name of the registry: where its class is, and who offers it.

    Attributes:
        name: what a configuration writes after `piece:`.
        path: `module path:Class`.
        owner: the distribution, or the module for a piece registered by a script.
        version: the distribution's version; empty for a piece registered by a script.
        requires: what the distribution asks of epibatch, as it stands in its metadata.
        rivals: what others offer under the same name; looking it up is an error.
    """

    name: str
    path: str
    owner: str
    version: str = ""
    requires: tuple[str, ...] = ()
    rivals: tuple[PieceEntry, ...] = ()

    @property
    def offered_by(self) -> str:
        """The owner with its version."""
        return f"{self.owner} {self.version}".rstrip()

    @property
    def package(self) -> str:
        """The top-level package of the class."""
        return self.path.partition(":")[0].partition(".")[0]

    def describe(self) -> str:
        """The owner with its version, and the class."""
        return f"{self.offered_by} ({self.path})"


def class_path(cls: type) -> str:
    """A class as `module path:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


# ------------------------------------------------------------------------------------------- listing


def offered_pieces(built_in: Mapping[str, str], aliases: Mapping[str, str]) -> dict[str, PieceEntry]:
    """Built-in pieces and those of installed packages, by name.

    Args:
        built_in: registered name -> `module path:Class`.
        aliases: second name of a built-in piece -> its registered name.
    """
    entries = {name: PieceEntry(name, path, BUILT_IN_OWNER, __version__) for name, path in built_in.items()}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        name = aliases.get(point.name, point.name)
        own = _entry_of(point, name)
        known = entries.get(name)
        if known is None:
            entries[name] = own
        elif (known.path, known.owner) != (own.path, own.owner):
            entries[name] = replace(known, rivals=(*known.rivals, own))
    return entries


def _entry_of(point: importlib.metadata.EntryPoint, name: str) -> PieceEntry:
    dist = point.dist
    if dist is None:
        return PieceEntry(name, point.value, point.value.partition(":")[0])
    return PieceEntry(name, point.value, dist.name, dist.version, tuple(dist.requires or ()))


def taken(name: str, owners: Iterable[str], do: str) -> RegistryError:
    """The error for a name that several offer."""
    return RegistryError(f"piece name {name!r}", expected="one owner", found=" and ".join(owners), do=do)


# ------------------------------------------------------------------------------------------- loading


def load_entry(entry: PieceEntry) -> type:
    """The class behind an entry.

    Raises:
        RegistryError: its package asks for another epibatch, its module cannot be imported, or the class is not there.
        PieceError: what is there is no connector piece.
    """
    where = f"piece {entry.name!r} of {entry.offered_by} (entry point {entry.name} = {entry.path})"
    if entry.owner == BUILT_IN_OWNER:
        where = f"piece {entry.name!r}"
    if not entry.name.isidentifier():
        raise RegistryError(
            where,
            expected="a plain name such as 'frame_stacking'",
            found=repr(entry.name),
            do=f"let {entry.owner} rename its entry point; dots and colons mark import paths",
        )
    wanted = _unmet(entry.requires)
    if wanted:
        raise RegistryError(
            where,
            expected=f"{wanted}, which {entry.owner} asks for",
            found=f"epibatch {__version__}",
            do=f"install an epibatch that fits, or a release of {entry.owner} made for this one",
        )
    return load_class(entry.path, where)


def _unmet(requires: Iterable[str]) -> str | None:
    """The requirement on epibatch that this release does not meet, if there is one."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import Version

    here = Version(Version(__version__).base_version)
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # other people's metadata; pip has its say about it
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name.lower() == "epibatch" and applies and here not in requirement.specifier:
            return f"epibatch{requirement.specifier}"
    return None


def load_class(path: str, where: str) -> type:
    """Import the piece class at `module:Class`; importing runs code.

    Args:
        path: where the class is.
        where: the beginning of error messages.

    Raises:
        RegistryError: the module cannot be imported, or has no such class.
        PieceError: what is there is no connector piece.
    """
    return check_piece_class(load_object(path, where), where)


def check_piece_class(target: Any, where: str) -> type:
    """`target`, if it is a class of connector pieces.

    Raises:
        PieceError: it is something else, or what the class declares cannot be meant.
    """
    if isinstance(target, type) and _CONTRACT in map(class_path, target.__mro__):
        check_declarations(target, where)
        return target
    kind = type(target).__name__
    found = f"the class {class_path(target)}" if isinstance(target, type) else f"something of type {kind}"
    raise PieceError(
        where,
        expected="a subclass of epibatch.connectors.ConnectorV2",
        found=found,
        do=advice_for_piece(target)
        or "inherit from epibatch's ConnectorV2, and name the class itself, not an instance or a function",
    )
