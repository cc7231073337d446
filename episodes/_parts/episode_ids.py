"""Names for episodes that have none."""

from __future__ import annotations

import os

__all__ = ["fresh_id"]

_BYTES, _POOL = 16, 256
_fresh: list[str] = []


def fresh_id() -> str:
    """A random name of 32 hexadecimal digits.

    The system's random source is asked for many names at once, because asking costs more than the name. A forked
    process forgets those left over, so that it does not use its parent's.

    Example:
        >>> len(fresh_id()), fresh_id() == fresh_id()
        (32, False)
    """
    while True:
        try:
            return _fresh.pop()
        except IndexError:  # empty, or another thread took the last one
            digits = os.urandom(_BYTES * _POOL).hex()
            _fresh.extend(digits[at : at + 2 * _BYTES] for at in range(0, len(digits), 2 * _BYTES))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh.clear)
