"""RLlib's episodes and connector pieces as ours, and ours as RLlib's.

It needs RLlib, which `pip install 'epibatch[rllib]'` installs, and loads it when one of these names is used.
"""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
