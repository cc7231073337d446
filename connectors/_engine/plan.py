"""A pipeline's checked plan: what runs in which order, and whether it can work."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchWarning, PieceError, PipelineError
from epibatch.core.imports import advice_for_piece
from epibatch.core.kept_property import kept_property
from epibatch.core.piece_arguments import constructor_parameters
from epibatch.core.piece_declarations import check_declarations
from epibatch.core.registry import build_piece, snake_case

from ..authoring.functions import piece_of_function
from ..columnar_piece import Piece, is_columnar
from ..common.numpy_to_tensor import NumpyToTensor
from ..connector_v2 import ConnectorV2
from ..learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate


@dataclass(frozen=True)
class Step:
    """One piece of a plan.

    Args:
        piece: The piece.
        name: Its stable name in this plan, the class in snake_case with a number from the second one on.
        where: Pipeline, position and piece, as error messages name it.
        columnar: Whether it is given whole columns.
        sees_bootstraps: Whether it comes after the piece that adds bootstrap rows.
        writes_episodes: Whether it may write to episodes.
    """

    piece: ConnectorV2
    name: str
    where: str
    columnar: bool
    sees_bootstraps: bool
    writes_episodes: bool

    @kept_property
    def trusted(self) -> bool:
        """True if nothing is done around the piece: it works on columns, writes to no episodes, its run is built in."""
        run = getattr(self.piece, "run", None)
        return self.columnar and not self.writes_episodes and str(run.__module__).startswith("epibatch.")

    @kept_property
    def by_group(self) -> bool:
        """True if the piece is given the columns of one group after the other, and nothing is done around it."""
        kind: Any = type(self.piece)
        return self.trusted and not kind.uses_spaces and kind.run_all is Piece.run_all


@dataclass(frozen=True)
class Plan:
    """The steps of a pipeline.

    Args:
        connectors: The pieces the plan was made for.
        steps: One per piece.
        plus_one: Whether one of them adds bootstrap rows.
        watched: Whether one of them takes episodes one by one, so that what it reads is watched.
        trusting: Whether one of them is undeclared.
        casts_to_float32: Whether what makes arrays stands right before what makes them float32.
        training: Whether the batch is for training: as the pipeline says, or else as one of them does.
        observations_by: In training the piece that makes `obs` of the episodes in its own way, as frame stacking does;
            `new_obs` is made by it too.
        rows_ahead: Rows after each chunk's own that pieces have until one of them leaves them out.
    """

    connectors: tuple[ConnectorV2, ...]
    steps: tuple[Step, ...]
    plus_one: bool
    watched: bool
    trusting: bool
    casts_to_float32: bool = False
    training: bool = False
    observations_by: Piece | None = None
    rows_ahead: int = 0

    @kept_property
    def hooks(self) -> tuple[Callable[[Sequence[Any]], None], ...]:
        """The functions of pieces to call when episodes begin (while acting) or are drawn (while learning)."""
        name = "on_draw" if self.training else "on_reset"
        return tuple(getattr(piece, name) for piece in self.connectors if _overrides(piece, name))

    @kept_property
    def on_tensors(self) -> tuple[Any, ...]:
        """The pieces that do something for a step in tensors."""
        unchanged = Piece.leave_tensors
        return tuple(piece for piece in self.connectors if getattr(type(piece), "run_tensors", None) is not unchanged)

    @kept_property
    def stretches(self) -> tuple[tuple[Step, ...], ...]:
        """The steps: pieces that are given one group after the other together with those that follow, others alone."""
        return tuple(tuple(stretch) for _, stretch in groupby(self.steps, lambda step: step.by_group or step.name))


def _overrides(piece: ConnectorV2, name: str) -> bool:
    return getattr(type(piece), name) is not getattr(ConnectorV2, name)


def place(pipeline: str, position: int, piece: Any) -> str:
    """Name a piece by its pipeline, position and class."""
    return f"{pipeline}, piece {position} ({type(piece).__name__})"


def numbered(name: str, seen: Counter[str]) -> str:
    """Return a unique name. From the second occurrence on it ends with a number.

    Examples:
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
        "name its first parameter rewards, obs, or as another column, if it returns that column's new rows; episode, "
        "if it changes an episode; or batch, if it returns the batch's columns. Or decorate it with "
        f'@column_function("my_column") or @episode_function of epibatch.connectors.authoring, and pass {call}'
    )


_CALL = ("rl_module", "batch", "episodes", "explore", "shared_data", "metrics")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _check_signature(pipeline: str, position: int, piece: ConnectorV2) -> None:
    """Refuse a piece whose `__call__` does not accept the keywords that pipelines pass; callers may pass others too."""
    if is_columnar(piece):
        return
    try:
        signature = inspect.signature(piece)
    except (TypeError, ValueError):  # one that is not written in Python
        return
    try:
        named = [arg.name for arg in signature.parameters.values() if arg.kind in _NAMED and arg.default is arg.empty]
        signature.bind(**dict.fromkeys([*named, *_CALL]))
    except TypeError as error:
        raise PieceError(
            f"{place(pipeline, position, piece)}, its method __call__",
            expected=f"a method that accepts the keywords {', '.join(_CALL)}",
            found=f"__call__{signature}: {error}",
            do="write def __call__(self, *, rl_module, batch, episodes, **kwargs); **kwargs accepts the rest",
        ) from None


def built_piece(pipeline: str, position: int, item: Any) -> ConnectorV2:
    """Return a piece itself, or the piece that a function, a `(class, args, kwargs)` triple or a spec describes.

    Raises:
        PieceError: it is none of these.
    """
    if isinstance(item, tuple) and len(item) == 3 and isinstance(item[0], type):
        item = item[0](*item[1], **item[2])
    elif isinstance(item, (str, dict)):
        item = build_piece(item)
    elif inspect.isfunction(item):
        item = piece_of_function(item) or item
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
        PieceError: an item is no connector piece, has invalid declarations, or was made for the other side.
        PipelineError: a piece reads a column before a piece writes it, or after the piece that drops it, or takes
            another layout than the pieces before it leave. After an undeclared piece neither is checked. A piece
            that rewrites the newest observations comes after one that took them, or in training. A column that
            one piece makes would be made again by another. In training `obs` and `new_obs` are transformed differently.
    """
    steps, trusting, plus_one = [], False, False
    batch_layout: str | None = layout
    giver = _START
    seen: Counter[str] = Counter()
    flow = _ColumnFlow(columns or (), giver)
    makers = _ColumnMakers()
    for position, piece in enumerate(connectors):
        check_connector(pipeline, position, piece)
        where = place(pipeline, position, piece)
        _take_side(piece, where, training)
        check_declarations(piece, where)
        declared, columnar = piece.reads is not None, is_columnar(piece)
        name = numbered(snake_case(type(piece).__name__), seen)
        steps.append(Step(piece, name, where, columnar, plus_one, piece.mutates_episodes or not declared))
        plus_one = plus_one or isinstance(piece, AddOneTsToEpisodesAndTruncate)
        if piece.rewrites_observations:
            _check_rewritten_in_time(where, piece, flow.written, training)
        if not declared:
            trusting, batch_layout = True, None
            continue
        if batch_layout is not None and piece.input_layouts is not None and batch_layout not in piece.input_layouts:
            raise _wrong_layout(where, piece, batch_layout, giver, connectors, position)
        if piece.mutates_episodes and training and not columnar:
            _check_written_in_time(where, piece, flow.written)
        missing = flow.check(piece, where)
        if missing and not trusting and columns is not None:
            raise _unwritten(where, missing, list(connectors), position)
        makers.add(piece, where)
        _check_added(where, getattr(piece, "adds", ()), flow.written)
        _warn_of_second_writer(where, piece, flow.written)
        flow.add(piece, where)
        if piece.output_layout is not None:
            batch_layout, giver = piece.output_layout, where
    if training is not False:
        _check_next_observations(steps)
    watched = not all(step.columnar for step in steps)
    train_pieces = [piece for piece in connectors if isinstance(piece, Piece) and piece.makes_train_batches]
    makers_of_obs = (p for p in train_pieces if is_columnar(p) and Columns.OBS in p.writes and Columns.OBS in p.removes)
    return Plan(
        tuple(connectors),
        tuple(steps),
        plus_one,
        watched,
        trusting=trusting,
        casts_to_float32=_casts_to_float32(steps),
        training=bool(train_pieces) if training is None else training,
        observations_by=next(makers_of_obs, None),
        rows_ahead=0 if plus_one else max((piece.rows_ahead for piece in train_pieces), default=0),
    )


_SIDE = "as_learner_connector"


def _take_side(piece: ConnectorV2, where: str, training: bool | None) -> None:
    """Let a piece make train batches, or batches to act on, as its pipeline does.

    Raises:
        PieceError: it was given the other `as_learner_connector`; or it is shared by pipelines of both sides.
    """
    if training is None or piece.trains is training or _SIDE not in constructor_parameters(type(piece)):
        return
    args, kwargs = ConnectorV2.get_ctor_args_and_kwargs(piece)  # as they were given
    bound = inspect.signature(type(piece).__init__).bind_partial(piece, *args, **kwargs)
    argument = bound.arguments.get(_SIDE, kwargs.get(_SIDE))
    given_other = argument is not None and bool(argument) is not training
    if given_other or (piece.shared and piece.trains is not None):
        makes = "train batches, for a learner pipeline" if training else "batches to act on"
        found = f"{_SIDE}={argument!r}" if given_other else "one that a pipeline of the other side shares"
        do = f"make one for each side, without {_SIDE}: the pipeline decides"
        raise PieceError(where, expected=f"a piece that makes {makes}", found=found, do=do)
    piece.take_side(training)
    piece.trains = training
    kept = [name for name in (_SIDE, f"_{_SIDE}") if getattr(piece, name, None) is training]
    is_other = argument is None and bool(constructor_parameters(type(piece))[_SIDE].default) is not training
    if is_other and not kept and type(piece).take_side is ConnectorV2.take_side:
        warning = EpibatchWarning(
            where,
            expected=f"a piece that keeps its argument {_SIDE} as self.{_SIDE}, or has a method take_side(training)",
            found="neither, so that it goes on as its constructor left it",
            do=f"write self.{_SIDE} = {_SIDE} in the constructor, or pass {_SIDE}={training}",
        )
        warnings.warn(warning, stacklevel=2)


def _casts_to_float32(steps: Sequence[Step]) -> bool:
    """True if what makes arrays is directly before what makes them float32, with no class's `__call__` between."""
    return any(
        first.piece.output_layout == "arrays"
        and isinstance(second.piece, NumpyToTensor)
        and first.columnar
        and second.columnar
        for first, second in pairwise(steps)
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


def _wrong_layout(
    where: str, piece: ConnectorV2, found: str, giver: str, connectors: Sequence[Any], position: int
) -> PipelineError:
    layouts = piece.input_layouts or (found,)
    later_pieces = [
        place("", i, other).removeprefix(", ")
        for i, other in enumerate(connectors)
        if i > position and getattr(other, "output_layout", None) in layouts
    ]
    expected = " or ".join(_SPELLED[layout] for layout in layouts)
    name = type(piece).__name__
    if later_pieces:
        do = f"move {name} after {later_pieces[0]}, which makes {expected}"
    elif found == "episodes" or giver == _START:
        do = f"put {name} after the piece that makes {expected}: {_MAKERS[layouts[0]]}"
    else:
        do = f"move {name} before {giver}"
    return PipelineError(where, expected=expected, found=f"{_SPELLED[found]}, as {giver} leaves them", do=do)


def _unwritten(where: str, column: str, connectors: list[Any], position: int) -> PipelineError:
    later_pieces = [
        place("piece", i, piece).removeprefix("piece, ")
        for i, piece in enumerate(connectors)
        if i > position and column in getattr(piece, "writes", ())
    ]
    writer = _WRITERS.get(column, "the piece that writes it")
    return PipelineError(
        where,
        expected=f"column {column!r}, written by a piece before it",
        found=f"it is written only later, by {later_pieces[0]}" if later_pieces else "no piece writes it",
        do=f"move {later_pieces[0]} before it" if later_pieces else f"add {writer} before it",
    )


def _check_added(where: str, adds: Iterable[str], written: dict[str, str]) -> None:
    """Refuse a piece that makes a new column of others under a name that an earlier piece has written."""
    taken = next((column for column in adds if column in written), None)
    if taken is not None:
        found = f"{taken!r}, which {written[taken]} writes"
        do = f"give it another name in to=, or put DropColumns(columns={taken!r}) before it"
        raise PipelineError(where, expected="a new column", found=found, do=do)


_STANDARD = frozenset(value for name, value in vars(Columns).items() if name.isupper())


def _warn_of_second_writer(where: str, piece: Any, written: dict[str, str]) -> None:
    """Warn of a piece that makes a column of a user's own name, which an earlier piece has made."""
    taken = [name for name in piece.writes if name in written and name not in (*piece.reads, *piece.removes)]
    taken = [name for name in taken if name not in _STANDARD and written[name] != _START]
    if taken and not hasattr(piece, "adds"):  # of these it is an error where `adds` says so
        warning = EpibatchWarning(
            where,
            expected="a column that no piece before it makes, or one that it reads",
            found=f"column {taken[0]!r}, which {written[taken[0]]} has made, and which it replaces",
            do=f"give one of the columns another name, or declare in {type(piece).__name__}.reads that it reads it",
        )
        warnings.warn(warning, stacklevel=2)


def _check_written_in_time(where: str, piece: ConnectorV2, written: dict[str, str]) -> None:
    """Refuse a piece that writes to single episodes where an earlier one has taken their rewards, say, already."""
    columns = [name for name in (Columns.REWARDS, Columns.ACTIONS, Columns.OBS) if name in written]
    if columns:
        name = type(piece).__name__
        found = f"column {columns[0]!r}, made of the episodes as they were by {written[columns[0]]}"
        do = f"move {name} before {written[columns[0]]}, which would not see what it writes"
        raise PipelineError(where, expected="episodes that nothing was taken of yet", found=found, do=do)


def _check_rewritten_in_time(where: str, piece: ConnectorV2, written: dict[str, str], training: bool | None) -> None:
    """Refuse a piece that replaces newest observations, in training or where an earlier one has taken them already."""
    if training:
        raise _rewritten_too_late(where, piece, None)
    if isinstance(piece, Piece) and not is_columnar(piece):
        return  # its class overrides `__call__`, which may read anything
    if Columns.OBS in written and Columns.OBS not in (piece.reads or ()):
        raise _rewritten_too_late(where, piece, written[Columns.OBS])


def _rewritten_too_late(where: str, piece: ConnectorV2, writer: str | None) -> PipelineError:
    name = type(piece).__name__
    if writer is None:
        do = f"put {name} into the env-to-module pipeline; learner pieces find in the episodes what it wrote"
        found = "a learner pipeline, which gets whole chunks"
    else:
        do = f"move {name} before {writer}"
        found = f"column {Columns.OBS!r}, made of the observations as they were by {writer}"
    return PipelineError(where, expected="the newest observations, to rewrite them", found=found, do=do)


class _ColumnFlow:
    """Columns on their way through the pieces of a pipeline.

    Args:
        columns: Those at its start.
        giver: Name of their source, for messages.

    Attributes:
        written: Columns that are there, each with the piece that wrote it.
    """

    def __init__(self, columns: Iterable[str], giver: str) -> None:
        self.written = dict.fromkeys(columns, giver)
        self._dropped: dict[str, str] = {}

    def check(self, piece: Any, where: str) -> str | None:
        """Return a column that a piece reads and no piece declares to write; None if all are there.

        Args:
            piece: The piece.
            where: Names it in messages.

        Raises:
            PipelineError: it reads a column that an earlier piece has dropped.
        """
        reads = piece.reads or ()
        column = next((name for name in reads if name in self._dropped), None)
        if column is not None:
            dropper, reader = (label.split(", ", 1)[1] for label in (self._dropped[column], where))
            raise PipelineError(
                where,
                expected=f"column {column!r}",
                found=f"it is dropped before, by {dropper}",
                do=f"move {dropper} after {reader}, or let it keep the column",
            )
        return next((name for name in reads if name not in self.written), None)

    def add(self, piece: Any, where: str) -> None:
        """Add the next piece."""
        removals = {name: where for name in [*self.written, *piece.removes] if name in piece.removes}
        self.written = {name: by for name, by in self.written.items() if name not in removals}
        self.written.update(dict.fromkeys(piece.writes, where))
        self._dropped = {name: by for name, by in {**self._dropped, **removals}.items() if name not in piece.writes}


class _ColumnMakers:
    """A check of the columns that the pieces of a pipeline make and change, one after the other."""

    def __init__(self) -> None:
        self._makers: dict[str, str] = {}
        self._windows = ""
        self._read_for_advantages: dict[str, str] = {}

    def add(self, piece: Any, where: str) -> None:
        """Add the next piece.

        Args:
            piece: What declares its needs.
            where: Names it in messages.

        Raises:
            PipelineError: it makes a column that an earlier piece has changed; it changes one from which an earlier
                piece has made advantages; or it writes observations to the episodes after an earlier piece has combined
                several of them.
        """
        for column in piece.writes:
            if column in self._read_for_advantages and not piece.training_only:
                raise _too_late(piece, where, column, self._read_for_advantages[column])
        if Columns.ADVANTAGES in piece.writes:
            self._read_for_advantages.update({name: where for name in piece.reads or () if name != Columns.LOSS_MASK})
        for column in piece.writes:
            if column in piece.removes and column in self._makers:
                raise _lost(piece, where, column, self._makers[column])
        if piece.rewrites_observations and Columns.OBS in (piece.reads or ()):
            if self._windows:
                raise PipelineError(
                    where,
                    expected="observations of one step each, which later steps look back at in the episodes",
                    found=f"what {self._windows} made of several",
                    do=f"move {type(piece).__name__} before {_name(self._windows)}",
                )
            self._makers.pop(Columns.OBS, None)  # episodes have what the batch has
        if Columns.OBS in piece.removes and piece.lookback:
            self._windows = where
        self._makers.update(dict.fromkeys(piece.writes, where))


def _lost(piece: Any, where: str, column: str, maker: str) -> PipelineError:
    name, other = type(piece).__name__, _name(maker)
    do = f"move {name} before {other}"
    if column == Columns.OBS and "env_to_module" in piece.pipelines:
        do += f"; or, for acting, put WriteObservationsToEpisodes between the two and leave {other} out of the learner"
        do += " pipeline, which then finds its observations in the episodes"
    return PipelineError(
        where,
        expected=f"no column {column!r} before it, since it makes one of the episodes",
        found=f"one that {maker} made, which would be lost",
        do=do,
    )


def _too_late(piece: Any, where: str, column: str, user: str) -> PipelineError:
    name = type(piece).__name__
    return PipelineError(
        where,
        expected=f"column {column!r} as it was, since others were made of it",
        found=f"a change of it after {user}, which would not count",
        do=f"move {name} before {_name(user)}: the learner setting of a config puts pieces there",
    )


def _name(where: str) -> str:
    """The piece's class in `pipeline, piece 3 (Class)`."""
    return where.rpartition("(")[2].removesuffix(")")


def _check_next_observations(steps: Sequence[Step]) -> None:
    """Make sure that, where a pipeline makes `new_obs`, each transform of `obs` is one of `new_obs` too.

    A loss that bootstraps from next observations gives both to one network, so both have to be of its space. Pieces
    that say what they transform are counted, by class and part of the column; others are trusted, and so are those with
    `training_only = True`, as augmentation has.

    Args:
        steps: The plan's, for training.

    Raises:
        PipelineError: one transforms `obs` alone.
    """
    maker = next((step for step in steps if Columns.NEXT_OBS in step.piece.writes), None)
    if maker is None:
        return
    left = Counter((type(step.piece), part) for step in steps for part in _parts(step.piece, Columns.NEXT_OBS))
    for step in steps:
        for part in _parts(step.piece, Columns.OBS):
            if not left[type(step.piece), part]:
                raise _transformed_alone(step.where, step.piece, part, maker.where)
            left[type(step.piece), part] -= 1


def _parts(piece: Any, column: str) -> Iterator[str]:
    """Return the parts of a column that a piece transforms: "" for all of it, "/camera" for a part."""
    addresses = getattr(piece, "transforms", ()) if is_columnar(piece) and not piece.training_only else ()
    for address in addresses:
        name, slash, rest = address.partition("/")
        if name == column:
            yield slash + rest


def _transformed_alone(where: str, piece: Any, part: str, maker: str) -> PipelineError:
    name = type(piece).__name__
    columns = f'columns = ("{Columns.OBS}{part}", "{Columns.NEXT_OBS}{part}")'
    return PipelineError(
        where,
        expected=f"{Columns.OBS + part!r} and {Columns.NEXT_OBS + part!r} transformed alike, for one network",
        found=f"{Columns.OBS + part!r} alone; {Columns.NEXT_OBS!r} stays as the episodes have it, by {maker}",
        do=f"let {name} transform both: {columns}; or transform observations while acting and put "
        f"WriteObservationsToEpisodes after it there, without {name} in the learner pipeline; or, if it is meant, "
        "as with augmentation, write training_only = True in its class",
    )
