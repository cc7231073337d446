"""Flat observations, under the name ported code uses."""

from __future__ import annotations

from ..common.flatten_observations import FlattenObservations

__all__ = ["FlattenObservations"]
