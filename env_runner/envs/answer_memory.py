"""Large arrays of a process's answers, which travel in shared memory beside the pipe."""

from __future__ import annotations

import mmap
import os
import pickle
from itertools import accumulate
from typing import Any, NamedTuple

_LARGE = 2**15
"""Arrays of fewer bytes stay in the message."""


class _Parked(NamedTuple):
    """A message whose large arrays lie in the memory.

    Args:
        message: The pickled values without these arrays.
        sizes: Bytes of each array, in the order in which they lie there.
        path: Where the other process opens the memory if it is a new one.
    """

    message: bytes
    sizes: list[int]
    path: str | None


class AnswerMemory:
    """Memory of two processes for the large arrays of pickled values, whatever these are.

    The process that answers calls `dumps`, and the other one `loads` before the next answer. `loads` copies the arrays
    out, so they stay as they are. The memory grows with the answers, and is freed when both processes have ended.
    Without room for it, and on systems other than Linux, arrays stay in the messages.

    Examples:
        >>> import numpy as np
        >>> here, there = AnswerMemory(), AnswerMemory()
        >>> message = there.dumps({"obs": np.zeros(10**6), "t": 3})
        >>> len(message) < 1000, here.loads(message)["obs"].shape
        (True, (1000000,))
    """

    def __init__(self) -> None:
        self._memory: Any = b""
        self._file: int | None = None  # until the other process has opened it
        self._full = not (hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"))

    def dumps(self, values: Any) -> bytes:
        """Return a message with values; large arrays go into the memory."""
        arrays: list[memoryview] = []
        if self._file is not None:
            os.close(self._file)
            self._file = None

        def stays(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes >= _LARGE:
                arrays.append(raw)
            return raw.nbytes < _LARGE

        message = pickle.dumps(values, protocol=5, buffer_callback=None if self._full else stays)
        if not arrays:
            return message
        ends = list(accumulate(raw.nbytes for raw in arrays))
        path = None
        if ends[-1] > len(self._memory):
            try:
                path = self._grow(ends[-1] + ends[-1] // 4)
            except OSError:  # no room there
                self._full = True
                return pickle.dumps(values, protocol=5)
        for end, raw in zip(ends, arrays):
            self._memory[end - raw.nbytes : end] = raw
        return pickle.dumps(_Parked(message, [raw.nbytes for raw in arrays], path))

    def _grow(self, size: int) -> str:
        """Make new memory of a size, and return where the other process opens it."""
        self._file = os.memfd_create("epibatch")
        os.posix_fallocate(self._file, 0, size)
        self._memory = mmap.mmap(self._file, size)
        return f"/proc/{os.getpid()}/fd/{self._file}"  # no name in a folder, which a killed process would leave there

    def loads(self, message: bytes) -> Any:
        """Return the values of a message."""
        values = pickle.loads(message)
        if not isinstance(values, _Parked):
            return values
        if values.path is not None:
            with open(values.path, "r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)
        starts = accumulate(values.sizes, initial=0)
        with memoryview(self._memory) as memory:
            arrays = [bytearray(memory[start : start + size]) for start, size in zip(starts, values.sizes)]
        return pickle.loads(values.message, buffers=arrays)
