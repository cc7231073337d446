"""Value targets from value predictions."""

from __future__ import annotations

from epibatch.core.advantages import compute_value_targets

__all__ = ["compute_value_targets"]
