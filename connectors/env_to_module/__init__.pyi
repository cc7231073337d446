# `make generated` writes the pieces that this package defines; other names are kept.

from ..common import (
    AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping as AgentToModuleMapping,
    BatchIndividualItems as BatchIndividualItems,
    NumpyToTensor as NumpyToTensor,
)
from .agent_indicator import AgentIndicator as AgentIndicator
from .env_to_module_pipeline import EnvToModulePipeline as EnvToModulePipeline, default_pipeline as default_pipeline
from .flatten_observations import FlattenObservations as FlattenObservations
from .frame_stacking import FrameStackingEnvToModule as FrameStackingEnvToModule
from .mean_std_filter import MeanStdFilter as MeanStdFilter
from .observation_preprocessor import (
    MultiAgentObservationPreprocessor as MultiAgentObservationPreprocessor,
    ObservationPreprocessor as ObservationPreprocessor,
    SingleAgentObservationPreprocessor as SingleAgentObservationPreprocessor,
)
from .pad_actions import PadActions as PadActions
from .pad_observations import PadObservations as PadObservations
from .prev_actions_prev_rewards import PrevActionsPrevRewards as PrevActionsPrevRewards
from .write_observations_to_episodes import WriteObservationsToEpisodes as WriteObservationsToEpisodes
