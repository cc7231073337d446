"""NumPy values and keys as Python's own."""

from __future__ import annotations

from typing import Any

import numpy as np


def python_scalar(value: Any) -> Any:
    """A NumPy scalar or array as Python's numbers, text and lists; other values as they are."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def plain_key(key: Any) -> Any:
    """A key as Python's own str, int, float, bool, None, or tuple of these; equal to it, with the same hash.

    Raises:
        TypeError: a key of another type.

    Examples:
        >>> plain_key((np.str_("red"), np.int64(0)))
        ('red', 0)
    """
    if isinstance(key, tuple):
        return tuple(map(plain_key, key))
    if isinstance(key, np.generic):
        key = key.item()
    if key is None or isinstance(key, bool):
        return key
    if isinstance(key, str):
        return str.__str__(key)  # not str(key), which an Enum answers with its name
    if isinstance(key, (int, float)):
        return key.__int__() if isinstance(key, int) else key.__float__()
    raise TypeError(type(key).__name__)


def key_text(key: Any) -> str:
    """A key as text, in which NumPy's values look like Python's; keys of other types as `str` gives them.

    Examples:
        >>> key_text(("red", np.int64(0)))
        "('red', 0)"
    """
    try:
        return str(plain_key(key))
    except TypeError:
        return str(key)
