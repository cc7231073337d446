"""Flat observations on the acting side, under the name ported code uses."""

from __future__ import annotations

from functools import partial

from ..common import flatten_observations

__all__ = ["FlattenObservations"]

FlattenObservations = partial(flatten_observations.FlattenObservations, as_learner_connector=False)
