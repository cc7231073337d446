"""From a module's output to actions for the environment."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..common import TensorToNumpy
    from .get_actions import GetActions
    from .listify_data_for_vector_env import ListifyDataForVectorEnv
    from .module_to_env_pipeline import ModuleToEnvPipeline
    from .normalize_and_clip_actions import NormalizeAndClipActions
    from .remove_single_ts_time_rank_from_batch import RemoveSingleTsTimeRankFromBatch
    from .unbatch_to_individual_items import UnBatchToIndividualItems

_COMMON = ("TensorToNumpy",)

_MODULES = {
    "GetActions": "get_actions",
    "ListifyDataForVectorEnv": "listify_data_for_vector_env",
    "ModuleToEnvPipeline": "module_to_env_pipeline",
    "NormalizeAndClipActions": "normalize_and_clip_actions",
    "RemoveSingleTsTimeRankFromBatch": "remove_single_ts_time_rank_from_batch",
    "UnBatchToIndividualItems": "unbatch_to_individual_items",
}

__all__ = [
    "TensorToNumpy",
    "GetActions",
    "ListifyDataForVectorEnv",
    "ModuleToEnvPipeline",
    "NormalizeAndClipActions",
    "RemoveSingleTsTimeRankFromBatch",
    "UnBatchToIndividualItems",
]


def __getattr__(name: str) -> Any:
    if name in _COMMON:
        return getattr(import_module("epibatch.connectors.common"), name)
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
