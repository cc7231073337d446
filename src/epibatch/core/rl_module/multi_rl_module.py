"""RLlib's path of `MultiRLModule` and `MultiRLModuleSpec`."""

from __future__ import annotations

from epibatch.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec

__all__ = ["MultiRLModule", "MultiRLModuleSpec"]
