"""Ports files written for RLlib: it changes their imports, and lists the remaining work."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
