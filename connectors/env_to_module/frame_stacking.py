"""Frame stacking on the acting side, under the name ported code uses."""

from __future__ import annotations

from functools import partial

from ..common.frame_stacking import FrameStacking

__all__ = ["FrameStackingEnvToModule"]

FrameStackingEnvToModule = partial(FrameStacking, as_learner_connector=False)
