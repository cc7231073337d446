# `make generated` writes the pieces that this package defines; other names are kept.

from .add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
)
from .add_other_agents_from_episodes_to_batch import (
    AddOtherAgentsFromEpisodesToBatch as AddOtherAgentsFromEpisodesToBatch,
)
from .add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch
from .add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad
from .agent_to_module_mapping import AgentToModuleMapping as AgentToModuleMapping
from .batch_individual_items import BatchIndividualItems as BatchIndividualItems
from .flatten_observations import FlattenObservations as FlattenObservations
from .frame_stacking import FrameStacking as FrameStacking
from .numpy_to_tensor import NumpyToTensor as NumpyToTensor
from .stack_agents import StackAgents as StackAgents
from .tensor_to_numpy import TensorToNumpy as TensorToNumpy
