"""Checks of connector pieces and of environments, for tests of custom ones."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
