"""Action distributions: thin classes over a module's `action_dist_inputs`, cheap to build at every step."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
