"""Pieces as data: `{piece: frame_stacking, num_frames: 4}` to a piece and back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from epibatch.core.errors import EpibatchError, PieceError, add_context, nearest
from epibatch.core.piece_arguments import constructor_keywords, constructor_parameters, wrong_values
from epibatch.core.piece_names import piece_class, piece_name

__all__ = [
    "PieceSpec",
    "build_piece",
    "constructor_keywords",
    "constructor_parameters",
    "piece_to_dict",
    "plain_data",
    "spec_problems",
]

PieceSpec: TypeAlias = "str | Mapping[str, Any]"
_ALLOWED = "allow_imports=True (on the command line: --allow-imports)"
SPACES = ("input_observation_space", "input_action_space")


def spec_problems(spec: Any, *, pipeline: str | None = None, allow_imports: bool = False) -> list[tuple[str, str]]:
    """Everything wrong with a piece spec, as `(key, what is wrong)`; an empty list for a good one.

    Args:
        spec: a name, or a mapping with the key `piece`.
        pipeline: the pipeline it is for; a piece that says it is made for others is wrong there.
        allow_imports: whether the name, and parameters that can be one (`import_parameters`), may be an import path.
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
    known = {key: needed for key, needed in constructor_keywords(cls).items() if key not in SPACES}
    keywords = [key for key in spec if key != "piece"]
    problems = [
        (str(key), f"{spec['piece']} has no argument {key!r}. {nearest(str(key), known)}")
        for key in keywords
        if key not in known
    ]
    missing = [key for key, needed in known.items() if needed and key not in spec]
    wrong = wrong_values(cls, {key: spec[key] for key in keywords if key in known})
    problems += [(key, f"expected {expected}, found {found}") for key, (expected, found) in wrong.items()]
    for key in () if allow_imports else getattr(cls, "import_parameters", ()):
        if isinstance(spec.get(key), str):
            problems.append((key, f"{spec[key]!r} is an import path, which runs code; allow it with {_ALLOWED}"))
    made_for = getattr(cls, "pipelines", ())  # on a class it may be a property
    if pipeline is not None and made_for and isinstance(made_for, (tuple, list)) and pipeline not in made_for:
        problems.insert(0, ("piece", f"{spec['piece']} is made for {' and '.join(made_for)}, not for {pipeline}"))
    return problems + [(key, f"{spec['piece']} needs the argument {key!r}") for key in missing]


def build_piece(spec: PieceSpec, *, allow_imports: bool = False) -> Any:
    """Build a piece from its name, or from `{piece: name, keyword: value, ...}`.

    Args:
        spec: a registered name, or a mapping with the key `piece` and the constructor's keywords.
        allow_imports: whether the name may be an import path.

    Raises:
        UnknownNameError: no piece has this name.
        RegistryError: the name is an import path and imports are not allowed.
        PieceError: wrong, missing or unusable constructor keywords.

    Example:
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
    own = getattr(piece, "to_dict", None)
    if callable(own):
        return {"piece": name, **own()}
    args, kwargs = piece.get_ctor_args_and_kwargs()
    keywords = {**_named_arguments(cls, args), **kwargs}
    keywords = {key: value for key, value in keywords.items() if key not in SPACES}
    swallowed = [key for key in keywords if key not in constructor_keywords(cls)]
    if swallowed:
        raise _not_data(cls, swallowed[0], "an argument that no constructor names")
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

    Example:
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
    raise TypeError(f"a {type(value).__name__}")


def _not_data(cls: type, key: str, found: str) -> PieceError:
    return PieceError(
        f"piece {cls.__name__}, argument {key!r}",
        expected="plain data: numbers, strings, booleans, lists and dicts of these",
        found=found,
        do="give the piece a constructor of plain data, or keep the original config at hand for restoring",
    )
