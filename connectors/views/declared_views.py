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

__all__ = ["add_view", "declare_views", "with_declared_views"]

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

    It goes into the pipeline's TrajectoryViews piece, or into a new one: in the learner pipeline in front of all
    pieces, since they may change what the module was shown; in the env-to-module pipeline behind the user's pieces. A
    view that is not for this side changes nothing. Episodes have to keep as many steps as it reads when they are cut.

    Args:
        pipeline: A learner or env-to-module pipeline.
        name: The new column.
        view: What it shows, or a dict of `View`'s arguments.

    Raises:
        ConfigError: a view that cannot be meant, or a name that the pipeline has a view of already.

    Example:
        >>> from epibatch.connectors.learner import LearnerConnectorPipeline
        >>> pipeline = LearnerConnectorPipeline()
        >>> add_view(pipeline, "next_actions", View("actions", shift=1))
        >>> pipeline
        LearnerConnectorPipeline(
          0: TrajectoryViews(views={'next_actions': {'column': 'actions', 'shift': 1}}, as_learner_connector=True)
        )
    """
    views = as_views({name: view}, "add_view")
    if not _of_side(views, bool(pipeline.training)):
        return
    for place, piece in enumerate(pipeline.connectors):
        if type(piece) is not TrajectoryViews:
            continue
        if any(name in own for own in (piece.views, *piece.per_module.values())):
            found = f"{name!r}, which the pipeline has already"
            raise ConfigError("add_view", expected="a new name", found=found, do="choose another one")
        if piece.per_sequence == views[name].per_sequence:
            wider = _wider(piece, views)
            _give(pipeline, [*pipeline.connectors[:place], wider, *pipeline.connectors[place + 1 :]])
            return
    _give(pipeline, _placed(pipeline.connectors, _piece(views, {}, bool(pipeline.training)), pipeline.training))


def declare_views(pipeline: ConnectorPipelineV2, views: Views, per_module: Mapping[str, Views]) -> None:
    """Let a pipeline have the views that modules declare, in place of those that it was told before.

    Args:
        pipeline: A learner or env-to-module pipeline.
        views: Of all modules.
        per_module: Module id -> views of its rows.

    Raises:
        ConfigError: views that cannot be meant.
    """
    _give(pipeline, with_declared_views(pipeline.connectors, views, per_module, bool(pipeline.training)))


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
        ConfigError: views that cannot be meant.
    """
    out = [piece for piece in pieces if not getattr(piece, "declared", False)]
    for per_sequence in (False, True):
        chosen = _of_side(views, training, per_sequence)
        own = {module_id: _of_side(some, training, per_sequence) for module_id, some in per_module.items()}
        own = {module_id: some for module_id, some in own.items() if some}
        if chosen or own:
            piece = _piece(chosen, own, training)
            piece.declared = True
            out = _placed(out, piece, training)
    return out


def _of_side(views: Views, training: bool, per_sequence: bool | None = None) -> dict[str, View]:
    return {
        name: view
        for name, view in views.items()
        if (view.train if training else view.act) and per_sequence in (None, view.per_sequence)
    }


def _piece(views: Views, per_module: Mapping[str, Views], training: bool) -> TrajectoryViews:
    """A new piece with these views, as data where they are data."""
    keywords: dict[str, Any] = {"views": _data(views)} if views else {}
    if per_module:
        keywords["per_module"] = {module_id: _data(own) for module_id, own in per_module.items()}
    if training:
        keywords["as_learner_connector"] = True
    return TrajectoryViews(**keywords)


def _wider(piece: TrajectoryViews, views: Views) -> TrajectoryViews:
    """A piece like another one that has more views of all modules."""
    args, keywords = piece.get_ctor_args_and_kwargs()
    wider = TrajectoryViews(*args, **{**keywords, "views": _data({**piece.views, **views})})
    for name in ("declared", "shared", "frozen", "one_sided"):
        setattr(wider, name, getattr(piece, name))
    return wider


def _data(views: Views) -> dict[str, Any]:
    return {name: view.to_dict() for name, view in views.items()}


def _give(pipeline: ConnectorPipelineV2, pieces: list[Any]) -> None:
    """Let a pipeline have these pieces; it stays as it was if it cannot."""
    before = list(pipeline.connectors)
    pipeline.connectors[:] = pieces
    try:
        pipeline.plan()
    except Exception:
        pipeline.connectors[:] = before
        pipeline.plan()
        raise


def _placed(pieces: Sequence[Any], piece: TrajectoryViews, training: bool | None) -> list[Any]:
    """The pieces with one more where its views belong."""
    time = [i for i, one in enumerate(pieces) if isinstance(one, AddTimeDimToBatchAndZeroPad)]
    defaults = [i for i, one in enumerate(pieces) if isinstance(one, _DEFAULTS)]
    place = defaults[0] if defaults else len(pieces)
    if piece.per_sequence and time:
        place = time[0] + 1
    elif training:
        place = 0
    return [*pieces[:place], piece, *pieces[place:]]
