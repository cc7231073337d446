"""The way back from modules to agents, under the name ported code uses."""

from __future__ import annotations

from ..module_to_env.module_to_agent_unmapping import ModuleToAgentUnmapping

__all__ = ["ModuleToAgentUnmapping"]
