"""The ground floor: what every part uses and that uses no part."""

from __future__ import annotations

from epibatch.core.columns import Columns

__all__ = [
    "ALL_MODULES",
    "Columns",
    "DEFAULT_AGENT_ID",
    "DEFAULT_MODULE_ID",
    "DEFAULT_POLICY_ID",
    "POLICIES_TO_TRAIN",
]

__version__ = "0.1.0"

DEFAULT_AGENT_ID = "default_agent"
DEFAULT_MODULE_ID = "default_policy"
DEFAULT_POLICY_ID = "default_policy"
ALL_MODULES = "__all_modules__"
POLICIES_TO_TRAIN = "policies_to_train"  # in shared_data: a frozenset of the ids of the modules to update
