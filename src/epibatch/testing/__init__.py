"""The contract of connector pieces, as checks for the tests of whoever writes one."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
