"""Packages that only an extra of epibatch installs."""

from __future__ import annotations

import importlib
from typing import Any

from epibatch.core.errors import MissingExtraError

__all__ = ["import_extra"]


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module that an extra installs.

    Args:
        module: the module.
        extra: the extra that installs it.
        purpose: what it is needed for, for the message.

    Raises:
        MissingExtraError: the module, or one that it needs, is not installed.

    Example:
        >>> import_extra("no_such_module", "video", "videos")
        Traceback (most recent call last):
            ...
        epibatch.core.errors.MissingExtraError: videos
          expected: the extra 'video'
          found:    No module named 'no_such_module'
          do:       pip install 'epibatch[video]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            purpose, expected=f"the extra {extra!r}", found=error, do=f"pip install 'epibatch[{extra}]'"
        ) from error
