"""A training run from the command line: its folder, checkpoints, progress and errors; playing and plotting it."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
