"""Errors as a user wants to read them: from the first line of their own code on, without the frames around it."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from epibatch.core.errors import EpibatchError

_FRAMEWORKS = {"click", "epibatch", "gymnasium", "numpy", "torch", "typer"}


def error_report(error: BaseException) -> str:
    r"""Return the text for an error that ended a run: its traceback and those of its causes, shortened.

    Frames of epibatch and its dependencies before the first other frame are left out. An error that epibatch
    raised on purpose, without a frame of other code, is reduced to its message.

    Args:
        error: The error, caught.

    Examples:
        >>> print(error_report(EpibatchError("where\n  expected: a\n  found:    b")))
        error: where
          expected: a
          found:    b
    """
    parts = [_text(link) for link in _cause_chain(error)]
    return "\n\nwhich led to this error:\n\n".join(parts)


def _cause_chain(error: BaseException) -> list[BaseException]:
    """The error and what caused it, the first cause first."""
    links: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in links:
        links.append(current)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return links[::-1]


def _text(error: BaseException) -> str:
    trace, has_user_code = _trimmed(error.__traceback__)
    if isinstance(error, EpibatchError) and not has_user_code:
        return f"error: {error}"
    lines = ["Traceback (from your code on):\n" if has_user_code else "Traceback (most recent call last):\n"]
    lines += traceback.format_tb(trace)
    lines += traceback.format_exception_only(type(error), error)
    return "".join(lines).rstrip()


def _trimmed(trace: TracebackType | None) -> tuple[TracebackType | None, bool]:
    """The traceback from the first frame of a user's on, and whether there is one."""
    first_foreign: TracebackType | None = None
    current = trace
    while current is not None:
        root = str(current.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if root not in _FRAMEWORKS and root not in sys.stdlib_module_names:
            return current, True
        if first_foreign is None and root != "epibatch":
            first_foreign = current
        current = current.tb_next
    return first_foreign or trace, False
