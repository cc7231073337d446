"""Normalises observations by running statistics."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from annotated_types import Gt, Interval

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, SpaceError, StateError
from epibatch.core.shared_moments import (
    HUGE,
    LARGEST,
    Floats,
    LeafShapes,
    RunningMoments,
    SharedMoments,
    merge_shared_moments,
    prior_moments,
    warn_of_huge,
)
from epibatch.core.spaces import get_base_struct_from_space, mask_size_of, space_of_struct
from epibatch.core.structs import convert_to_numpy, flatten, flatten_like, paths_of, unflatten

from .._engine.agent_copies import no_space
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch
from ..authoring.column_paths import ColumnPath, addresses_in, moved, observation_paths, rewriting_moves, space_after
from ..columnar_piece import ObservationRewriter

__all__ = ["MeanStdFilter"]


class BoxLeaf(NamedTuple):
    """One Box among the leaves.

    Args:
        name: Its place, such as `observation['arm'][0]`.
        path: Its address.
        position: Its place among all leaves.
        columns: Its entries' columns.
        shape: Its shape.
        dtype: The type it is given back in.
        mask: Place of its mask among all leaves, and the mask's entries; None if all rows are there.
    """

    name: str
    path: ColumnPath
    position: int
    columns: slice
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    mask: tuple[int, int] | None


class BoxLeaves:
    """Positions of the entries of an observation space's Boxes in a row of all of them, sorted by name.

    Args:
        space: Space of one observation.
        paths: Parts of it whose Boxes are meant.

    Attributes:
        space: The space.
        form: Nesting of an observation.
        shapes: Shape of each Box by name.
        size: Number of columns.

    Examples:
        >>> leaves = BoxLeaves(gym.spaces.Dict(b=gym.spaces.Box(0, 1, (2,)), a=gym.spaces.Discrete(2)))
        >>> leaves.shapes, leaves.size
        ({"observation['b']": [2]}, 2)
    """

    __slots__ = ("_boxes", "form", "shapes", "size", "space")

    def __init__(self, space: gym.Space[Any], paths: Sequence[ColumnPath] = (ColumnPath(Columns.OBS),)) -> None:
        self.space = space
        spaces, self.form = flatten(get_base_struct_from_space(space))
        places = unflatten(self.form, list(range(len(spaces))))
        meant = {place for path in paths for place in flatten(path.part(places))[0]}
        names = ["observation" + path for path in paths_of(self.form)]
        addresses = {place: address for address, place in addresses_in(places, Columns.OBS).items()}
        masks = _masks(names, spaces)
        of_pairs = {index for index, _ in masks.values()}
        self._boxes: list[BoxLeaf] = []
        self.size = 0
        for name, index, leaf in sorted(zip(names, range(len(spaces)), spaces), key=lambda item: item[0]):
            if isinstance(leaf, gym.spaces.Box) and index in meant and index not in of_pairs:
                columns = slice(self.size, self.size + math.prod(leaf.shape))
                path = ColumnPath(Columns.OBS, tuple(addresses[index].split("/")[1:]))
                dtype, mask = filtered_dtype(leaf), masks.get(index)
                self._boxes.append(BoxLeaf(name, path, index, columns, leaf.shape, dtype, mask))
                self.size = columns.stop
        self.shapes: LeafShapes = {box.name: list(box.shape) for box in self._boxes}

    def rows(self, leaves: list[Any]) -> Floats:
        """The Boxes' entries side by side.

        Args:
            leaves: All leaves of a batch of observations, arrays or tensors of shape [number of rows, ...].

        Returns:
            float64, shape [number of rows, size]; a copy.

        Raises:
            SpaceError: a leaf of another shape than its Box.
        """
        for box in self._boxes:
            shape = tuple(leaves[box.position].shape[1:])
            if shape != box.shape:
                raise SpaceError(
                    box.name,
                    expected=f"shape {box.shape}, as its space says",
                    found=f"shape {shape}",
                    do="let the earlier piece say in recompute_output_observation_space what it makes",
                )
        count = leaves[0].shape[0] if leaves else 0
        if self._boxes and not isinstance(leaves[0], np.ndarray):
            import torch

            joined: Any = torch.cat([leaves[box.position].reshape(count, -1).double() for box in self._boxes], 1)
            return joined  # type: ignore[no-any-return]
        if len(self._boxes) == 1:
            single: Floats = leaves[self._boxes[0].position].reshape(count, self.size).astype(np.float64)
            return single
        rows = np.empty((count, self.size))
        for box in self._boxes:
            rows[:, box.columns] = leaves[box.position].reshape(count, -1)
        return rows

    def present(self, leaves: list[Any], rows: Any) -> Any:
        """Return True for entries of `rows` that are there, bool of its shape; None without values that have masks.

        Raises:
            SpaceError: a mask of another size than its space.
        """
        if all(box.mask is None for box in self._boxes):
            return None
        on_host = isinstance(rows, np.ndarray)
        present = np.ones(rows.shape, bool) if on_host else rows.new_ones(rows.shape).bool()
        for box in self._boxes:
            if box.mask is not None:
                mask, size = leaves[box.mask[0]], box.mask[1]
                if mask.shape[0] != rows.shape[0] or math.prod(mask.shape) != rows.shape[0] * size:
                    raise SpaceError(
                        f"mask of {box.name}",
                        expected=f"{size} for each of {len(rows)} rows, as its space says",
                        found=f"shape {tuple(mask.shape)}",
                        do="give each row of the value its mask",
                    )
                present[:, box.columns] = mask.reshape(rows.shape[0], size) != 0
        return present

    def put_back(self, leaves: list[Any], rows: Floats) -> Any:
        """The observations with `rows` in the place of the Boxes' entries; other leaves as they are."""
        out = list(leaves)
        for box in self._boxes:
            part, leaf = rows[:, box.columns].reshape(rows.shape[0], *box.shape), leaves[box.position]
            if isinstance(part, np.ndarray):
                out[box.position] = part.astype(box.dtype)
            else:
                out[box.position] = part.to(leaf.dtype) if leaf.is_floating_point() else part.float()
        return unflatten(self.form, out)

    def limited(self, limit: float) -> Any:
        """The space with Boxes of [-limit, limit] in the place of the Boxes."""
        spaces, _ = flatten(get_base_struct_from_space(self.space))
        for box in self._boxes:
            spaces[box.position] = gym.spaces.Box(-limit, limit, box.shape, box.dtype.type)
        return space_of_struct(unflatten(self.form, spaces))

    def row_of(self, values: Any) -> Floats:
        """One value for each column: a number or array for all Boxes, or a dict of these by part.

        Raises:
            ValueError: another shape than a Box has.
        """
        row = np.empty(self.size)
        for box in self._boxes:
            at = box.path.part(values) if isinstance(values, (dict, tuple)) else values
            row[box.columns] = np.broadcast_to(np.asarray(at, np.float64), box.shape).ravel()
        return row

    def name_of(self, column: int) -> str:
        """The name of the Box that a column belongs to."""
        return next(box.name for box in self._boxes if column < box.columns.stop)


def _masks(names: list[str], spaces: list[Any]) -> dict[int, tuple[int, int]]:
    """Place of the value of each pair -> place of its mask, and the mask's entries."""
    masks = {}
    for index, name in enumerate(names):
        pair = name.removesuffix("['value']")
        places = {other: place for place, other in enumerate(names) if other.startswith(f"{pair}[")}
        if name != pair and places.keys() == {name, f"{pair}['mask']"}:
            mask = places[f"{pair}['mask']"]
            size = mask_size_of(gym.spaces.Dict(value=spaces[index], mask=spaces[mask]))
            if size in (1, math.prod(spaces[index].shape)):  # else of rows: each entry counts
                masks[index] = mask, size
    return masks


def _zero_where_absent(rows: Any, present: Any) -> Any:
    if present is None:
        return rows
    return np.where(present, rows, 0.0) if isinstance(rows, np.ndarray) else rows.masked_fill(~present, 0.0)


def filtered_dtype(box: gym.spaces.Box) -> np.dtype[Any]:
    """The type that a Box's entries have when they are no longer whole numbers: its own, or float32."""
    dtype = np.dtype(box.dtype)
    return dtype if dtype.kind == "f" else np.dtype(np.float32)


_SMALL = 1e-6
_ROUNDING = 1e-12


class MeanStdFilter(ObservationRewriter):
    """Shifts and scales each entry of the newest observations to mean 0 and standard deviation 1.

    Mean and deviation are those of all observations seen so far, the newest ones included; each
    call counts one observation per episode, all in one step. What comes out is written back into
    the episodes.

    Box leaves of any number of axes are filtered, each entry by itself; integer ones come out as
    float32, others keep their type. Discrete, MultiDiscrete and MultiBinary leaves are codes and
    flags rather than quantities, Text, Graph and Sequence leaves have no entries: all of them are
    left as they are. So are one-hot vectors that are Discrete here and encoded by a later piece.

    A Dict of a Box `value` and its `mask` is a pair, as in the default networks, and its mask stays as it is. Rows with
    a mask of 0 (or entries, if the mask has the value's shape) do not count, and come out as 0. A `MaskedColumn` there
    comes out as a dict.

    An entry that has not varied yet has no deviation to divide by, so it is only shifted. A filter
    that has seen nothing and does not update leaves all values as they are, unless it has a `prior`.

    With `decay` it follows data that drift: an observation counts `decay**n` once n later ones were seen; those of one
    call count alike. The variance of observations x with weights w is unbiased: sum(w * (x - mean)^2) divided by
    sum(w) - sum(w^2) / sum(w), which is n - 1 without decay. With a `prior` it begins as if it had seen so many
    observations. `prior=(1, mean, std)` and `update_stats=False` make a filter whose statistics are given and never
    change.

    Several copies (one per runner) are synchronised by giving each one `merge_states` of the states
    of all. A state says what was known at the last synchronisation and what this copy has seen
    since, so the merge is that of all observations, however often it happens, up to rounding. With `decay` what was
    known decays by all that the copies have seen since; these do not decay each other.

    Each agent has statistics of its own.

    Counterparts: RLlib's `MeanStdFilter`, TorchRL's `VecNorm`, `VecNormV2`, `ObservationNorm`.

    Args:
        de_mean_to_zero: Whether to subtract the mean.
        de_std_to_one: Whether to divide by the deviation (plus 1e-6).
        clip_by_value: Limit of the absolute values that come out; None for no limit.
        update_stats: Whether to count the observations; see `freeze`.
        decay: What each observation leaves of the weight of earlier ones, in (0, 1]; 1: all count alike.
        prior: `(count, mean, std)`: statistics of `count` observations to begin with. Mean and deviation are a number,
            an array of the Box's shape, or a dict of these by part of the observations. A saved state has what was
            counted, without the prior: load it into a filter with the same prior.
        columns: `obs`, or one part or several of a Dict or Tuple: "obs/pose", ["obs/pose", "obs/speed"]. Boxes of other
            parts, such as images, stay as they are.
        to: Another part of the Dict that the result becomes, "obs/standard", beside the unfiltered one; or as many
            names as `columns` has.

    Raises:
        ConfigError: an argument of another kind.
        SpaceError: no observation space, or observations that do not match it.
        ColumnError: observations that are NaN, infinite or above 1e100; the statistics stay as they were. (Above 1e15
            the filter warns once: such a value makes the deviation so large that ordinary ones come out as 0.)

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        >>> episodes = [SingleAgentEpisode(observations=[np.array([x, 5.0])]) for x in (1.0, 2.0, 6.0)]
        >>> batch = MeanStdFilter(space)(batch={}, episodes=episodes)
        >>> [episode.get_observations(-1).round(3).tolist() for episode in episodes]
        [[-0.756, 0.0], [-0.378, 0.0], [1.134, 0.0]]
    """

    takes_tensors: ClassVar[bool] = True
    multi_agent: bool = False
    de_mean_to_zero: bool = True
    de_std_to_one: bool = True
    clip_by_value: Annotated[float, Gt(0)] | None = 10.0
    update_stats: bool = True
    decay: Annotated[float, Interval(gt=0, le=1)] = 1.0
    prior: Any = None
    columns: str | Sequence[str] = Columns.OBS
    to: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Begin without statistics."""
        self._update_stats = self.update_stats
        self._boxes: BoxLeaves | None = None
        self._seen: SharedMoments | None = None
        self._scaling: tuple[Any, Any] | None = None
        self._prior: RunningMoments | None = None
        self._warned = False

    def _prepare(self) -> None:
        self._paths = observation_paths("MeanStdFilter", self.columns)
        self._moves = rewriting_moves("MeanStdFilter", self._paths, self.to)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space with Boxes of [-clip, clip] in the place of its Boxes, integer ones as float32."""
        limit = math.inf if self.clip_by_value is None else self.clip_by_value
        space = input_observation_space
        return None if space is None else space_after(self._moves, space, self._boxes_of(space).limited(limit))

    def _boxes_of(self, space: gym.Space[Any]) -> BoxLeaves:
        """The Boxes at `columns`.

        Raises:
            ColumnError: there is no such part.
            SpaceError: a part without Boxes.
        """
        boxes = BoxLeaves(space, self._paths)
        if self.prior is not None:
            self._prior = prior_moments("MeanStdFilter", self.prior, boxes.row_of)
        if not boxes.size and any(path.keys for path in self._paths):
            raise SpaceError(
                f"MeanStdFilter.columns {self.columns!r}",
                expected="parts with a Box, which hold quantities",
                found=repr(space),
                do="name such parts, or leave columns out: all Boxes are filtered then",
            )
        return boxes

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite each agent's newest observations by that agent's statistics."""
        return self.run_agents(batch, call)

    # -- filtering -------------------------------------------------------------------------------

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Count the observations in, then shift, scale and clip them."""
        boxes = self._leaves()
        leaves = flatten_like(boxes.form, observations)
        rows = boxes.rows(leaves)
        present = boxes.present(leaves, rows)
        rows = _zero_where_absent(rows, present)
        moments = self._moments(boxes, rows)
        if self._update_stats:
            try:
                moments.add(rows, present, self.decay)
            except ColumnError:
                raise _not_finite(rows, boxes, group) from None
            self._scaling = None
            if moments.since.largest > HUGE and not self._warned:
                self._warned = True
                where, value = _first(abs(rows) > HUGE, rows, boxes, group)
                warn_of_huge(where, value, "observations")
        if moments.total or self._prior is not None:
            rows = self._filtered(rows, moments.total)
        return moved(self._moves, observations, boxes.put_back(leaves, _zero_where_absent(rows, present)))

    def inverse(self, observations: Any) -> Any:
        """Return the observations before the filter, by its current statistics.

        Clipped values stay at their limit, and integers are returned as floats.

        Args:
            observations: Filtered ones, arrays of shape [rows, ...] in the nesting of one observation. With several
                agents call it for one agent: `filter.parts.of(agent_id).inverse(...)`.
        """
        boxes = self._leaves()
        leaves = flatten_like(boxes.form, observations)
        rows = boxes.rows(leaves)
        present = boxes.present(leaves, rows)
        rows = _zero_where_absent(rows, present)
        moments = self._with_prior(self._moments(boxes, rows).total, rows)
        if moments:
            if self.de_std_to_one:
                rows = rows * _divisor(moments)
            if self.de_mean_to_zero:
                rows = rows + moments.mean
        return boxes.put_back(leaves, _zero_where_absent(rows, present))

    def _filtered(self, rows: Any, moments: RunningMoments) -> Any:
        if self._scaling is None:
            moments = self._with_prior(moments, rows)
            self._scaling = moments.mean, _divisor(moments) if self.de_std_to_one else None
        mean, divisor = self._scaling
        if self.de_mean_to_zero:
            rows = rows - mean
        if divisor is not None:
            rows = rows / divisor
        limit = self.clip_by_value
        if limit is None:
            return rows
        return np.minimum(np.maximum(rows, -limit), limit) if isinstance(rows, np.ndarray) else rows.clip(-limit, limit)

    def _with_prior(self, moments: RunningMoments, rows: Any) -> RunningMoments:
        if self._prior is None:
            return moments
        prior = copy.copy(self._prior)
        prior.place_beside(rows)
        return prior.merged([moments])

    def _leaves(self) -> BoxLeaves:
        """The Boxes of the input space, which may have changed since the last time."""
        space = self.input_observation_space
        if space is None:
            expected = "the observation space, which says what is a quantity and what a code"
            raise no_space(self, expected, "observation_space")
        if self._boxes is None or self._boxes.space is not space:
            self._boxes = self._boxes_of(space)
        return self._boxes

    def _moments(self, boxes: BoxLeaves, rows: Any = None) -> SharedMoments:
        """Return the moments, which are arrays or tensors as the rows are."""
        if self._seen is None:
            self._seen = SharedMoments.nothing(boxes.shapes)
        elif self._seen.shapes is not boxes.shapes:
            self._seen.check(boxes.shapes, "MeanStdFilter")
            self._seen.shapes = boxes.shapes
        if rows is not None and type(rows) is not type(self._seen.total.mean):
            self._seen.place_beside(rows)
            self._scaling = None
        return self._seen

    # -- state -----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Count no more observations; what is known stays, and is still applied."""
        super().freeze()
        self._update_stats = False
        for _, part in self.parts.items():
            part.freeze()

    def unfreeze(self) -> None:
        """Count observations again."""
        self._update_stats = True
        for _, part in self.parts.items():
            part.unfreeze()

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the statistics at the last synchronisation and those since; {} before there is a space.

        Returns:
            `synchronised` and `since`, each with `count` (int), `mean` and `squares` (float64,
            [entries of all filtered leaves]), and `leaves`: the shape of each by its path. For several agents
            `agents`: such a state for each agent seen.
        """
        agents = {agent_id: part.get_state() for agent_id, part in self.parts.items()}
        if agents or self.spaces_by_agent:
            return {"agents": agents} if agents else {}
        if self._seen is None and self.input_observation_space is not None:
            self._moments(self._leaves())
        return {} if self._seen is None else self._seen.to_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` or `merge_states` gave.

        Raises:
            StateError: a state of another kind, or of other observations.
        """
        if isinstance(state, Mapping) and "agents" in state:
            self.reset_state()
            for agent_id, agent_state in state["agents"].items():
                self.parts.of(agent_id).set_state(agent_state)
            return
        if self.spaces_by_agent:
            raise StateError(
                "MeanStdFilter.set_state",
                expected="{'agents': {agent: statistics}}, those of each agent",
                found=f"{type(state).__name__} with {sorted(map(str, state))}",
                do="restore the state of a filter of several agents",
            )
        moments = SharedMoments.from_state(state, "MeanStdFilter.set_state")
        if self.input_observation_space is not None:
            moments.check(self._leaves().shapes, "MeanStdFilter.set_state")
        self._seen, self._scaling = moments, None

    def reset_state(self) -> None:
        """Forget all observations."""
        self._seen = self._scaling = None
        self.parts.clear()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the states of all copies into one. Set it in each copy before it continues.

        Raises:
            StateError: states of other observations, or of copies that were last synchronised
                with different states. A copy that was never synchronised may be among them.
        """
        if any("agents" in state for state in states):
            agents = dict.fromkeys(agent_id for state in states for agent_id in state.get("agents", ()))
            by_agent = {a: [state["agents"][a] for state in states if a in state.get("agents", ())] for a in agents}
            return {"agents": {a: merge_shared_moments(s, "MeanStdFilter.merge_states") for a, s in by_agent.items()}}
        return merge_shared_moments(states, "MeanStdFilter.merge_states") if states else {}


def _divisor(moments: RunningMoments) -> Any:
    """The deviations; 1 for entries that have not varied beyond the rounding of their mean."""
    deviation: Any = moments.std()
    varied: Any = deviation > _ROUNDING * abs(moments.mean)
    if isinstance(varied, np.ndarray):
        return np.where(varied, deviation + _SMALL, 1.0)
    return (deviation + _SMALL).where(varied, 1.0)


# -- errors ----------------------------------------------------------------------------------------


def _not_finite(rows: Any, boxes: BoxLeaves, group: ChunkGroup) -> ColumnError:
    where, value = _first(~(abs(rows) <= float(LARGEST)), rows, boxes, group)
    return ColumnError(
        where,
        expected=f"finite numbers of at most {LARGEST:g}; others would spoil the statistics for good",
        found=str(value),
        do="correct the environment, or replace such values with a piece before the filter",
    )


def _first(odd: Any, rows: Any, boxes: BoxLeaves, group: ChunkGroup) -> tuple[str, Any]:
    """Return where the first odd value is, and the value."""
    row, column = (int(at[0]) for at in np.nonzero(convert_to_numpy(odd)))
    whose = group.describe(row) if len(group.episodes) else f"row {row}"
    return f"MeanStdFilter, {boxes.name_of(column)} of {whose}", convert_to_numpy(rows)[row, column]
