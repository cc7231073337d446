"""Config builders and the Algorithm that ties runner and learner together."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
