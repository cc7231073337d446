"""RLModules: the networks that runners act with and learners train, and the default ones for common spaces."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
