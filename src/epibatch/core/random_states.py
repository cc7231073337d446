"""Random generators of the process, put back after something ran that is to leave no trace."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["random_state_kept"]


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the random states of Python, of NumPy and, if it is loaded, of torch back at the end.

    Example:
        >>> random.seed(0)
        >>> with random_state_kept():
        ...     inside = random.random()
        >>> random.random() == inside
        True
    """
    torch, known = sys.modules.get("torch"), (random.getstate(), np.random.get_state())
    try:
        if torch is None:
            yield
        else:
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            with torch.random.fork_rng(devices=devices):
                yield
    finally:
        random.setstate(known[0])
        np.random.set_state(known[1])
