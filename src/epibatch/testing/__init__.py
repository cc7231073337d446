"""Checks of the contract of connector pieces, for tests of custom pieces."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
