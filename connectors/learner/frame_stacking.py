"""Frame stacking on the training side, under the name ported code uses."""

from __future__ import annotations

from functools import partial

from ..common.frame_stacking import FrameStacking

__all__ = ["FrameStackingLearner"]

FrameStackingLearner = partial(FrameStacking, as_learner_connector=True)
