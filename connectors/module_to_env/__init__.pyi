# `make generated` writes the pieces that this package defines; other names are kept.

from ..common import TensorToNumpy as TensorToNumpy
from .cut_padded_actions import CutPaddedActions as CutPaddedActions
from .get_actions import GetActions as GetActions
from .listify_data_for_vector_env import ListifyDataForVectorEnv as ListifyDataForVectorEnv
from .module_to_agent_unmapping import ModuleToAgentUnmapping as ModuleToAgentUnmapping
from .module_to_env_pipeline import ModuleToEnvPipeline as ModuleToEnvPipeline, default_pipeline as default_pipeline
from .normalize_and_clip_actions import NormalizeAndClipActions as NormalizeAndClipActions
from .remove_single_ts_time_rank_from_batch import RemoveSingleTsTimeRankFromBatch as RemoveSingleTsTimeRankFromBatch
from .unbatch_to_individual_items import UnBatchToIndividualItems as UnBatchToIndividualItems
from .unstack_agents import UnstackAgents as UnstackAgents
