"""Validation of a piece's declarations."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from epibatch.core.errors import PieceError, nearest

LAYOUTS = ("episodes", "arrays", "tensors")
PIPELINE_NAMES = ("env_to_module", "module_to_env", "learner")
_NAMES = {
    "reads": None,
    "writes": None,
    "removes": None,
    "input_layouts": LAYOUTS,
    "pipelines": PIPELINE_NAMES,
}
_SWITCHES = ("mutates_episodes", "rewrites_observations", "training_only")
_RETIRED = {
    "takes": "is now input_layouts",
    "gives": "is now output_layout",
    "drops": "is now removes, a tuple of columns",
    "replaces": "is now removes, for columns that writes names too",
    "settles": "follows from reads, for a piece that writes advantages",
    "columnar": "follows from the class: subclass Piece and write run, or override __call__ for dicts",
    "space_by_space": "is not needed: a class that does not know the Dict of all agents' spaces is given one agent's",
    "adds_bootstrap_rows": "is for AddOneTsToEpisodesAndTruncate alone: subclass that",
    "halves_floats": "is for NumpyToTensor alone: subclass that",
    "maps_agents": "is for AgentToModuleMapping and ModuleToAgentUnmapping alone: subclass these",
    "one_sided": "is now training_only",
    "run_modules": "is now run_all",
    "run_parts": "is now run_all",
}


_DECLARATIONS = (*_NAMES, *_SWITCHES, "output_layout", "lookback")


def refuse_misspelt_names(cls: type) -> None:
    """Refuse columns or layouts in an attribute of a class that is called almost as a declaration is.

    Raises:
        PieceError: the class has one, such as `read` in place of `reads`.
    """
    for name, value in vars(cls).items():
        if isinstance(value, (tuple, str)) and name not in (*_DECLARATIONS, *inspect.get_annotations(cls)):
            matches = difflib.get_close_matches(name, [*_DECLARATIONS, *_RETIRED], n=1, cutoff=0.85)
            if matches:
                do = f"write {matches[0]}" if matches[0] in _DECLARATIONS else f"{matches[0]} {_RETIRED[matches[0]]}"
                where, expected = f"{cls.__name__}.{name}", f"one of {', '.join(_DECLARATIONS)}"
                raise PieceError(where, expected=expected, found=name, do=do)


def refuse_retired_names(cls: type) -> None:
    """Refuse attributes of a class, or of a base, that pieces declared under another name before.

    Raises:
        PieceError: the class has one.
    """
    for base in cls.__mro__:
        _refuse_retired(cls.__name__, vars(base), inspect.get_annotations(base))


def _refuse_retired(where: str, attributes: Any, fields: Any) -> None:
    """Refuse retired names among attributes, but for those that are annotated: these are parameters."""
    for name in _RETIRED.keys() & attributes.keys() - fields.keys():
        do = f"{name} {_RETIRED[name]}"
        raise PieceError(f"{where}.{name}", expected="a declaration of today", found=f"{name}, an earlier name", do=do)


def check_declarations(piece: Any, where: str) -> None:
    """Refuse class attributes of another type than the contract's, and names that are none.

    Args:
        piece: A connector piece; or a class of them, of which properties are left to its pieces.
        where: The beginning of the message.

    Raises:
        PieceError: `reads = "obs"`, say, in place of `reads = ("obs",)`, or a layout that does not exist.
    """
    if not isinstance(piece, type):
        _refuse_retired(where, vars(piece), getattr(type(piece), "__dataclass_fields__", {}))
    for name, valid in _NAMES.items():
        value = getattr(piece, name)
        if (value is None and name in ("reads", "input_layouts")) or _is_property(value):
            continue
        if not isinstance(value, (tuple, list)) or not all(isinstance(item, str) for item in value):
            example = f'("{value}",)' if isinstance(value, str) else '("obs",), say'
            raise _wrong(where, name, "a tuple of names", value, f"write {name} = {example}")
        unknown = [item for item in value if valid is not None and item not in valid]
        if unknown:
            raise _wrong(where, name, f"some of {', '.join(valid or ())}", value, nearest(unknown[0], valid or ()))
    layout = piece.output_layout
    if layout is not None and layout not in LAYOUTS and not _is_property(layout):
        raise _wrong(where, "output_layout", f"one of {', '.join(LAYOUTS)}", layout, nearest(str(layout), LAYOUTS))
    for name in _SWITCHES:
        if not isinstance(getattr(piece, name), bool) and not _is_property(getattr(piece, name)):
            raise _wrong(where, name, "True or False", getattr(piece, name), f"write {name} = True or False")
    steps = piece.lookback
    if _is_property(steps):
        return
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 0:
        raise _wrong(where, "lookback", "a number of steps, 0 or more", steps, "write lookback = 1, say")


def _is_property(value: Any) -> bool:
    return hasattr(type(value), "__get__")


def _wrong(where: str, name: str, expected: str, found: Any, do: str) -> PieceError:
    return PieceError(
        f"{where}, its attribute {name}", expected=expected, found=f"{type(found).__name__} {found!r}", do=do
    )
