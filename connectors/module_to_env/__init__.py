"""From a module's output to actions for the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ..common import TensorToNumpy
    from .cut_padded_actions import CutPaddedActions
    from .get_actions import GetActions
    from .listify_data_for_vector_env import ListifyDataForVectorEnv
    from .module_to_agent_unmapping import ModuleToAgentUnmapping
    from .module_to_env_pipeline import ModuleToEnvPipeline, default_pipeline
    from .normalize_and_clip_actions import NormalizeAndClipActions
    from .remove_single_ts_time_rank_from_batch import RemoveSingleTsTimeRankFromBatch
    from .unbatch_to_individual_items import UnBatchToIndividualItems
    from .unstack_agents import UnstackAgents


__all__ = [
    "TensorToNumpy",
    "GetActions",
    "ListifyDataForVectorEnv",
    "ModuleToAgentUnmapping",
    "ModuleToEnvPipeline",
    "NormalizeAndClipActions",
    "RemoveSingleTsTimeRankFromBatch",
    "UnBatchToIndividualItems",
    "UnstackAgents",
    "CutPaddedActions",
    "default_pipeline",
]

__getattr__, __dir__ = lazy_exports(__name__)
