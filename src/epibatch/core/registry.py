"""Names that configs use: pieces, pieces as data, and environments.

A config names a piece by its registered name. Epibatch's own pieces are the public classes of `epibatch.connectors`,
other packages offer theirs through the entry-point group `epibatch.connectors`, and a script uses `register`. Listing
the names imports none of the pieces. A dotted path is code rather than a name, so it needs `allow_imports`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from epibatch.core import __version__
from epibatch.core.errors import EpibatchError, PieceError, RegistryError, UnknownNameError, add_context, nearest
from epibatch.core.imports import ALLOW_IMPORTS, advice_for_piece, load_object
from epibatch.core.lazy import public_names
from epibatch.core.piece_arguments import constructor_keywords, wrong_values
from epibatch.core.piece_declarations import check_declarations
from epibatch.core.registered_spaces import register_space

__all__ = [
    "ENTRY_POINT_GROUP",
    "SPACES",
    "PieceEntry",
    "PieceSpec",
    "build_piece",
    "built_in_pieces",
    "counterparts",
    "env_creator",
    "pieces_of_counterpart",
    "piece_class",
    "piece_entries",
    "piece_name",
    "piece_to_dict",
    "plain_data",
    "register",
    "register_env",
    "register_space",
    "registered_envs",
    "registered_name",
    "registered_pieces",
    "snake_case",
    "spec_problems",
    "unregister",
]

PieceSpec: TypeAlias = "str | Mapping[str, Any]"
PieceT = TypeVar("PieceT", bound=type)

ENTRY_POINT_GROUP = "epibatch.connectors"
SPACES = ("input_observation_space", "input_action_space")
_PACKAGE = "epibatch.connectors"
_CONTRACT = f"{_PACKAGE}.connector_v2:ConnectorV2"

_registered: dict[str, type] = {}
_env_creators: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class PieceEntry:
    """A registered name and its class.

    Args:
        name: What a config writes after `piece:`.
        path: `module:Class`.
        owner: The distribution, or the module of a class that a script registered.
        version: Of the distribution; empty for a class that a script registered.
    """

    name: str
    path: str
    owner: str
    version: str = ""

    @property
    def package(self) -> str:
        """The top-level package of the class."""
        return self.path.partition(":")[0].partition(".")[0]

    @property
    def offered_by(self) -> str:
        """The owner with its version."""
        return f"{self.owner} {self.version}".rstrip()


def snake_case(class_name: str) -> str:
    """Return the registered form of a class name.

    Examples:
        >>> snake_case("FrameStacking"), snake_case("AddOneTsToEpisodes"), snake_case("LSTMState")
        ('frame_stacking', 'add_one_ts_to_episodes', 'lstm_state')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


# ------------------------------------------------------------------------------------------- pieces


@functools.cache
def built_in_pieces() -> dict[str, str]:
    """Return the registered name of each piece of epibatch with its `module:Class`; nothing is imported.

    Examples:
        >>> built_in_pieces()["frame_stacking"]
        'epibatch.connectors.common.frame_stacking:FrameStacking'
    """
    pieces = {}
    for name, module in public_names(_PACKAGE).items():
        parent, _, file = module.rpartition(".")
        if parent.rpartition(".")[0] == _PACKAGE and "._" not in module:
            pieces[file if file.replace("_", "") == name.lower() else snake_case(name)] = f"{module}:{name}"
    return pieces


@functools.cache
def _offered() -> dict[str, list[PieceEntry]]:
    """Return the providers of each name: epibatch or an installed package; with several, none can be used."""
    offered = {name: [PieceEntry(name, path, "epibatch", __version__)] for name, path in built_in_pieces().items()}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        owner = (point.dist.name, point.dist.version) if point.dist else (point.value.partition(":")[0],)
        entry = PieceEntry(point.name, point.value, *owner)
        if entry not in offered.setdefault(entry.name, []):
            offered[entry.name].append(entry)
    return offered


def piece_entries() -> dict[str, list[PieceEntry]]:
    """Return the providers of each name, sorted by name: epibatch, installed packages, scripts with `register`."""
    entries = {name: [_entry(name, cls)] for name, cls in _registered.items()} | _offered()
    return dict(sorted(entries.items()))


def _entry(name: str, cls: type) -> PieceEntry:
    return PieceEntry(name, _path(cls), cls.__module__)


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@overload
def register(name: PieceT) -> PieceT: ...
@overload
def register(name: str | None = None) -> Callable[[PieceT], PieceT]: ...
def register(name: Any = None) -> Any:
    """Register a piece class, under its class name in snake_case unless a name is given.

    A class that is defined again under the same name in the same place, by running a notebook's cell twice
    or reloading a module, takes the place of the earlier one.

    Args:
        name: The name, or nothing; the decorator also works without parentheses.

    Raises:
        RegistryError: the name is taken by another class, or is not a plain identifier.
        PieceError: it is no subclass of ConnectorV2.

    Examples:
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
    _check_piece_class(cls, where)
    key = snake_case(cls.__name__) if name is None else name
    _check_name(key, where, "use letters, digits and underscores; dots and colons mark import paths")
    new_entry = _entry(key, cls)
    others = [_entry(key, _registered[key])] if key in _registered else []
    # A package may register a class that it also offers; `piece_class` checks that both are the same.
    others += [entry for entry in _offered().get(key, ()) if entry.package != new_entry.package]
    others = [entry for entry in others if entry.path != new_entry.path]
    if others:
        advice = "register it under another name" + (f", or unregister({key!r}) first" if key in _registered else "")
        raise _taken(key, [*others, new_entry], advice)
    _registered[key] = cls
    return cls


def _check_name(name: object, where: str, do: str) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise RegistryError(where, expected="a plain name such as 'frame_stacking'", found=repr(name), do=do)


def _check_piece_class(target: Any, where: str) -> type:
    if isinstance(target, type) and _CONTRACT in map(_path, target.__mro__):
        check_declarations(target, where)
        return target
    found = f"the class {_path(target)}" if isinstance(target, type) else f"something of type {type(target).__name__}"
    raise PieceError(
        where,
        expected="a subclass of epibatch.connectors.ConnectorV2",
        found=found,
        do=advice_for_piece(target)
        or "inherit from epibatch's ConnectorV2, and name the class itself, not an instance or a function",
    )


def _taken(name: str, entries: Iterable[PieceEntry], do: str) -> RegistryError:
    found = " and ".join(f"{entry.offered_by} ({entry.path})" for entry in entries)
    return RegistryError(f"piece name {name!r}", expected="one owner", found=found, do=do)


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


def piece_class(name: str, *, allow_imports: bool = False) -> type:
    """Return the class of a registered name.

    Args:
        name: A registered name, or, if imports are allowed, `pkg.module:Class` or `pkg.module.Class`.
        allow_imports: Whether a dotted path may be imported; importing runs code.

    Raises:
        UnknownNameError: no piece has this name.
        RegistryError: the name is taken twice, an import path is not allowed, or its class cannot be loaded.
        PieceError: what the name leads to is no connector piece.

    Examples:
        >>> piece_class("frame_stacking").__name__
        'FrameStacking'
    """
    if not isinstance(name, str):
        raise UnknownNameError(
            "piece name",
            expected="a string",
            found=f"{type(name).__name__} {name!r}",
            do="write the piece's registered name",
        )
    entries, cls = _offered().get(name, []), _registered.get(name)
    if not entries and cls is None:
        if "." in name or ":" in name:
            return _import_class(name, allow_imports)
        raise UnknownNameError(
            f"piece {name!r}", expected="a registered piece name", found="no such piece", do=_suggestion(name)
        )
    if len(entries) > 1:
        advice = "uninstall all but one, or, with imports allowed, write the import path of the one you mean"
        raise _taken(name, entries, advice)
    offered = _load(entries[0]) if entries else cls
    if cls is not None and offered is not None and _path(offered) != _path(cls):
        advice = "let register() and the entry point of the package name the same class"
        raise _taken(name, [*entries, _entry(name, cls)], advice)
    return cls or offered  # type: ignore[return-value]


def _load(entry: PieceEntry) -> type:
    where = f"piece {entry.name!r}"
    if entry.package != "epibatch":
        where += f" of {entry.offered_by} (entry point {entry.name} = {entry.path})"
    _check_name(entry.name, where, f"let {entry.owner} rename its entry point; dots and colons mark import paths")
    return _check_piece_class(load_object(entry.path, where), where)


def _suggestion(name: str) -> str:
    """Return the nearest names; for a module or what looks like a class, how a config names a user's class."""
    advice, _ = pieces_of_counterpart(name)
    if advice:
        return advice
    try:
        is_module = name.isidentifier() and find_spec(name) is not None
    except (ImportError, ValueError):
        is_module = False
    if is_module:
        return f"that is a module: name the class in it too, {name}:MyPiece, and allow imports (--allow-imports)"
    hint = nearest(name, [*_offered(), *_registered])
    if "did you mean" in hint:
        return hint
    if name[:1].isupper():
        return f"a class of your own is named with its module, my_module:{name}, and imports allowed; {hint}"
    path = "my_module:" + "".join(part.title() for part in name.split("_"))
    return f"a name that a file of yours registers is known once that file was imported: write '{path}'; {hint}"


def _import_class(path: str, allow_imports: bool) -> type:
    where = f"piece {path!r}"
    if path.endswith(".py") or ".py:" in path or "/" in path:
        file, _, name = path.partition(":")
        module = ".".join(part for part in PurePath(file.removesuffix(".py")).parts if part not in (".", "/"))
        do = f"name the module, without .py: {module or 'my_module'}:{name or 'MyPiece'}, from the folder that it is in"
        raise RegistryError(where, expected="a registered name, or module:Class", found="the path of a file", do=do)
    if not allow_imports:
        raise RegistryError(
            where,
            expected="a registered piece name",
            found="an import path, which runs code when it is loaded",
            do=f"register the class under a name, or allow it with {ALLOW_IMPORTS}",
        )
    return _check_piece_class(load_object(path if ":" in path else ":".join(path.rsplit(".", 1)), where), where)


def counterparts(cls: type) -> dict[str, list[str]]:
    """Return the classes of other libraries, by library, that a class's docstring lists under "Counterparts:".

    Examples:
        >>> counterparts(piece_class("frame_stacking"))
        {'RLlib': ['FrameStacking'], 'TorchRL': ['CatFrames']}
    """
    line = re.search(r"^ *Counterparts: (.+)", cls.__doc__ or "", re.MULTILINE)
    groups = re.findall(r"(\w+)'s ((?:`\w+`(?:, )?)+)", line[1] if line else "")
    return {library: re.findall(r"\w+", classes) for library, classes in groups}


def pieces_of_counterpart(name: str) -> tuple[str, list[str]]:
    """Return the pieces that have a class of another library as a counterpart.

    Args:
        name: Of the class, in any case.

    Returns:
        A sentence that says so, and the pieces' registered names; ("", []) if no piece has it.

    Examples:
        >>> pieces_of_counterpart("CatFrames")
        ("TorchRL's CatFrames is frame_stacking here", ['frame_stacking'])
    """
    found: dict[str, list[str]] = {}
    for piece, path in built_in_pieces().items():
        cls = load_object(path, piece)
        for library, classes in counterparts(cls).items():
            for counterpart in classes:
                if counterpart.lower() == name.lower() and path == _path(cls):  # a second name has another path
                    found.setdefault(f"{library}'s {counterpart}", []).append(piece)
    for label, pieces in sorted(found.items()):
        return f"{label} is {' or '.join(pieces)} here", pieces
    return "", []


def registered_pieces() -> dict[str, type]:
    """Return the names given to `register`, with their classes."""
    return dict(_registered)


def registered_name(cls: type) -> str | None:
    """Return the name that `register` gave a class; None if it gave none.

    Examples:
        >>> registered_name(int) is None
        True
    """
    return next((name for name, registered in _registered.items() if registered is cls), None)


def piece_name(cls: type) -> str:
    """Return the name under which a config can hold a class: the registered one, else its import path.

    Raises:
        PieceError: the class has no name and no import path (it was made in a function or a script).

    Examples:
        >>> from epibatch.connectors.common import FrameStacking
        >>> piece_name(FrameStacking)
        'frame_stacking'
    """
    name = registered_name(cls)
    if name is not None:
        return name
    path = _path(cls)
    named = [entries[0] for entries in _offered().values() if len(entries) == 1 and _names_class(entries[0], cls)]
    if named:
        return min(named, key=lambda entry: entry.path != path).name
    of_function = inspect.isfunction(getattr(sys.modules.get(cls.__module__), cls.__qualname__, None))
    if of_function or "<locals>" in path or cls.__module__ == "__main__":
        place = "a function" if "<locals>" in path else "the running script"
        raise PieceError(
            f"piece class {cls.__qualname__}",
            expected="a class that another process can find",
            found="a function of that name" if of_function else f"one defined in {place}",
            do="decorate it with @column_function or @episode_function of epibatch.connectors.authoring"
            if of_function
            else "move it into an importable module, or give it a name with epibatch.core.registry.register",
        )
    return path


def _names_class(entry: PieceEntry, cls: type) -> bool:
    """True if an entry names a class, in its own module or in one of its package that imports it."""
    module, _, attribute = entry.path.partition(":")
    own_package = entry.package == cls.__module__.partition(".")[0]
    return entry.path == _path(cls) or (own_package and getattr(sys.modules.get(module), attribute, None) is cls)


# ------------------------------------------------------------------------------------ pieces as data
def spec_problems(spec: Any, *, pipeline: str | None = None, allow_imports: bool = False) -> list[tuple[str, str]]:
    """Everything wrong with a piece spec, as `(key, what is wrong)`; an empty list for a good one.

    Args:
        spec: A name, or a mapping with the key `piece`.
        pipeline: The pipeline it is for; a piece that says it is made for others is wrong there.
        allow_imports: Whether the name, and parameters that can be one (`import_parameters`), may be an import path.
    """
    if isinstance(spec, str):
        spec = {"piece": spec}
    if not isinstance(spec, Mapping):
        return [("", f"expected a piece name or {{piece: name, ...}}, found {type(spec).__name__} {spec!r}")]
    if "piece" not in spec:
        found = ", ".join(map(str, spec)) or "nothing"
        return [("", f"expected the key 'piece' with the piece's name, found the keys: {found}")]
    try:
        cls = piece_class(spec["piece"], allow_imports=allow_imports)
    except EpibatchError as error:
        return [("piece", str(error))]
    arguments = {key: needed for key, needed in constructor_keywords(cls).items() if key not in SPACES}
    keywords = [key for key in spec if key != "piece"]
    problems = [
        (str(key), f"{spec['piece']} has no argument {key!r}. {nearest(str(key), arguments)}")
        for key in keywords
        if key not in arguments
    ]
    missing = [key for key, needed in arguments.items() if needed and key not in spec]
    misfits = wrong_values(cls, {key: spec[key] for key in keywords if key in arguments})
    problems += [(key, f"expected {expected}, found {found}") for key, (expected, found) in misfits.items()]
    for key in () if allow_imports else getattr(cls, "import_parameters", ()):
        if isinstance(spec.get(key), str):
            problems.append((key, f"{spec[key]!r} is an import path, which runs code; allow it with {ALLOW_IMPORTS}"))
    made_for = getattr(cls, "pipelines", ())  # on a class it may be a property
    if pipeline is not None and made_for and isinstance(made_for, (tuple, list)) and pipeline not in made_for:
        problems.insert(0, ("piece", f"{spec['piece']} is made for {' and '.join(made_for)}, not for {pipeline}"))
    return problems + [(key, f"{spec['piece']} needs the argument {key!r}") for key in missing]


def build_piece(spec: PieceSpec, *, allow_imports: bool = False) -> Any:
    """Build a piece from its name, or from `{piece: name, keyword: value, ...}`.

    Args:
        spec: A registered name, or a mapping with the key `piece` and the constructor's keywords.
        allow_imports: Whether the name may be an import path.

    Raises:
        UnknownNameError: no piece has this name.
        RegistryError: the name is an import path and imports are not allowed.
        PieceError: wrong, missing or unusable constructor keywords.

    Examples:
        >>> type(build_piece({"piece": "frame_stacking", "num_frames": 4})).__name__
        'FrameStacking'
    """
    name = spec if isinstance(spec, str) else spec.get("piece") if isinstance(spec, Mapping) else None
    cls = piece_class(name, allow_imports=allow_imports) if isinstance(name, str) else None
    problems = spec_problems(spec, allow_imports=allow_imports)
    if problems or cls is None:
        raise PieceError(
            f"piece {name!r}" if name else "piece",
            expected="the keywords of its constructor" if cls else "a piece spec",
            found="; ".join(problem for _, problem in problems),
            do="correct the spec, for example {piece: frame_stacking, num_frames: 4}",
        )
    keywords = {} if isinstance(spec, str) else {key: value for key, value in spec.items() if key != "piece"}
    try:
        return cls(**keywords)
    except EpibatchError as error:
        add_context(error, f"piece {name!r}, built from data")
        raise
    except (TypeError, ValueError) as error:
        raise PieceError(
            f"piece {name!r}",
            expected="values that its constructor takes",
            found=f"{type(error).__name__}: {error}",
            do=f"correct the values of {', '.join(keywords) or 'the spec'}",
        ) from error


def piece_to_dict(piece: Any) -> dict[str, Any]:
    """Express a piece as data, the inverse of `build_piece`; tuples become lists.

    Uses the piece's `to_dict` if it has one, else the constructor arguments that it reports through
    `get_ctor_args_and_kwargs`. Input spaces are left out: the pipeline sets them.

    Raises:
        PieceError: the class cannot be found by name, or an argument is not plain data; both are named.
    """
    cls = type(piece)
    name = piece_name(cls)
    to_dict = getattr(piece, "to_dict", None)
    if callable(to_dict):
        return {"piece": name, **to_dict()}
    args, kwargs = piece.get_ctor_args_and_kwargs()
    keywords = {**_named_arguments(cls, args), **kwargs}
    keywords = {key: value for key, value in keywords.items() if key not in SPACES}
    unknown = [key for key in keywords if key not in constructor_keywords(cls)]
    if unknown:
        raise _not_data(cls, unknown[0], "an argument that no constructor names")
    return {"piece": name, **{key: _data(cls, key, value) for key, value in keywords.items()}}


def _named_arguments(cls: type, args: tuple[Any, ...]) -> dict[str, Any]:
    if not args:
        return {}
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(names):
        raise _not_data(cls, "*args", "more positional arguments than the constructor names")
    return dict(zip(names, args))


def _data(cls: type, key: str, value: Any) -> Any:
    try:
        return plain_data(value)
    except TypeError as error:
        raise _not_data(cls, key, str(error)) from None


def plain_data(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None.

    Raises:
        TypeError: something in it is none of these; the message names its type.

    Examples:
        >>> plain_data({"shape": (3, 2), "scale": np.float32(0.5)})
        {'shape': [3, 2], 'scale': 0.5}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.generic):
        return plain_data(value.item())
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): plain_data(item) for key, item in value.items()}
        raise TypeError("a mapping with keys that are not strings")
    kind = getattr(value, "__qualname__", "") if isinstance(value, type) else ""
    raise TypeError(f"the class {kind}" if kind else f"a {type(value).__name__}")


def _not_data(cls: type, key: str, found: str) -> PieceError:
    return PieceError(
        f"piece {cls.__name__}, argument {key!r}",
        expected="plain data: numbers, strings, booleans, lists and dicts of these",
        found=found,
        do="give the piece a constructor of plain data, or keep the original config at hand for restoring",
    )


# ------------------------------------------------------------------------------------- environments


def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Give an environment factory a name that `PPOConfig.environment` and YAML files can use.

    Args:
        name: The name; a name that exists already is replaced, so that a notebook cell can run twice.
        env_creator: Called with the `env_config` dict, returns a `gymnasium.Env`.

    Raises:
        RegistryError: the name is empty or the factory is not callable.

    Examples:
        >>> register_env("tiny", lambda env_config: "an env")
        >>> env_creator("tiny")({})
        'an env'
    """
    if not isinstance(name, str) or not name or not callable(env_creator):
        raise RegistryError(
            "register_env",
            expected="a name and a function of env_config that returns an environment",
            found=f"{name!r} and {type(env_creator).__name__}",
            do='call register_env("my_env", lambda env_config: MyEnv(**env_config))',
        )
    _env_creators[name] = env_creator


def env_creator(name: str) -> Callable[..., Any]:
    """The factory that was registered for an environment name.

    Raises:
        UnknownNameError: nothing was registered under this name.
    """
    if name not in _env_creators:
        raise UnknownNameError(
            f"environment {name!r}",
            expected="a name given to register_env",
            found="no such environment",
            do=nearest(str(name), _env_creators),
        )
    return _env_creators[name]


def registered_envs() -> list[str]:
    """The names given to `register_env`, sorted."""
    return sorted(_env_creators)
