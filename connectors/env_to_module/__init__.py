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
    from .env_to_module_pipeline import EnvToModulePipeline
    from .flatten_observations import FlattenObservations
    from .frame_stacking import FrameStackingEnvToModule
    from .mean_std_filter import MeanStdFilter
    from .observation_preprocessor import ObservationPreprocessor, SingleAgentObservationPreprocessor
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
    "ObservationPreprocessor",
    "PrevActionsPrevRewards",
    "SingleAgentObservationPreprocessor",
    "WriteObservationsToEpisodes",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AddObservationsFromEpisodesToBatch": "..common",
        "AddStatesFromEpisodesToBatch": "..common",
        "AddTimeDimToBatchAndZeroPad": "..common",
        "AgentToModuleMapping": "..common",
        "BatchIndividualItems": "..common",
        "EnvToModulePipeline": ".env_to_module_pipeline",
        "FlattenObservations": ".flatten_observations",
        "FrameStackingEnvToModule": ".frame_stacking",
        "MeanStdFilter": ".mean_std_filter",
        "NumpyToTensor": "..common",
        "ObservationPreprocessor": ".observation_preprocessor",
        "PrevActionsPrevRewards": ".prev_actions_prev_rewards",
        "SingleAgentObservationPreprocessor": ".observation_preprocessor",
        "WriteObservationsToEpisodes": ".write_observations_to_episodes",
    },
)
