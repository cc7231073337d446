"""Whether views of one name show a module the same while it acts and while it is trained."""

from __future__ import annotations

from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError

from ..sameness import mean_the_same
from .trajectory_views import TrajectoryViews
from .view import View

__all__ = ["check_same_views"]


def check_same_views(env_to_module: Any, learner: Any) -> None:
    """Refuse views of one name that show one thing while acting and another in training.

    Pieces with `one_sided = True` are left out, and so are views named `obs`, which change observations. Spaces of
    views do not count: they say what is shown before anything was recorded.

    Args:
        env_to_module: The pipeline that acts.
        learner: The one that trains.

    Raises:
        PipelineError: there are such views.

    Example:
        >>> from epibatch.connectors.env_to_module import EnvToModulePipeline
        >>> from epibatch.connectors.learner import LearnerConnectorPipeline
        >>> acting, training = ({"before": View("rewards", -1)}, {"before": View("rewards", -3)})
        >>> try:
        ...     check_same_views(
        ...         EnvToModulePipeline(connectors=[TrajectoryViews(views=acting)]),
        ...         LearnerConnectorPipeline(connectors=[TrajectoryViews(views=training, as_learner_connector=True)]),
        ...     )
        ... except PipelineError as error:
        ...     print(str(error).splitlines()[0])
        view 'before' of the env-to-module and the learner pipeline
    """
    (acts, acts_of), (trains, trains_of) = _views(env_to_module), _views(learner)
    for module_id in (None, *acts_of, *trains_of):
        one, other = {**acts, **acts_of.get(module_id, {})}, {**trains, **trains_of.get(module_id, {})}
        for name in one:
            if name in other and name != Columns.OBS and not mean_the_same(one[name].meaning, other[name].meaning):
                raise _unlike(name, module_id, one[name], other[name])


def _views(pipeline: Any) -> tuple[dict[str, View], dict[Any, dict[str, View]]]:
    """The views that batches of a pipeline have: of all modules, and of single ones."""
    common: dict[str, View] = {}
    per_module: dict[Any, dict[str, View]] = {}
    for piece in pipeline.pieces():
        if isinstance(piece, TrajectoryViews) and not piece.one_sided:
            views, single = piece.views_of_side()
            common.update(views)
            for module_id, own in single.items():
                per_module.setdefault(module_id, {}).update(own)
    return common, per_module


def _unlike(name: str, module_id: Any, one: View, other: View) -> PipelineError:
    module = "" if module_id is None else f" for module {module_id!r}"
    return PipelineError(
        f"view {name!r}{module} of the env-to-module and the learner pipeline",
        expected=f"the same in both, as a module is to be trained on what it acts on: {_said(one)}",
        found=f"{_said(other)} in learner",
        do="declare it once for both, .rl_module(view_requirements={...}), or give one of the two another name",
    )


def _said(view: View) -> str:
    arguments = {key: value for key, value in view.to_dict().items() if key not in ("train", "act", "space")}
    return f"View({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
