"""Conversion of episodes and connector pieces between RLlib and epibatch.

It needs RLlib, which `pip install 'epibatch[rllib]'` installs, and loads it when one of these names is used.
"""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
