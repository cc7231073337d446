"""Nested structures of arrays: dicts and tuples whose leaves are anything else.

A structure is described by its *form*: `None` for a leaf, `("dict", keys, forms)` or
`("tuple", (), forms)`. Flattening once and working on the list of leaves is what keeps the
hot paths free of recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from epibatch.core.errors import ColumnError

__all__ = [
    "Form",
    "flatten",
    "flatten_like",
    "form_of",
    "is_leaf",
    "map_struct",
    "paths_of",
    "spell_form",
    "stack_rows",
    "unflatten",
]

Form: TypeAlias = "tuple[str, tuple[Any, ...], tuple[Form, ...]] | None"


def is_leaf(struct: Any) -> bool:
    """True if `struct` is a leaf, that is neither a dict nor a tuple."""
    return not isinstance(struct, (dict, tuple))


def form_of(struct: Any) -> Form:
    """The form of a structure; two structures of one form have leaves in the same order."""
    if isinstance(struct, dict):
        return ("dict", tuple(struct), tuple(form_of(value) for value in struct.values()))
    if isinstance(struct, tuple):
        return ("tuple", (), tuple(form_of(value) for value in struct))
    return None


def flatten(struct: Any) -> tuple[list[Any], Form]:
    """Split a structure into its leaves, in order, and its form."""
    leaves: list[Any] = []
    return leaves, _take_apart(struct, leaves)


def _take_apart(struct: Any, leaves: list[Any]) -> Form:
    """Add the leaves of a structure to a list; returns the form."""
    if isinstance(struct, dict):
        return ("dict", tuple(struct), tuple([_take_apart(value, leaves) for value in struct.values()]))
    if isinstance(struct, tuple):
        return ("tuple", (), tuple([_take_apart(value, leaves) for value in struct]))
    leaves.append(struct)
    return None


def flatten_like(form: Form, struct: Any) -> list[Any]:
    """The leaves of `struct` in the order of `form`; dict keys may come in any order.

    Raises:
        ColumnError: the structure has other keys or another length than `form`.
    """
    if form is None:
        if is_leaf(struct):
            return [struct]
    elif form[0] == "dict" and isinstance(struct, dict):
        if tuple(struct) == form[1]:
            return _leaves_like(form[2], struct.values())
        if len(struct) == len(form[1]) and all(key in struct for key in form[1]):
            return _leaves_like(form[2], [struct[key] for key in form[1]])
    elif form[0] == "tuple" and isinstance(struct, tuple) and len(struct) == len(form[2]):
        return _leaves_like(form[2], struct)
    raise ColumnError(
        "nested structure",
        expected=spell_form(form),
        found=spell_form(form_of(struct)),
        do="give every step of a column the same keys and nesting",
    )


def _leaves_like(forms: tuple[Form, ...], structs: Iterable[Any]) -> list[Any]:
    leaves: list[Any] = []
    for form, struct in zip(forms, structs):
        if form is None and is_leaf(struct):
            leaves.append(struct)
        else:
            leaves += flatten_like(form, struct)
    return leaves


def spell_form(form: Form) -> str:
    """Spell a form for a message.

    Example:
        >>> spell_form(form_of({"a": 1, "b": (2, 3)}))
        '{a: leaf, b: (leaf, leaf)}'
    """
    if form is None:
        return "leaf"
    if form[0] == "dict":
        return "{" + ", ".join(f"{key}: {spell_form(sub)}" for key, sub in zip(form[1], form[2])) + "}"
    return "(" + ", ".join(spell_form(sub) for sub in form[2]) + ")"


def paths_of(form: Form) -> list[str]:
    """Return the index expressions of the leaves of a form, in their order.

    Example:
        >>> paths_of(form_of({"a": 1, "b": (2, {"c": 3})}))
        ["['a']", "['b'][0]", "['b'][1]['c']"]
    """
    if form is None:
        return [""]
    keys = form[1] if form[0] == "dict" else range(len(form[2]))
    return [f"[{key!r}]{path}" for key, sub in zip(keys, form[2]) for path in paths_of(sub)]


def unflatten(form: Form, leaves: Sequence[Any]) -> Any:
    """Rebuild the structure of `form` from `leaves`."""
    if form is None:
        return leaves[0]
    if form[0] == "dict" and len(leaves) == len(form[1]) == form[2].count(None):
        return dict(zip(form[1], leaves))
    remaining = iter(leaves)
    return _build(form, remaining)


def _build(form: Form, leaves: Iterator[Any]) -> Any:
    if form is None:
        return next(leaves)
    if form[0] == "dict":
        return {key: _build(sub, leaves) for key, sub in zip(form[1], form[2])}
    return tuple(_build(sub, leaves) for sub in form[2])


def map_struct(function: Callable[..., Any], struct: Any, *others: Any) -> Any:
    """Apply `function` to every leaf of `struct` (and the matching leaves of `others`)."""
    if is_leaf(struct):
        return function(struct, *others)
    if not others:
        if isinstance(struct, dict):
            return {key: map_struct(function, value) for key, value in struct.items()}
        return tuple([map_struct(function, value) for value in struct])
    if isinstance(struct, dict):
        return {key: map_struct(function, value, *(o[key] for o in others)) for key, value in struct.items()}
    return tuple(map_struct(function, value, *(o[i] for o in others)) for i, value in enumerate(struct))


def stack_rows(rows: Sequence[Any]) -> Any:
    """Stack equally nested rows into one structure whose leaves have a new first axis.

    Raises:
        ColumnError: there are no rows, or the rows differ in nesting.
    """
    if not rows:
        raise ColumnError("stacking rows", expected="at least one row", found="none", do="skip empty columns")
    first, form = flatten(rows[0])
    if form is None:
        return np.stack([np.asarray(row) for row in rows])
    columns = zip(first, *(flatten_like(form, row) for row in rows[1:]))
    return unflatten(form, [np.stack([np.asarray(leaf) for leaf in column]) for column in columns])
