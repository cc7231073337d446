"""Pieces that are one function of the rows of a column, and their inverses on the way to the environment."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, PieceError, PieceOutputError, add_context
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.core.spaces import EnvActions, get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct

from .._engine.agent_copies import encoded_by_agent, entry_of
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather
from .._engine.sequences import leading_axes, step_places
from ..columnar_piece import Piece
from ..connector_v2 import ConnectorV2
from ..module_to_env.normalize_and_clip_actions import EncodingPiece
from .column_paths import ColumnPath, Move, added_columns, moves_from, paths_from, refuse_taken, space_after
from .fields import ParameterPiece
from .row_spaces import probed_space

if TYPE_CHECKING:
    from ..tensor_step import TensorStep

_NUMBERS = "biufc"
_NESTED = (gym.spaces.Dict, gym.spaces.Tuple)
_ACTIONS = (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)
_OF_SPACES = (Columns.OBS, Columns.NEXT_OBS, *_ACTIONS)
_OF_STEPS = (Columns.REWARDS, Columns.LOSS_MASK)


class ColumnTransform(ParameterPiece, Piece):
    """A function of the rows of one or several columns, for acting and for training, one agent or many.

    A subclass names `columns` in a class attribute and writes `transform`. It must work row by row:
    what it makes of a row depends on that row alone, so the same code serves a vector step and a train batch. (Do not
    write `x - x.mean()`, which depends on the other rows of the call. `check_connector` finds this.) A column that the
    batch does not have yet is taken from the episodes: all steps for training, the newest observations for acting.
    Episodes stay as they are. Rewards of rows that are no steps, bootstrap rows and padding, stay 0. Observations that
    are transformed for the network need the piece in both pipelines, as frame stacks do.

    The output space follows from a trial of `transform`; `output_space` is written where bounds matter. With `inverse`
    the same object undoes itself. A transform of `actions` in the env-to-module pipeline changes the space that the
    module acts in, and `undo()` on the way to the environment makes `actions_for_env` by its inverse; configs put it
    there.

    Annotated attributes are parameters, as `ParameterPiece` says. Every transform has two more, `columns` and `to`.

    Args:
        columns: Name of the column, or names; `obs/camera` is one part of a nested column, `infos/speed` one entry of
            the info dicts. Also `t`, the step's number, `eps_id`, `agent_id`, `module_id`, `agent_index` (the order in
            which agents appeared) and `env_index` (the environment of a runner of one agent). Default: what the class
            says.
        to: The column, or part of the observations, that the result becomes, or as many names as there are columns.
            What it is made of stays as it is. Default: the result takes its place.
        **parameters: The parameters of the class.

    Raises:
        PieceError: no columns; or what `ParameterPiece` refuses.
        ColumnError: there is nothing at `columns`, or something at `to` already.
        PipelineError: an earlier piece writes the column `to`.

    Examples:
        >>> class ScaleRewards(ColumnTransform):
        ...     columns = "rewards"
        ...     factor: float = 0.1
        ...     def transform(self, x):
        ...         return x * self.factor
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[ScaleRewards(factor=0.5), BatchIndividualItems()])
        >>> pipeline(episodes=[episode])["rewards"]
        array([0.5, 1. ])
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    needs_episodes: ClassVar[bool] = True
    columns: Any = dataclasses.field(default=(), repr=False)
    """Name of the column, or names; `obs/camera` is one part of a nested column."""
    to: Any = dataclasses.field(default=None, repr=False)
    """Name of the column, or of the part of observations, that the result becomes; None: it stays where it is."""
    takes_tensors: ClassVar[bool] = False
    """True if `transform` works on tensors as it does on arrays, so that the piece may stand after NumpyToTensor."""
    monotonic: ClassVar[bool] = False
    """True if entries of the result never fall, or each never rises, as entries of the row rise (moving them about is
    such a function, too); gives the bounds."""

    row_space: gym.Space[Any] | None = dataclasses.field(default=None, init=False, repr=False)
    """While `transform` or `inverse` runs: the space of the rows that `transform` takes, if they are observations or
    actions of a space that is known; of nested ones that of the part. A class that reads it sets `uses_spaces = True`,
    so that each agent's rows are transformed with the agent's own."""

    _has_own_to: ClassVar[bool] = False
    _known_moves: tuple[Any, Any, tuple[Move, ...]] = (None, None, ())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "to" in inspect.get_annotations(cls):  # a parameter of the class's own, unless its value is a name
            cls._has_own_to = True
        if "input_layouts" not in cls.__dict__:
            cls.input_layouts = ("episodes", "arrays", "tensors") if cls.takes_tensors else ("episodes", "arrays")

    @abstractmethod
    def transform(self, x: Any) -> Any:
        """Return the new rows.

        Args:
            x: An array of shape [rows, ...], one leaf of a nested column; not to be kept. Its space is `row_space`.

        Returns:
            An array of as many rows. Each depends on its own row of `x` alone.
        """

    def inverse(self, y: Any) -> Any:
        """The rows that `transform` makes `y` of; write it where there is such a function.

        Args:
            y: An array of shape [rows, ...].

        Raises:
            PieceError: the class has none.
        """
        raise PieceError(
            f"{type(self).__name__}.inverse",
            expected="an inverse",
            found="a class that writes transform alone",
            do="write inverse(self, y) in the class, if each result comes of one row",
        )

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any] | None:
        """Return the space of transformed rows. By default it follows from a trial on samples.

        Args:
            space: Space of one row, neither Dict nor Tuple; their parts are passed one by one.

        Returns:
            None if it is not known, as for complex numbers, because there is no Box of them.
        """
        trial = copy.deepcopy(self)  # which may keep statistics, or draw
        trial.row_space = space
        return probed_space(space, trial.tried, monotonic=self.monotonic)

    @property
    def has_inverse(self) -> bool:
        """True if the class writes `inverse`."""
        return type(self).inverse is not ColumnTransform.inverse

    @property
    def column_moves(self) -> tuple[Move, ...]:
        """The parsed entries of `columns` and `to`.

        Raises:
            PieceError: they are none, or do not go together.
        """
        columns, to, moves = self._known_moves
        if columns is not self.columns or to is not self.to or not moves:
            name, own = type(self).__name__, self._has_own_to and not isinstance(self.to, (str, tuple, list))
            moves = moves_from(name, paths_from(name, self.columns), None if own else self.to)
            self._known_moves = self.columns, self.to, moves
        return moves

    @property
    def paths(self) -> tuple[ColumnPath, ...]:
        """The parsed entries of `columns`."""
        return tuple([move.source for move in self.column_moves])

    def _prepare(self) -> None:
        self.column_moves  # noqa: B018  # refuses columns that are none

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns that are in the batch after the piece."""
        return tuple(dict.fromkeys(move.target.column for move in self.column_moves))

    @property
    def adds(self) -> tuple[str, ...]:
        """The columns that no earlier piece may have written."""
        return added_columns(self.column_moves)

    @property
    def transforms(self) -> tuple[str, ...]:
        """The addresses that have other values after the piece."""
        return tuple(str(move.target) for move in self.column_moves)

    def undo(self) -> Undo:
        """The piece for the module-to-env pipeline that makes `actions_for_env` by this one's inverse."""
        return Undo(of=self)

    # -- spaces --------------------------------------------------------------------------------

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of transformed observations, if they are transformed."""
        return self._space(Columns.OBS, input_observation_space)

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of transformed actions, if they are transformed."""
        return self._space(Columns.ACTIONS, input_action_space)

    def _space(self, column: str, space: Any) -> Any:
        for move in self.column_moves:
            if space is not None and move.target.column == column:
                space = space_after([move], space, move.source.change_space(space, self.output_space))
            elif space is not None and move.source.column == column:
                move.source.part(get_base_struct_from_space(space))  # refuses a part that is not there
        return space

    # -- running -------------------------------------------------------------------------------

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Transform the columns."""
        if self.to is not None:
            refuse_taken(type(self).__name__, self.column_moves, columns)
        for path, target in self.column_moves:
            name = path.column
            if name not in columns and _is_left_out(target.column, group):
                continue
            column = column_or_gather(columns, group, name, type(self).__name__)
            try:
                leading = leading_axes(group, name, column)
                rows = self._sequences if leading > 1 else self._rows
                of_episodes = isinstance(column, EpisodeColumn)
                data = column.data if of_episodes else column
                if of_episodes:
                    _refuse_objects(data, type(self).__name__)
                out = self.changed(path, data, rows)
                if path != target:
                    there = columns.get(target.column, {}) if target.column != name else data
                    out = target.put(getattr(there, "data", there), path.part(out))
                out = _only_steps(out, target, group, leading)
                columns[target.column] = column.with_data(out) if of_episodes else out
                if target.column == Columns.REWARDS:
                    _refuse_vectors(self, path.part(data), target.part(out))
                if name in group.per_sequence or (path != target and group.is_per_sequence(name)):
                    group.has_per_sequence(target.column)  # rows taken again would be those before this piece
            except Exception as error:
                add_context(error, f"column {str(path)!r}:")
                raise
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Transform the columns; actions are not there yet, and `Undo` maps them back."""
        if Columns.ACTIONS not in columns and all(path.column == Columns.ACTIONS for path in self.paths):
            return columns
        if any(path.column == Columns.OBS for path in self.paths):
            columns.setdefault(Columns.OBS, step.obs)
        return super().run_tensors(columns, step)

    def changed(self, path: ColumnPath, struct: Any, function: Callable[[Any], Any]) -> Any:
        """A structure of arrays with `function` applied at a path, leaf by leaf, where `row_space` is the leaf's.

        Args:
            path: One of `paths`.
            struct: The rows of its column.
            function: `transform`, `inverse`, or something that calls one of them.
        """
        name, space, attributes = path.column, None, vars(self)
        if not self.spaces_by_agent and name in _OF_SPACES:
            space = self._input_spaces[name in _ACTIONS]
        try:
            if not path.keys and not isinstance(struct, (dict, tuple)):
                attributes["row_space"] = None if isinstance(space, _NESTED) else space
                return function(struct)

            def apply(leaf: Any, space: Any) -> Any:
                attributes["row_space"] = space
                return function(leaf)

            return path.change_in(struct, space, apply)
        finally:
            attributes["row_space"] = None

    def tried(self, x: Any) -> Any:
        """Transform samples, and make sure that something comes out."""
        out = self.transform(x)
        if out is None:
            raise _no_rows(self, f"an array of {len(x)} rows", "None", "end transform with a return")
        return out

    def _rows(self, x: Any) -> Any:
        out = self.transform(x)
        if type(out) is np.ndarray and out.shape == x.shape and out.dtype == x.dtype:
            return out
        if getattr(out, "shape", ())[:1] != x.shape[:1]:
            found = f"shape {tuple(out.shape)}" if hasattr(out, "shape") else f"{type(out).__name__}: {repr(out)[:80]}"
            expected = f"an array of {len(x)} rows, as many as it was given"
            raise _no_rows(self, expected, found, "return the transformed rows, first axis unchanged")
        kinds = [getattr(array.dtype, "kind", "f") for array in (x, out)]
        if kinds[0] in _NUMBERS and kinds[1] not in _NUMBERS:
            raise _no_rows(self, f"numbers, as {x.dtype} was given", f"{out.dtype}", "return out.astype(x.dtype), say")
        return out

    def _sequences(self, x: Any) -> Any:
        """Transform arrays of shape [B, T, ...]."""
        out = self._rows(x.reshape(-1, *x.shape[2:]))
        return out.reshape(*x.shape[:2], *out.shape[1:])


def _is_left_out(name: str, group: ChunkGroup) -> bool:
    """True if a column that the batch does not have is not to be added either."""
    if not group.of_steps:  # neither is there yet; undo() maps the module's actions back
        return name in (Columns.ACTIONS, Columns.NEXT_OBS)
    return name in group.left_out


def _only_steps(rows: Any, path: ColumnPath, group: ChunkGroup, leading: int) -> Any:
    """Rows of a column; rewards have 0, and masks False, where nothing happened: in bootstrap rows and padding."""
    if path.column not in _OF_STEPS or not group.training or group.call.by_hand:
        return rows
    steps = step_places(group, leading=leading)
    return rows if steps is None else path.change(rows, lambda leaf: _zeroed(leaf, ~steps))


def _zeroed(column: Any, where: Any) -> Any:
    """A copy of an array or tensor with 0 in some rows."""
    if isinstance(column, np.ndarray):
        column = np.array(column)
        column[where] = 0
        return column
    import torch

    out = column.clone()
    out[torch.from_numpy(where).to(out.device)] = 0
    return out


def _refuse_vectors(piece: ColumnTransform, before: Any, after: Any) -> None:
    """Refuse a transform of scalar rewards to vectors. Later losses could not name the piece that did it."""
    if type(before) is type(after) is np.ndarray and before.ndim == after.ndim:
        return
    old_leaves, new_leaves = (flatten(rows)[0] for rows in (before, after))
    if any(len(new.shape) > len(old.shape) for old, new in zip(old_leaves, new_leaves)):
        expected = f"shape {tuple(old_leaves[0].shape)}, one number for each reward"
        do = "return an array of the shape of x; numbers beside the rewards are a column of their own"
        raise _no_rows(piece, expected, f"shape {tuple(new_leaves[0].shape)}", do)


def _no_rows(piece: ColumnTransform, expected: str, found: str, do: str) -> PieceOutputError:
    return PieceOutputError(f"{type(piece).__name__}.transform", expected=expected, found=found, do=do)


def _refuse_objects(data: Any, piece: str) -> None:
    if type(data) is np.ndarray and data.dtype.kind != "O":
        return
    leaves = [] if isinstance(data, list) else flatten(data)[0]
    objects = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O"]
    if isinstance(data, list) or not all(isinstance(row, str) for leaf in objects for row in leaf.flat):
        raise ColumnError(
            piece,
            expected="rows of one shape and type",
            found="rows that differ, or are no arrays",
            do="bring them to one shape with an earlier piece",
        )


class Undo(Piece):
    """Adds `actions_for_env`: the module's actions, mapped back by the inverse of a transform of `actions`.

    The transform is in the env-to-module pipeline, where it changes the space that the module acts in. The module's
    output stays in `actions`, and episodes record it. Several transforms are undone in reverse order. The result has
    the type of the environment's action space and is clipped to it if it is a Box. It is not rescaled afterwards.

    Counterparts: TorchRL's `Transform`.

    Args:
        input_action_space: The environment's action space.
        of: The transform: the piece itself (its parameters and state are then shared), or a piece spec.

    Raises:
        PieceError: `of` is no transform of `actions` with an inverse.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    needs_episodes: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (Columns.ACTIONS,)
    writes: ClassVar[tuple[str, ...]] = (Columns.ACTIONS_FOR_ENV,)
    of: Any

    def __post_init__(self) -> None:
        """Build the transform, if it is a piece spec, and check that it can be undone."""
        self.of = self.of if isinstance(self.of, ConnectorV2) else build_piece(self.of)
        if not (isinstance(self.of, ColumnTransform) and self.of.has_inverse and _action_paths(self.of)):
            raise PieceError(
                "Undo.of",
                expected="a ColumnTransform of 'actions' that writes inverse(self, y)",
                found=repr(self.of),
                do='write columns = "actions" and an inverse in its class',
            )

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """True if the transform works on tensors."""
        return bool(self.of.takes_tensors)

    def to_dict(self) -> dict[str, Any]:
        """The transform as data."""
        return {"of": piece_to_dict(self.of)}

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the column."""
        actions = columns.get(Columns.ACTIONS_FOR_ENV, columns[Columns.ACTIONS])
        for path in reversed(_action_paths(self.of)):
            actions = self.of.changed(path, actions, partial(_env_tensors, self.of))
        return {**columns, Columns.ACTIONS_FOR_ENV: actions}

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column, or map back what a later transform's Undo left there."""
        if not columns:
            return columns
        source = columns.get(Columns.ACTIONS_FOR_ENV)
        if source is None:
            source = self.need(columns, Columns.ACTIONS, "put GetActions before it")
        if self.of.input_action_space is None:  # no env-to-module pipeline has told it
            self.of.input_action_space = self.input_action_space
        transform_of = self.of.parts.of if self.of.spaces_by_agent else lambda _: self.of
        agents = [episode.agent_id for episode in group.episodes]
        data = encoded_by_agent(agents, source.data, transform_of, lambda transform, rows, _: _undone(transform, rows))
        columns[Columns.ACTIONS_FOR_ENV] = EpisodeColumn(data, source.counts)
        return columns


def acted_at_random(pipelines: Mapping[str, Any], actions: Any, agent_id: Any = None) -> tuple[Any, Any]:
    """Return random actions of the environment's space as the module's actions, and as the environment gets them.

    Args:
        pipelines: `env_to_module`, whose pieces may transform actions, and `module_to_env`, which may rescale them.
        actions: One action of an agent, or a batch of them where there is one agent only.
        agent_id: The agent; None: there is only one.

    Returns:
        The actions to store, and those for the environment.
    """
    env_to_module = pipelines["env_to_module"]
    transforms = _transforms(env_to_module, agent_id)
    if not transforms:
        pieces = pipelines["module_to_env"].pieces()
        encoder = next((piece for piece in pieces if isinstance(piece, EncodingPiece)), None)
        if encoder is None:
            return actions, actions
        stored, space = encoder.undo(actions, agent_id), env_to_module.episode_action_space
        return stored if agent_id is None else _padded(
            stored, entry_of(env_to_module, "action space", space, agent_id)
        ), actions
    if agent_id is not None:
        actions = map_struct(lambda leaf: np.asarray(leaf)[None], actions)
    for transform in transforms:
        for path in _action_paths(transform):
            actions = transform.changed(path, actions, transform.transform)
    for_env = actions_for_env(env_to_module, actions, agent_id)
    if agent_id is None:
        return actions, for_env
    return map_struct(lambda leaf: leaf[0], actions), map_struct(lambda leaf: leaf[0], for_env)


def _padded(action: Any, space: Any) -> Any:
    """Return an action of an agent's Box with zeros where only agents that it shares a padded Box with have entries."""
    if not isinstance(space, gym.spaces.Box) or action.shape == space.shape:
        return action
    return np.pad(action, [(0, length - own) for own, length in zip(action.shape, space.shape)])


def actions_for_env(env_to_module: Any, actions: Any, agent_id: Any = None) -> Any:
    """Return actions of the module's space as actions of the environment's space.

    Args:
        env_to_module: The pipeline whose pieces may transform actions.
        actions: A batch of them.
        agent_id: The agent of the actions; None: there is only one.
    """
    for transform in reversed(_transforms(env_to_module, agent_id)):
        actions = _undone(transform, actions)
    return actions


def _transforms(env_to_module: Any, agent_id: Any = None) -> list[Any]:
    found = [piece for piece in env_to_module.pieces() if _action_paths(piece)]
    return found if agent_id is None else [piece.parts.of(agent_id) for piece in found]


def _action_paths(piece: Any) -> list[ColumnPath]:
    """The module's actions among what a piece transforms; nothing of a piece that is no ColumnTransform."""
    moves = piece.column_moves if isinstance(piece, ColumnTransform) else ()
    return [path for path, target in moves if path.column == Columns.ACTIONS and path == target]


def _undone(transform: Any, actions: Any) -> Any:
    for path in reversed(_action_paths(transform)):
        actions = transform.changed(path, actions, partial(_env_rows, transform))
    return actions


def _env_rows(transform: Any, y: Any) -> Any:
    """Return the inverse of rows, if it has as many rows of the space that `transform` takes."""
    space, rows = transform.row_space, transform.inverse(y)
    shape = getattr(rows, "shape", None)
    row_shape = getattr(space, "shape", None)
    as_many = shape is not None and shape[:1] == y.shape[:1] and (row_shape is None or shape[1:] == row_shape)
    if not as_many or (row_shape is not None and rows.dtype.kind not in "biuf"):
        raise PieceOutputError(
            f"{type(transform).__name__}.inverse",
            expected=f"{len(y)} rows" + ("" if row_shape is None else f" of shape {row_shape}, numbers of {space}"),
            found=f"{type(rows).__name__} {rows!r}" if shape is None else f"{rows.dtype} of shape {tuple(shape)}",
            do="return, for each row that transform gives, the row that it was given",
        )
    if _has_nan(rows) and not _has_nan(y):
        raise PieceOutputError(
            f"{type(transform).__name__}.inverse",
            expected=f"actions of {space}",
            found="NaN, of actions without one",
            do="bring y to where the inverse is known, with np.clip, say: modules act outside of bounds too",
        )
    return _typed(rows, space)


def _has_nan(rows: Any) -> bool:
    return bool(rows.dtype.kind == "f" and np.isnan(rows).any())


def _typed(actions: Any, space: Any) -> Any:
    """Actions within the bounds of their space, and in its type."""
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return actions
    if actions.dtype.kind == "f" and np.issubdtype(space.dtype, np.integer):
        actions = np.rint(actions)  # an inverse may come out a little below the integer that went in
    if isinstance(space, gym.spaces.Box):
        actions = np.clip(actions, space.low, space.high)
    return actions.astype(space.dtype, copy=False)


def _env_tensors(transform: Any, y: Any) -> Any:
    """The inverse of tensors, of which nothing is checked."""
    space, rows = transform.row_space, transform.inverse(y)
    if rows.is_floating_point() and np.issubdtype(space.dtype, np.integer):
        rows = rows.round().long()
    return EnvActions(space, normalize=False, clip=True)(rows)


def undo_actions(env_to_module: Any, module_to_env: Any) -> None:
    """Add to a module-to-env pipeline the inverses of an env-to-module pipeline's transforms of actions.

    An `Undo` of each is inserted before `NormalizeAndClipActions` (or `ListifyDataForVectorEnv`, or at the end), last
    first. An `Undo` that is there already gets the piece itself instead of a copy that was built from data.

    Args:
        env_to_module: Pipeline whose pieces may transform `actions`.
        module_to_env: The pipeline to change.

    Raises:
        PieceError: a piece transforms actions and has no inverse.
    """
    transforms = _transforms(env_to_module)[::-1]
    undos: Sequence[Any] = [piece for piece in module_to_env.pieces() if isinstance(piece, Undo)]
    for transform in transforms:
        if not transform.has_inverse:
            raise PieceError(
                f"{type(transform).__name__} in {type(env_to_module).__name__}",
                expected="an inverse, by which the environment gets actions of its own space",
                found="a transform of 'actions' without one",
                do="write inverse(self, y) in the class",
            )
        undo = next((piece for piece in undos if piece.of is transform), None)
        copies = [piece for piece in undos if not any(piece.of is other for other in transforms)]
        copied = next((piece for piece in copies if piece.of == transform), None)
        if undo is None and copied is not None:
            copied.of = transform
        elif undo is None:
            _insert(module_to_env, Undo(of=transform))


def _insert(pipeline: Any, undo: Undo) -> None:
    names = pipeline.names
    for name in ("normalize_and_clip_actions", "listify_data_for_vector_env"):
        if name in names:
            pipeline.insert_before(name, undo)
            return
    pipeline.append(undo)
