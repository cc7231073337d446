"""Views in pipelines that exist already: those that a config's modules declare, and more while a program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import ConfigError

from ..common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from ..common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from ..common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from ..common.agent_to_module_mapping import AgentToModuleMapping
from ..common.batch_individual_items import BatchIndividualItems
from .trajectory_views import TrajectoryViews
from .view import View, as_views

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2

_DEFAULTS = (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AddStatesFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
)
Views = Mapping[str, View]


def add_view(pipeline: ConnectorPipelineV2, name: str, view: View | Mapping[str, Any]) -> None:
    """Let the batches of a pipeline have one column more, from its next call on.

    The pipeline gets one more TrajectoryViews piece: in the learner pipeline before all pieces, since they may change
    what the module was shown; in the env-to-module pipeline after the user's pieces. A view that is not for this side
    changes nothing. Episodes have to keep as many steps as the view reads when they are cut.

    Args:
        pipeline: A learner or env-to-module pipeline.
        name: The new column.
        view: What it shows, or a dict of `View`'s arguments.

    Raises:
        ConfigError: an invalid view, or a name that the pipeline has a view of already.

    Examples:
        >>> from epibatch.connectors.learner import LearnerConnectorPipeline
        >>> pipeline = LearnerConnectorPipeline()
        >>> add_view(pipeline, "next_actions", View("actions", shift=1))
        >>> pipeline
        LearnerConnectorPipeline(
          0: TrajectoryViews(views={'next_actions': {'column': 'actions', 'shift': 1}})
        )
    """
    views, training = as_views({name: view}, "add_view"), bool(pipeline.training)
    pieces = [piece for piece in pipeline.connectors if isinstance(piece, TrajectoryViews)]
    if any(name in names for piece in pieces for names in (piece.views or {}, *(piece.per_module or {}).values())):
        found = f"{name!r}, which the pipeline has already"
        raise ConfigError("add_view", expected="a new name", found=found, do="choose another one")
    if _of_side(views, training):
        pipeline.replace_pieces(_placed(pipeline.connectors, _piece(views, {}), training))


def declare_views(pipeline: ConnectorPipelineV2, views: Views, per_module: Mapping[str, Views]) -> None:
    """Let a pipeline have the views that modules declare, in place of those that it was told before.

    Args:
        pipeline: A learner or env-to-module pipeline.
        views: Of all modules.
        per_module: Module id -> views of its rows.

    Raises:
        ConfigError: invalid views.
    """
    pipeline.replace_pieces(with_declared_views(pipeline.connectors, views, per_module, bool(pipeline.training)))


def with_declared_views(
    pieces: Sequence[Any], views: Views, per_module: Mapping[str, Views], training: bool
) -> list[Any]:
    """A pipeline's pieces with those that show what modules declare, in place of earlier ones.

    Args:
        pieces: Of a learner or env-to-module pipeline.
        views: Of all modules.
        per_module: Module id -> views of its rows.
        training: Whether it is the learner's.

    Raises:
        ConfigError: invalid views.
    """
    out = [piece for piece in pieces if not getattr(piece, "declared", False)]
    for per_sequence in (False, True):
        chosen = _of_side(views, training, per_sequence)
        by_module = {module_id: _of_side(some, training, per_sequence) for module_id, some in per_module.items()}
        by_module = {module_id: some for module_id, some in by_module.items() if some}
        if chosen or by_module:
            piece = _piece(chosen, by_module)
            piece.declared = True
            out = _placed(out, piece, training)
    return out


def _of_side(views: Views, training: bool, per_sequence: bool | None = None) -> dict[str, View]:
    return {
        name: view
        for name, view in views.items()
        if (view.train if training else view.act) and per_sequence in (None, view.per_sequence)
    }


def _piece(views: Views, per_module: Mapping[str, Views]) -> TrajectoryViews:
    """A new piece with these views, as data where they are data."""
    keywords: dict[str, Any] = {"views": _data(views)} if views else {}
    if per_module:
        keywords["per_module"] = {module_id: _data(module_views) for module_id, module_views in per_module.items()}
    return TrajectoryViews(**keywords)


def _data(views: Views) -> dict[str, Any]:
    return {name: view.to_dict() for name, view in views.items()}


def _placed(pieces: Sequence[Any], piece: TrajectoryViews, training: bool | None) -> list[Any]:
    """The pieces with one more where its views belong."""
    time = [i for i, other in enumerate(pieces) if isinstance(other, AddTimeDimToBatchAndZeroPad)]
    defaults = [i for i, other in enumerate(pieces) if isinstance(other, _DEFAULTS)]
    place = defaults[0] if defaults else len(pieces)
    if piece.per_sequence and time:
        place = time[0] + 1
    elif training:
        place = 0
    return [*pieces[:place], piece, *pieces[place:]]
