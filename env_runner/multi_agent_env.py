"""RLlib's path of `MultiAgentEnv` and `make_multi_agent`."""

from __future__ import annotations

from .envs.make_env import make_multi_agent
from .envs.multi_agent_base import MultiAgentEnv

__all__ = ["MultiAgentEnv", "make_multi_agent"]
