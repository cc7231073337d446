"""Pads observations that have any number of rows, such as point clouds, and adds a mask."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar

import gymnasium as gym
import numpy as np
from annotated_types import Ge

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.ragged import is_ragged, ragged_space
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import is_leaf, map_struct, stack_rows

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import observations_unjoined
from ..authoring.column_paths import observation_paths
from ..authoring.row_spaces import bounds_of, box_of
from ..columnar_piece import TwoSidedPiece


class PadRaggedRows(TwoSidedPiece):
    """Makes observations of any number of rows batches: `value`, padded with zeros, and `mask`, True for real rows.

    Put it into both pipelines. Each Sequence in the observation space becomes a Dict of these two; a Sequence of Dicts
    is a Dict of Sequences. A Graph is a Dict of the Sequences `nodes`, `edge_links` (two node numbers for each edge)
    and, if edges have a space, `edges`. Padded links are (0, 0). Other parts stay as they are. Episodes keep rows as
    they came, without padding.

    Without `max_rows` a batch is as long as its longest observation. Then acting and learning pad to different lengths,
    so the module must use the mask. With it all batches have one length, as the default networks need.

    Args:
        columns: `obs`, a part such as `obs/points`, or several parts. A part that is a Box is padded too, up to the
            length of its first axis, if episodes have fewer rows there.
        max_rows: The length of all batches; None: that of the longest observation.
        axis: The axis of the named Boxes that has any number of rows: 1 for observations of shape (3, n, 2).

    Raises:
        ConfigError: `max_rows` is no positive number.
        SpaceError: no part with any number of rows.
        ColumnError: an observation with more than `max_rows` rows, or rows of different shapes.

    Examples:
        >>> from gymnasium.spaces import Box, Sequence
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episodes = [SingleAgentEpisode(observations=[np.ones((n, 2), np.float32)]) for n in (1, 3)]
        >>> piece = PadRaggedRows(Sequence(Box(0, 1, (2,)), stack=True), max_rows=4)
        >>> piece.observation_space["value"].shape
        (4, 2)
        >>> batch = piece(batch={}, episodes=episodes)
        >>> [rows[0]["mask"].tolist().count(True) for rows in batch["obs"].values()]
        [1, 3]
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    removes = (Columns.OBS,)
    needs_episodes: ClassVar[bool] = True
    uses_spaces: ClassVar[bool] = True
    columns: Any = Columns.OBS
    max_rows: int | None = None
    axis: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        """Check the parameters."""
        self._paths = observation_paths("PadRaggedRows", self.columns)
        if self.max_rows is not None and (type(self.max_rows) is not int or self.max_rows < 1):
            raise ConfigError(
                "PadRaggedRows.max_rows", expected="a number of rows from 1 on", found=repr(self.max_rows), do="give it"
            )

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space with Dicts of value and mask."""
        space = ragged_space(input_observation_space)
        for path in self._paths:
            named = is_leaf(path.part(get_base_struct_from_space(space)))
            space = path.change_space(space, partial(self._padded_space, named=named))
        if space == ragged_space(input_observation_space):
            raise SpaceError(
                f"PadRaggedRows(columns={self.columns!r})",
                expected="a Sequence or a Graph there, or the name of a Box with fewer rows in some observations",
                found=f"{input_observation_space}",
                do="leave the piece out, or name the part: columns='obs/points'",
            )
        return space

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        rows, counts = observations_unjoined(group, newest=not self.as_learner_connector)
        space = None if self.input_observation_space is None else ragged_space(self.input_observation_space)
        for path in self._paths:
            rows = path.change_in(rows, space, partial(self._padded, where=str(path), named=is_leaf(path.part(rows))))
        whole = map_struct(lambda leaf: stack_rows(leaf) if isinstance(leaf, list) else leaf, rows)
        columns[Columns.OBS] = EpisodeColumn(whole, counts)
        return columns

    def _limit(self, space: Any) -> int | None:
        is_box = isinstance(space, gym.spaces.Box) and space.shape
        return space.shape[self.axis] if self.max_rows is None and is_box else self.max_rows

    def _padded_space(self, space: Any, named: bool) -> Any:
        if not (is_ragged(space) or (named and isinstance(space, gym.spaces.Box) and space.shape)):
            return space
        many = is_ragged(space)
        if self.axis >= (1 if many else len(space.shape)):
            raise SpaceError(
                "PadRaggedRows.axis",
                expected="an axis of the Boxes that columns name; Sequences have their rows on axis 0",
                found=f"axis {self.axis} of {space}",
                do="correct it, or use one piece for Sequences and another one for Boxes",
            )
        size = self._limit(space)
        low, high = bounds_of(space.feature_space if many else space, "PadRaggedRows")
        low, high = (low, high) if many else (low.min(self.axis), high.max(self.axis))
        low, high = np.minimum(low, 0).astype(low.dtype), np.maximum(high, 0).astype(high.dtype)  # padding is 0
        if size is None:
            row = box_of(low, high)
            mask: gym.Space[Any] = gym.spaces.Sequence(gym.spaces.Discrete(2), stack=True)
            return gym.spaces.Dict(value=gym.spaces.Sequence(row, stack=True), mask=mask)
        box = box_of(*(np.repeat(np.expand_dims(bound, self.axis), size, self.axis) for bound in (low, high)))
        return gym.spaces.Dict(value=box, mask=gym.spaces.MultiBinary(size))

    def _padded(self, rows: list[Any], space: Any, where: str, named: bool) -> Any:
        if not (named or is_ragged(space)):
            return rows
        limit = self._limit(space)
        if self.axis:
            rows, space = [np.moveaxis(row, self.axis, 0) for row in rows], None
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        longest = int(counts.max(initial=1))
        if limit is not None and longest > limit:
            raise ColumnError(
                f"PadRaggedRows, column {where!r}",
                expected=f"at most {limit} rows in each observation",
                found=f"{longest} rows",
                do=f"set max_rows={longest} or more; or leave it out, if the network takes any number",
            )
        part = space.feature_space if is_ragged(space) else space
        empty = [] if part is None else [np.zeros((0, *part.shape[not is_ragged(space) :]), part.dtype)]
        try:
            joined = np.concatenate([*empty, *rows])
        except ValueError as error:
            raise ColumnError(
                f"PadRaggedRows, column {where!r}",
                expected=f"arrays that differ in axis {self.axis} only",
                found=f"shapes {sorted({np.shape(row) for row in rows})[:5]}",
                do="let the environment return values of its space",
            ) from error
        mask = np.arange(limit or longest) < counts[:, None]
        value = np.zeros((*mask.shape, *joined.shape[1:]), joined.dtype)
        value[mask] = joined
        return {"value": np.moveaxis(value, 1, self.axis + 1), "mask": mask}
