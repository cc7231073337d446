"""Losses, minibatches, advantages and optimisation."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
