"""Pieces that serve on more than one side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
    from .add_other_agents_from_episodes_to_batch import AddOtherAgentsFromEpisodesToBatch
    from .add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
    from .add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
    from .agent_to_module_mapping import AgentToModuleMapping
    from .batch_individual_items import BatchIndividualItems
    from .flatten_observations import FlattenObservations
    from .frame_stacking import FrameStacking
    from .numpy_to_tensor import NumpyToTensor
    from .stack_agents import StackAgents
    from .tensor_to_numpy import TensorToNumpy


__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddOtherAgentsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "FlattenObservations",
    "FrameStacking",
    "NumpyToTensor",
    "StackAgents",
    "TensorToNumpy",
]

__getattr__, __dir__ = lazy_exports(__name__)
