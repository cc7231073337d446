"""Episodes into batches: connector pipelines, episodes, runners and learners for reinforcement learning.

Names load when they are first used, so `import epibatch` loads neither torch nor the parts.
"""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
