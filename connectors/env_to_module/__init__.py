"""From the newest observations to a module's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ..common import (
        AddObservationsFromEpisodesToBatch,
        AddStatesFromEpisodesToBatch,
        AddTimeDimToBatchAndZeroPad,
        AgentToModuleMapping,
        BatchIndividualItems,
        NumpyToTensor,
    )
    from .agent_indicator import AgentIndicator
    from .env_to_module_pipeline import EnvToModulePipeline, default_pipeline
    from .flatten_observations import FlattenObservations
    from .frame_stacking import FrameStackingEnvToModule
    from .mean_std_filter import MeanStdFilter
    from .observation_preprocessor import (
        MultiAgentObservationPreprocessor,
        ObservationPreprocessor,
        SingleAgentObservationPreprocessor,
    )
    from .pad_actions import PadActions
    from .pad_observations import PadObservations
    from .prev_actions_prev_rewards import PrevActionsPrevRewards
    from .write_observations_to_episodes import WriteObservationsToEpisodes


__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "NumpyToTensor",
    "EnvToModulePipeline",
    "FlattenObservations",
    "FrameStackingEnvToModule",
    "MeanStdFilter",
    "MultiAgentObservationPreprocessor",
    "ObservationPreprocessor",
    "PrevActionsPrevRewards",
    "SingleAgentObservationPreprocessor",
    "WriteObservationsToEpisodes",
    "AgentIndicator",
    "PadActions",
    "PadObservations",
    "default_pipeline",
]

__getattr__, __dir__ = lazy_exports(__name__)
