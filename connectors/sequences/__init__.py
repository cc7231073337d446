"""Pieces that choose and change the sequences of recurrent modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .burn_in import BurnIn
    from .jagged_sequences import JaggedSequences
    from .pack_sequences import PackSequences
    from .random_subsequences import RandomSubsequences


__all__ = ["BurnIn", "JaggedSequences", "PackSequences", "RandomSubsequences"]

__getattr__, __dir__ = lazy_exports(__name__)
