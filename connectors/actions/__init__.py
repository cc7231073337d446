"""Pieces that change the actions that a module decides on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .action_mask import ActionMask
    from .box_actions import ClipActions, RescaleActions
    from .discretize_actions import DiscretizeActions
    from .episode_noise import EpisodeNoise
    from .project_discrete_actions import ProjectDiscreteActions


__all__ = ["ActionMask", "ClipActions", "DiscretizeActions", "EpisodeNoise", "ProjectDiscreteActions", "RescaleActions"]

__getattr__, __dir__ = lazy_exports(__name__)
