"""A pipeline's checked plan: what runs in which order, and whether it can work."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import PieceError, PipelineError
from epibatch.core.foreign import advice_for_piece
from epibatch.core.piece_declarations import check_declarations
from epibatch.core.piece_names import snake_case

from ..columnar_piece import ColumnarPiece
from ..connector_v2 import ConnectorV2
from .column_flow import ColumnFlow
from .column_makers import ColumnMakers
from .paired_observations import check_next_observations

__all__ = ["Plan", "Step", "built_piece", "check_connector", "make_plan", "numbered", "place"]


@dataclass(frozen=True)
class Step:
    """One piece of a plan.

    Args:
        piece: The piece.
        name: Its stable name in this plan, the class in snake_case with a number from the second one on.
        where: Pipeline, position and piece, as error messages name it.
        columnar: Whether it takes whole columns.
        sees_bootstraps: Whether it stands behind the piece that adds bootstrap rows.
        writes_episodes: Whether it may write to episodes.
    """

    piece: ConnectorV2
    name: str
    where: str
    columnar: bool
    sees_bootstraps: bool
    writes_episodes: bool

    @cached_property
    def by_group(self) -> bool:
        """Whether the piece is given the columns of one group after the other, and nothing is done around it."""
        whole = isinstance(self.piece, ColumnarPiece) and type(self.piece).run_all is not ColumnarPiece.run_all
        return self.columnar and not self.writes_episodes and not whole


@dataclass(frozen=True)
class Plan:
    """The steps of a pipeline.

    Args:
        connectors: The pieces the plan was made for.
        steps: One per piece.
        plus_one: Whether one of them adds bootstrap rows.
        watched: Whether one of them takes episodes one by one, so that what it reads is watched.
        trusting: Whether one of them is undeclared.
        halves_floats: Whether what makes arrays stands right in front of what makes them float32.
        learning: Whether one of them makes train batches.
    """

    connectors: tuple[ConnectorV2, ...]
    steps: tuple[Step, ...]
    plus_one: bool
    watched: bool
    trusting: bool
    halves_floats: bool = False
    learning: bool = False


def place(pipeline: str, position: int, piece: Any) -> str:
    """Name a piece by its pipeline, position and class."""
    return f"{pipeline}, piece {position} ({type(piece).__name__})"


def numbered(name: str, seen: Counter[str]) -> str:
    """A name that is its own: from the second one on with a number behind it.

    Example:
        >>> seen = Counter()
        >>> [numbered(name, seen) for name in ("a", "b", "a")]
        ['a', 'b', 'a_1']
    """
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}_{seen[name] - 1}"


def check_connector(pipeline: str, position: int, piece: Any) -> ConnectorV2:
    """Make sure that something is a connector piece that can be called as pipelines call pieces.

    Raises:
        PieceError: it is not.
    """
    if isinstance(piece, ConnectorV2):
        _check_signature(pipeline, position, piece)
        return piece
    is_class = isinstance(piece, type) and issubclass(piece, ConnectorV2)
    raise PieceError(
        f"{pipeline}, position {position}",
        expected="an instance of ConnectorV2",
        found=f"the class {piece.__name__}" if is_class else f"{type(piece).__name__}: {piece!r}",
        do=advice_for_piece(piece) or (f"call it: {piece.__name__}(...)" if is_class else _function_advice(piece)),
    )


def _function_advice(piece: Any) -> str:
    if not inspect.isroutine(piece):
        return "subclass ConnectorV2 and pass an instance"
    call = f"{piece.__name__}()" if piece.__name__.isidentifier() else "what the decorated function returns"
    return (
        f'decorate it with @column_function("rewards") if it changes rows of a column, or with @episode_function if it '
        f"changes an episode, both of epibatch.connectors.authoring, and pass {call}"
    )


_CALL = ("rl_module", "batch", "episodes", "explore", "shared_data", "metrics")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _check_signature(pipeline: str, position: int, piece: ConnectorV2) -> None:
    """Refuse a piece whose `__call__` does not accept the keywords that pipelines pass; callers may pass others too."""
    if piece.columnar:
        return
    try:
        signature = inspect.signature(piece)
    except (TypeError, ValueError):  # one that is not written in Python
        return
    try:
        named = [own.name for own in signature.parameters.values() if own.kind in _NAMED and own.default is own.empty]
        signature.bind(**dict.fromkeys([*named, *_CALL]))
    except TypeError as error:
        raise PieceError(
            f"{place(pipeline, position, piece)}, its method __call__",
            expected=f"a method that accepts the keywords {', '.join(_CALL)}",
            found=f"__call__{signature}: {error}",
            do="write def __call__(self, *, rl_module, batch, episodes, **kwargs); **kwargs accepts the rest",
        ) from None


def built_piece(pipeline: str, position: int, item: Any) -> ConnectorV2:
    """Return a piece itself, or the piece that a `(class, args, kwargs)` triple or a piece spec describes.

    Raises:
        PieceError: it is none of these.
    """
    if isinstance(item, tuple) and len(item) == 3 and isinstance(item[0], type):
        item = item[0](*item[1], **item[2])
    elif isinstance(item, (str, dict)):
        from epibatch.core.piece_specs import build_piece

        item = build_piece(item)
    return check_connector(pipeline, position, item)


def make_plan(
    pipeline: str,
    connectors: Sequence[Any],
    layout: str,
    columns: tuple[str, ...] | None,
    training: bool | None = None,
) -> Plan:
    """Check the order of pieces.

    Args:
        pipeline: Name of the pipeline.
        connectors: Its pieces.
        layout: Layout of the batch at its start.
        columns: Columns that are there at its start; None: any may be.
        training: Whether it makes train batches; None: not said.

    Raises:
        PieceError: something is no connector piece, or declares something that cannot be meant.
        PipelineError: a piece reads a column before anyone writes it, or behind the piece that drops it, or takes
            another layout than the pieces before it leave. Behind an undeclared piece both are taken on trust. A piece
            that rewrites the newest observations stands behind one that took them, or in training. A column that
            one piece makes would be made anew by another. In training `obs` and `new_obs` are transformed differently.
    """
    steps, trusting, plus_one = [], False, False
    known: str | None = layout
    giver = _START
    seen: Counter[str] = Counter()
    flow = ColumnFlow(columns or (), giver)
    makers = ColumnMakers()
    for position, piece in enumerate(connectors):
        check_connector(pipeline, position, piece)
        where = place(pipeline, position, piece)
        check_declarations(piece, where)
        declared = piece.columnar or piece.reads is not None
        name = numbered(snake_case(type(piece).__name__), seen)
        steps.append(Step(piece, name, where, piece.columnar, plus_one, piece.mutates_episodes or not declared))
        if piece.rewrites_observations:
            _check_rewritten_in_time(where, piece, flow.written, training)
        if not declared:
            trusting, known, plus_one = True, None, plus_one or piece.adds_bootstrap_rows
            continue
        if known is not None and piece.takes is not None and known not in piece.takes:
            later = [
                place("", i, other).removeprefix(", ")
                for i, other in enumerate(connectors)
                if i > position and getattr(other, "gives", None) in piece.takes
            ]
            raise _wrong_layout(where, piece, known, giver, later[0] if later else "")
        if piece.mutates_episodes and training and not piece.columnar:
            _check_written_in_time(where, piece, flow.written)
        missing = flow.check(piece, where)
        if missing and not trusting and columns is not None:
            raise _unwritten(where, missing, list(connectors), position)
        makers.add(piece, where)
        flow.add(piece, where)
        if piece.gives is not None:
            known, giver = piece.gives, where
        plus_one = plus_one or piece.adds_bootstrap_rows
    if training is not False:
        check_next_observations(steps)
    watched = not all(step.columnar for step in steps)
    learning = any(isinstance(piece, ColumnarPiece) and piece.makes_train_batches for piece in connectors)
    return Plan(tuple(connectors), tuple(steps), plus_one, watched, trusting, _halved(steps), learning)


def _halved(steps: Sequence[Step]) -> bool:
    """True if what makes arrays is directly before what makes them float32, with no class's `__call__` between."""
    return any(
        one.piece.gives == "arrays" and other.piece.halves_floats and one.columnar and other.columnar
        for one, other in pairwise(steps)
    )


_START = "the pipeline's start"
_MAKERS = {
    "episodes": "UnBatchToIndividualItems",
    "arrays": "BatchIndividualItems, or TensorToNumpy on the way to the environment",
    "tensors": "NumpyToTensor",
}
_WRITERS = {
    "obs": "AddObservationsFromEpisodesToBatch",
    "actions": "AddColumnsFromEpisodesToTrainBatch, or GetActions on the way to the environment",
    "rewards": "AddColumnsFromEpisodesToTrainBatch",
    "terminateds": "AddColumnsFromEpisodesToTrainBatch",
    "truncateds": "AddColumnsFromEpisodesToTrainBatch",
    "loss_mask": "AddOneTsToEpisodesAndTruncate",
}
_SPELLED = {
    "episodes": "per-episode columns",
    "arrays": "batched arrays",
    "tensors": "tensors",
}


def _wrong_layout(where: str, piece: ConnectorV2, found: str, giver: str, later: str) -> PipelineError:
    wanted = " or ".join(_SPELLED[layout] for layout in piece.takes or ())
    name = type(piece).__name__
    if later:
        do = f"move {name} behind {later}, which makes {wanted}"
    elif found == "episodes" or giver == _START:
        do = f"put {name} behind the piece that makes {wanted}: {_MAKERS[piece.takes[0] if piece.takes else found]}"
    else:
        do = f"move {name} in front of {giver}"
    return PipelineError(where, expected=wanted, found=f"{_SPELLED[found]}, as {giver} leaves them", do=do)


def _unwritten(where: str, column: str, connectors: list[Any], position: int) -> PipelineError:
    later = [
        place("piece", i, piece).removeprefix("piece, ")
        for i, piece in enumerate(connectors)
        if i > position and column in getattr(piece, "writes", ())
    ]
    writer = _WRITERS.get(column, "the piece that writes it")
    return PipelineError(
        where,
        expected=f"column {column!r}, written by a piece in front of it",
        found=f"it is written only later, by {later[0]}" if later else "no piece writes it",
        do=f"move {later[0]} in front" if later else f"add {writer} in front",
    )


def _check_written_in_time(where: str, piece: ConnectorV2, written: dict[str, str]) -> None:
    """Refuse a piece that writes to single episodes where one in front has taken their rewards, say, already."""
    taken = [name for name in (Columns.REWARDS, Columns.ACTIONS, Columns.OBS) if name in written]
    if taken:
        name = type(piece).__name__
        found = f"column {taken[0]!r}, made of the episodes as they were by {written[taken[0]]}"
        do = f"move {name} in front of {written[taken[0]]}, which would not see what it writes"
        raise PipelineError(where, expected="episodes that nothing was taken of yet", found=found, do=do)


def _check_rewritten_in_time(where: str, piece: ConnectorV2, written: dict[str, str], training: bool | None) -> None:
    """Refuse a piece that replaces newest observations, in training or where one in front has taken them already."""
    if training:
        raise _rewritten_too_late(where, piece, None)
    if isinstance(piece, ColumnarPiece) and not piece.columnar:
        return  # its class overrides `__call__`, which may read anything
    if Columns.OBS in written and Columns.OBS not in (piece.reads or ()):
        raise _rewritten_too_late(where, piece, written[Columns.OBS])


def _rewritten_too_late(where: str, piece: ConnectorV2, writer: str | None) -> PipelineError:
    name = type(piece).__name__
    if writer is None:
        do = f"put {name} into the env-to-module pipeline; learner pieces find in the episodes what it wrote"
        found = "a learner pipeline, which gets whole chunks"
    else:
        do = f"move {name} in front of {writer}"
        found = f"column {Columns.OBS!r}, made of the observations as they were by {writer}"
    return PipelineError(where, expected="the newest observations, to rewrite them", found=found, do=do)
