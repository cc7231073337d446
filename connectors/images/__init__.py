"""Pieces for images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .crops import CenterCrop, Crop
    from .grayscale import Grayscale
    from .random_crop import RandomCrop
    from .resize import Resize
    from .to_chw_float import ToCHWFloat

__all__ = ["CenterCrop", "Crop", "Grayscale", "RandomCrop", "Resize", "ToCHWFloat"]

__getattr__, __dir__ = lazy_exports(__name__)
