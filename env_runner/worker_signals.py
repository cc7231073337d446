"""Ctrl-C is for the process that trains: its workers go on until they are told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["workers_ignore_ctrl_c"]


@contextmanager
def workers_ignore_ctrl_c() -> Iterator[None]:
    """Let processes that are started inside never get SIGINT.

    A terminal sends it to every process at once; workers that die of it take the iteration with them that the
    training process was about to finish. One that arrives meanwhile is not lost to this process. Windows has no
    way to do so, and there nothing changes.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
