"""Whether a learner pipeline gives the module what the env-to-module pipeline gave it to act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError
from epibatch.core.piece_arguments import all_arguments

from .sameness import mean_the_same

__all__ = ["check_two_sides", "own_arguments", "own_change"]

_NO_CHANGE = ("as_learner_connector", "multi_agent", "input_observation_space", "input_action_space")
_OR = "\n            or "
_VIEW = (
    "let the view named 'obs' be seen on both sides, "
    'such as View("obs", shift="-1:0"), without train=, act= or shifts above 0'
    f'{_OR}give it another name, such as "next_obs": the module has it beside the observations then'
)
_BOTH = ".env_runners(env_to_module_connector=...) and .learners(learner_connector=...)"


def own_change(piece: Any, column: str) -> Any:
    """What a piece of no particular kind makes of a column: its class and its arguments, but for the side it is on.

    Args:
        piece: A connector piece.
        column: Name of the column.
    """
    declared = piece.columnar or piece.reads is not None
    if not declared or piece.rewrites_observations or column not in piece.writes:
        return None
    return type(piece), own_arguments(piece)


def own_arguments(piece: Any) -> dict[str, Any]:
    """A piece's arguments, defaults too, without those that say which side it is on and what stands in front of it."""
    arguments = all_arguments(type(piece), *piece.get_ctor_args_and_kwargs())
    return {name: value for name, value in arguments.items() if name not in _NO_CHANGE}


def check_two_sides(env_to_module: Any, learner: Any) -> None:
    """Refuse pipelines by which a module would learn from something else than it acts on.

    What pieces of the env-to-module pipeline write into the episodes is what learner pieces find there; what pieces
    make of the batch's observations is to be made on both sides, by equal pieces in the same order. Actions are stored
    as the module gave them, and stay so, since their log-probabilities were recorded with them. Pieces that declare
    nothing are trusted, and so are those with `one_sided = True`. Views of one name are to show the same on both
    sides, and one named `obs`, which replaces the observations, is to be there on both, unless it changes nothing.

    Args:
        env_to_module: Acts.
        learner: Trains.

    Raises:
        PipelineError: pieces change observations on one side only, or differently; views of one name
            differ; the spaces that come out differ; or a learner piece changes actions.

    Example:
        >>> from epibatch.connectors.env_to_module import EnvToModulePipeline
        >>> from epibatch.connectors.learner import LearnerConnectorPipeline
        >>> from epibatch.connectors.observations import Clip
        >>> try:
        ...     check_two_sides(EnvToModulePipeline(connectors=[Clip(low=0.0)]), LearnerConnectorPipeline())
        ... except PipelineError as error:
        ...     print(str(error).splitlines()[2])
          found:    Clip(columns='obs', low=0.0, high=None) in env_to_module only
    """
    from .views.same_views import check_same_views  # which imports the pieces' base class, and that this module

    acting, training = _changes(env_to_module), _changes(learner)
    if [change for _, change in acting] != [change for _, change in training]:
        raise _unlike([piece for piece, _ in acting], [piece for piece, _ in training])
    check_same_views(env_to_module, learner)
    _check_observation_spaces(env_to_module, learner)
    _check_actions(env_to_module, learner)


class _Change:
    """What a piece does, to be compared with what another does."""

    def __init__(self, what: Any) -> None:
        self._what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Change) and mean_the_same(self._what, other._what)

    __hash__ = None  # type: ignore[assignment]


def _changes(pipeline: Any) -> list[tuple[Any, _Change]]:
    """The pieces that change observations in the batch, without writing them into the episodes."""
    found: list[tuple[Any, _Change]] = []
    for piece in pipeline.pieces():
        if piece.rewrites_observations:
            found = []  # what pieces in front made is in the episodes
        elif not piece.one_sided and piece.change_of(Columns.OBS) is not None:
            found.append((piece, _Change(piece.change_of(Columns.OBS))))
    return found


def _unlike(acting: Sequence[Any], training: Sequence[Any]) -> PipelineError:
    if acting and training:
        found = f"{_named(acting)} in env_to_module, {_named(training)} in learner"
        what = "the same pieces with the same arguments, in the same order,"
    else:
        found = f"{_named(acting or training)} in {'env_to_module' if acting else 'learner'} only"
        what = _named(acting or training)
    do = f"put {what} into both: {_BOTH}"
    if any(_sees_one_sided(piece) for piece in (*acting, *training)):
        do = _VIEW
    elif acting and not any(piece.replaces for piece in acting):
        do += f"{_OR}let WriteObservationsToEpisodes follow in env_to_module, and leave them out of learner"
    return PipelineError(
        "the env-to-module and the learner pipeline",
        expected="the same changes of observations in both, as a module is to be trained on what it acts on",
        found=found,
        do=f"{do}{_OR}if it is meant, as with augmentation, write one_sided = True in the piece's class",
    )


def _sees_one_sided(piece: Any) -> bool:
    """Whether a piece has a view of that name which is for one side only."""
    view = getattr(piece, "views", {}).get(Columns.OBS)
    return view is not None and not (view.train and view.act)


def _named(pieces: Sequence[Any]) -> str:
    return ", ".join(map(repr, pieces))


# -- spaces ----------------------------------------------------------------------------------------


def _check_observation_spaces(env_to_module: Any, learner: Any) -> None:
    pieces = learner.pieces()
    if not any(_is_declared(piece) and Columns.OBS in piece.writes for piece in pieces):
        return  # nothing is known about its observations
    if any(_may_store(piece) for piece in env_to_module.pieces()):
        return
    acts, trains = env_to_module.observation_space, learner.observation_space
    free = any(piece.one_sided for piece in (*env_to_module.pieces(), *pieces))
    for where, one, other in _beside_one_another(env_to_module, learner, acts, trains):
        if one == other or (free and _alike(one, other)):
            continue
        raise PipelineError(
            f"observation space{where} of the env-to-module and the learner pipeline",
            expected=f"{one}, as the module acts on",
            found=f"{other}, as it would be trained on",
            do=f"let the same pieces change observations on both sides: {_BOTH}",
        )


def _is_declared(piece: Any) -> bool:
    return bool(piece.columnar or piece.reads is not None)


def _may_store(piece: Any) -> bool:
    """Whether a piece declares nothing and changes observations: they may be in the episodes, or in the batch alone."""
    changed = piece.observation_space != piece.input_observation_space
    return changed and not _is_declared(piece) and not piece.rewrites_observations


def _beside_one_another(env_to_module: Any, learner: Any, one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Spaces to compare: those of each module where there are several."""
    if one is None or other is None:
        return []
    mapped = [any(piece.maps_agents for piece in pipeline.pieces()) for pipeline in (env_to_module, learner)]
    if not any(mapped):
        return [("", one, other)]
    if not all(mapped) or not all(isinstance(space, gym.spaces.Dict) for space in (one, other)):
        return []
    return [(f" for module {key!r}", space, other[key]) for key, space in one.items() if key in other.spaces]


def _alike(one: Any, other: Any) -> bool:
    """Whether two spaces have the same parts, but for their bounds."""
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        return one.shape == other.shape and one.dtype == other.dtype
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        return one.keys() == other.keys() and all(_alike(own, other[key]) for key, own in one.items())
    if isinstance(one, gym.spaces.Tuple) and isinstance(other, gym.spaces.Tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


# -- actions ---------------------------------------------------------------------------------------


def _check_actions(env_to_module: Any, learner: Any) -> None:
    expected = "actions as the module gave them, to which their log-probabilities belong"
    acting = [piece.change_of(Columns.ACTIONS) for piece in env_to_module.pieces()]
    for piece in learner.pieces():
        change = piece.change_of(Columns.ACTIONS)
        if change is None or piece.one_sided:
            continue
        if any(mean_the_same(change, own) for own in acting):
            do = f"leave {type(piece).__name__} out of the learner pipeline: episodes hold what it makes already"
        else:
            do = (
                f"put {type(piece).__name__} into the env-to-module pipeline instead, "
                ".env_runners(env_to_module_connector=...), and write its inverse: the module then acts in that space"
            )
        raise PipelineError("the learner pipeline", expected=expected, found=f"{piece!r}, which changes them", do=do)
    spaces = env_to_module.action_space, learner.action_space
    for where, one, other in _beside_one_another(env_to_module, learner, *spaces):
        if one != other:
            raise PipelineError(
                f"the learner pipeline, action space{where}",
                expected=f"{one}, in which the module acts",
                found=str(other),
                do="change actions in the env-to-module pipeline, .env_runners(env_to_module_connector=...)",
            )
