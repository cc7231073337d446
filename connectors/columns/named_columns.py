"""Columns, and parts of them, renamed, left out, or chosen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, SpaceError

from .._engine.chunks import ChunkGroup
from ..authoring.column_paths import paths_from
from .open_columns import MARKS, OpenColumns, PieceOfColumns, in_tree, known_names, moved_space


class RenameColumns(PieceOfColumns):
    """Gives columns other names, or parts of nested ones: `{"vf_preds": "values", "obs/rgb": "obs/camera"}`.

    Put it after the pieces that make the columns. Parts of observations may be renamed before them, in both
    pipelines; the observation space then has the new names. All names change at once, so two columns can be swapped.

    Counterparts: TorchRL's `RenameTransform`.

    Args:
        names: Old name -> new one.

    Raises:
        ConfigError: the names are not valid.
        ColumnError: the batch lacks a column, or has one of a new name already.

    Examples:
        >>> piece = RenameColumns(names={"rewards": "r"})
        >>> batch = {"rewards": {("e",): [1.0, 2.0]}}
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[0, 1, 2], actions=[0, 0], rewards=[1.0, 2.0],
        ...                              len_lookback_buffer=0)
        >>> {name: len(rows) for name, rows in piece(batch=batch, episodes=[episode]).items()}
        {'r': 1}
        >>> piece.undo()
        RenameColumns(names={'r': 'rewards'})
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "module_to_env", "learner")
    names: dict[str, str]

    def __post_init__(self) -> None:
        """Take the names apart."""
        names = self.names
        valid = isinstance(names, dict) and names and all(isinstance(value, str) and value for value in names.values())
        if not valid or len(set(names.values())) < len(names):
            raise ConfigError(
                "RenameColumns.names",
                expected="old names with new ones, each of them another",
                found=repr(names),
                do='pass a dict such as names={"vf_preds": "values"}',
            )
        olds, news = paths_from("RenameColumns", list(names)), paths_from("RenameColumns", [*names.values()])
        self._moves, whole_columns = list(zip(olds, news)), [old.column for old in olds if not old.keys]
        self._written = tuple(dict.fromkeys([new.column for new in news] + [old.column for old in olds if old.keys]))
        self._whole = tuple(whole_columns)
        self.removes = tuple(name for name in whole_columns if name not in self._written)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are to be there."""
        return known_names(self._whole)

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are in the batch after the piece."""
        return self._written

    def undo(self) -> RenameColumns:
        """The piece that renames back."""
        return RenameColumns(names={new: old for old, new in self.names.items()})

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space with parts by their new names."""
        source = next(
            (old for old, new in self._moves if new.column == Columns.OBS and old.column != Columns.OBS), None
        )
        if source is not None:
            raise SpaceError(
                "RenameColumns.names",
                expected="observations made of parts of 'obs' alone, since their space follows from these",
                found=str(source),
                do="let it become a column of its own",
            )
        parts = [(old, new) for old, new in self._moves if old.column == Columns.OBS and old.keys]
        return moved_space(input_observation_space, lambda tree: _moved(tree, parts))

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Rename."""
        new = [path for _, path in self._moves if path.column in columns]
        opened = OpenColumns(columns, group, [*(old for old, _ in self._moves), *new], type(self).__name__)
        opened.check_rows(joined=False)
        per_sequence = self._per_sequence(group)
        out = opened.batch_with(_moved(opened.tree, self._moves))
        group.per_sequence = per_sequence
        return out

    def _per_sequence(self, group: ChunkGroup) -> dict[str, Any]:
        """The call's columns with one row per sequence, by their new names."""
        out = dict(group.per_sequence)
        for old, new in self._moves:
            if not old.keys:
                out.pop(old.column, None)
            elif old.column in out:
                out[old.column] = None
            if not new.keys:
                out.pop(new.column, None)
        for old, new in self._moves:
            if group.is_per_sequence(old.column):
                out[new.column] = None if old.keys or new.keys else group.per_sequence.get(old.column)
        return out


def _moved(tree: Any, moves: Any) -> Any:
    """A structure `{column: {part: ...}}` with parts at new addresses, all at once."""
    parts = [(new, in_tree(old).part(tree)) for old, new in moves]
    for old, _ in moves:
        tree = in_tree(old).without(tree)
    for new, part in parts:
        tree = in_tree(new).put(tree, part)
    return tree


class _NamedPaths(PieceOfColumns):
    """Columns, and parts of them, by their addresses in `columns`."""

    columns: Any

    def __post_init__(self) -> None:
        """Take the names apart."""
        self._paths = paths_from(type(self).__name__, self.columns)
        self._whole = tuple(path.column for path in self._paths if not path.keys)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are to be there."""
        return known_names(self._whole)

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns of which a part stays."""
        return tuple(dict.fromkeys(path.column for path in self._paths if path.keys))

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of what stays."""
        obs_paths = [path for path in self._paths if path.column == Columns.OBS and path.keys]
        return moved_space(input_observation_space, lambda tree: self._left(tree, obs_paths) if obs_paths else tree)

    @abstractmethod
    def _left(self, tree: Any, paths: Any) -> Any:
        """Return the remaining parts of a structure `{column: {part: ...}}`."""

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Leave out what does not stay."""
        opened = OpenColumns(columns, group, self._paths, type(self).__name__)
        return opened.batch_with(self._left(opened.tree, self._paths))


class DropColumns(_NamedPaths):
    """Leaves columns out, or parts of nested ones, such as `obs/debug`.

    Put it after the piece that makes the columns and the pieces that read them. A later piece that declares to read
    one is refused when the pipeline is built. Parts of observations may be dropped before the columns are made, in
    both pipelines; the observation space is then that of the remaining parts.

    Counterparts: TorchRL's `ExcludeTransform`.

    Args:
        columns: Their names.

    Raises:
        ConfigError: `loss_mask` or another column that says which rows are real.
        ColumnError: the batch has no such column.

    Examples:
        >>> import gymnasium as gym
        >>> space = gym.spaces.Dict(pose=gym.spaces.Box(-1, 1, (2,)), debug=gym.spaces.Discrete(3))
        >>> DropColumns(space, columns="obs/debug").observation_space
        Dict('pose': Box(-1.0, 1.0, (2,), float32))
    """

    def __post_init__(self) -> None:
        """Refuse columns that losses need."""
        super().__post_init__()
        self.removes = self._whole
        needed = next((path.column for path in self._paths if path.column in MARKS), None)
        if needed is not None:
            raise ConfigError(
                "DropColumns.columns",
                expected="columns that hold data",
                found=f"{needed!r}, which says what of the batch is real; losses need it",
                do="leave it out",
            )

    def _left(self, tree: Any, paths: Any) -> Any:
        for path in paths:
            tree = in_tree(path).without(tree)
        return tree


class _AllBut(tuple[str, ...]):
    """Every name but a few: `in` is False for these alone. Nothing is iterated over."""

    _names: frozenset[str]

    def __new__(cls, names: Iterable[str]) -> _AllBut:
        self = super().__new__(cls)
        self._names = frozenset(names)
        return self

    def __contains__(self, name: object) -> bool:
        return name not in self._names


class SelectColumns(_NamedPaths):
    """Keeps columns, and leaves out all others; of nested ones parts can be kept, such as `obs/pose`.

    `loss_mask`, `seq_lens`, `resets` and `reset_states` always stay, because they say which rows are real. Put it
    after the pieces that make the columns and the pieces that read the others. A later piece that declares to read
    a dropped column is refused when the pipeline is built. Only parts of observations may be selected before the
    columns are made, in both pipelines.

    Counterparts: TorchRL's `SelectTransform`.

    Args:
        columns: Names of those that stay.

    Raises:
        ColumnError: the batch has no such column.

    Examples:
        >>> import gymnasium as gym
        >>> space = gym.spaces.Dict(pose=gym.spaces.Box(-1, 1, (2,)), debug=gym.spaces.Discrete(3))
        >>> SelectColumns(space, columns=["obs/pose"]).observation_space
        Dict('pose': Box(-1.0, 1.0, (2,), float32))
    """

    def __post_init__(self) -> None:
        """Take the names apart; all other columns are lost."""
        super().__post_init__()
        self.removes = _AllBut([*MARKS, *(path.column for path in self._paths)])

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Keep the columns."""
        out = super().run(columns, group)
        return {name: column for name, column in out.items() if name not in self.removes}

    def _left(self, tree: Any, paths: Any) -> Any:
        """Some parts of a structure; of a column that is named itself, all."""
        out: Any = {}
        whole_columns = {path.column for path in paths if not path.keys}
        for path in paths:
            if not path.keys or path.column not in whole_columns:
                place = in_tree(path)
                out = place.put(out, place.part(tree))
        return out
