"""Copies of a pipeline and of what it is given, for calls that change nothing."""

from __future__ import annotations

import copy
from typing import Any

from epibatch.core.errors import PieceError, add_context


def copied(method: str, pipeline: Any, *arguments: Any, kept: Any = None, do: str) -> Any:
    """Copy a pipeline, without its watches, and what it is given.

    Args:
        method: The pipeline's method that needs the copies, for messages.
        pipeline: The pipeline.
        *arguments: Episodes, a batch, a module.
        kept: What is not copied wherever it is found.
        do: What to do about something that cannot be copied.

    Returns:
        The copies, the pipeline's first.
    """
    watch, watches = pipeline.watch, pipeline.watches
    pipeline.watch, pipeline.watches = None, []
    try:
        return copy.deepcopy((pipeline, *arguments), {id(kept): kept})
    except Exception as error:
        context = PieceError(
            f"{type(pipeline).__name__}.{method}",
            expected="pieces and arguments that can be copied, so that it changes nothing",
            found="something that copy.deepcopy cannot copy, see below",
            do=do,
        )
        add_context(error, str(context))
        raise
    finally:
        pipeline.watch, pipeline.watches = watch, watches
