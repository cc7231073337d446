"""The pieces that acting and training have in common, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._engine.checks import check_connectors
from ..learner.add_columns_from_episodes_to_train_batch import AddColumnsFromEpisodesToTrainBatch
from ..views.declared_views import with_declared_views
from .add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from .add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from .add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from .agent_to_module_mapping import AgentToModuleMapping
from .batch_individual_items import BatchIndividualItems
from .numpy_to_tensor import NumpyToTensor

__all__ = ["default_pieces"]


def default_pieces(
    connectors: Sequence[Any], training: bool, *, device: Any, views: Any, views_per_module: Any, **agents: Any
) -> list[Any]:
    """The user's pieces, then the default ones from episodes to tensors, with views.

    Args:
        connectors: The user's pieces.
        training: True for the learner pipeline, False for env-to-module.
        device: Torch device of the tensors.
        views: Views of all modules.
        views_per_module: Module id -> views of its rows only.
        **agents: Arguments of AgentToModuleMapping; if all are None, episodes have one agent.
    """
    check_connectors("default_pipeline", connectors)
    several = any(value is not None for value in agents.values())
    pieces = [
        *connectors,
        AddObservationsFromEpisodesToBatch(),
        *([AddColumnsFromEpisodesToTrainBatch()] if training else []),
        AddTimeDimToBatchAndZeroPad(),
        AddStatesFromEpisodesToBatch(),
        *([AgentToModuleMapping(**agents)] if several else []),
        BatchIndividualItems(multi_agent=several),
        NumpyToTensor(device=device, pin_memory=training and str(device).startswith("cuda")),
    ]
    if views or views_per_module:
        pieces = with_declared_views(pieces, views or {}, views_per_module or {}, training)
    return pieces
