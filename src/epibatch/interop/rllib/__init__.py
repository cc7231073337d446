"""RLlib's episodes and connector pieces as ours, and ours as RLlib's.

It needs RLlib, which `pip install 'epibatch[rllib]'` installs, and loads it when one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .compare import compare_batches
    from .episodes import from_rllib, to_rllib
    from .pieces import from_rllib_piece, to_rllib_piece

__all__ = ["compare_batches", "from_rllib", "from_rllib_piece", "to_rllib", "to_rllib_piece"]

__getattr__, __dir__ = lazy_exports(__name__)
