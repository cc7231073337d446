"""Classes under the names of rsl_rl (motion mimic PPO), for loops that were written with it; they do not need it.

They are made of epibatch's own: after its imports are changed, a loop runs as it is. `as_vector_env` adapts
environments that were made for rsl_rl.
"""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
