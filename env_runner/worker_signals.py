"""Ctrl-C interrupts only the training process; its workers continue until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["workers_ignore_ctrl_c"]


@contextmanager
def workers_ignore_ctrl_c() -> Iterator[None]:
    """Block SIGINT in processes that are started inside this context.

    A terminal sends it to every process at once. If workers ended, the training process could not finish its
    iteration. A signal that arrives inside the context is delivered to this process later. On Windows signals cannot
    be blocked, so nothing changes there.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
