"""A fingerprint of parts that other processes have, which tells whether they must be sent again."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from typing import Any

import cloudpickle
import torch


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, buffer: io.BytesIO, module: Any, left_out: tuple[type, ...]) -> None:
        super().__init__(buffer)
        self._left_out = left_out
        # kept, so that no other object gets one of their ids
        self._state = module.state_dict(keep_vars=True) if isinstance(module, torch.nn.Module) else {}
        self._names = {id(value): name for name, value in self._state.items() if isinstance(value, torch.Tensor)}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, self._left_out):
            return type(value).__name__
        name = self._names.get(id(value))
        return None if name is None else (name, tuple(value.shape), str(value.dtype), value.requires_grad)


def fingerprint(parts: Iterable[Any], module: Any, left_out: tuple[type, ...]) -> bytes:
    """Return bytes that change with any of the parts, but not with the values of a module's weights.

    Args:
        parts: What to look at; nothing of a part that cannot be pickled counts.
        module: The module whose weights are among the parts.
        left_out: Classes whose objects are no part of them, such as measured seconds.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, module, left_out)
    for part in parts:
        start = buffer.tell()
        with contextlib.suppress(Exception):  # whatever an object's own __reduce__ raises
            pickler.dump(part)
            continue
        buffer.seek(start)
        buffer.truncate()
    return buffer.getvalue()
