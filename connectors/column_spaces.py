"""The space of every column through a pipeline, known before the first step."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import add_context
from epibatch.core.structs import flatten, unflatten

from .acting_module import acting_module, initial_state, is_multi, is_stateful

if TYPE_CHECKING:
    from .connector_pipeline_v2 import ConnectorPipelineV2

__all__ = [
    "FLAG",
    "ColumnSpace",
    "KnownColumns",
    "Spaces",
    "column_spaces_of",
    "number",
    "retyped",
    "space_like",
    "start_of",
    "unbounded",
]

Spaces: TypeAlias = MutableMapping[str, gym.Space[Any]]

_ONE_PER_SEQUENCE = (Columns.STATE_IN, Columns.NEXT_STATE_IN, Columns.SEQ_LENS, Columns.STATE_OUT)
_FLOATS = (np.float16, np.float32, np.float64)


def number(dtype: Any) -> gym.spaces.Box:
    """The space of one number of a type, without bounds.

    Example:
        >>> number(np.float32)
        Box(-inf, inf, (), float32)
    """
    return unbounded((), np.dtype(dtype))


FLAG = gym.spaces.Box(0, 1, (), np.bool_)  # type: ignore[arg-type]
"""The space of one flag."""


class ColumnSpace(NamedTuple):
    """What is known of a column.

    Args:
        space: Of one row, without the axes in front.
        axes: The axes in front of it: ("batch",), or ("batch", "time") in padded sequences of a recurrent module.
        layout: "episodes" (rows of each episode by themselves), "arrays" or "tensors".
    """

    space: gym.Space[Any]
    axes: tuple[str, ...]
    layout: str

    def __str__(self) -> str:
        return f"[{', '.join(self.axes)}] of {self.space}, {self.layout}"


class KnownColumns:
    """What is known at one place of a pipeline; of one agent (or module) where there are several.

    Args:
        columns: Space of one row of each column of the batch.
        episodes: Spaces of what episodes hold there: `obs`, `actions`, `rewards`, flags, `state_out`.
        stateful: Whether the module is recurrent.
        layout: Of the batch.
        timed: Whether rows have a time axis.
    """

    def __init__(
        self, columns: Spaces, episodes: Spaces, stateful: bool = False, layout: str = "episodes", timed: bool = False
    ) -> None:
        self.columns, self.episodes = columns, episodes
        self.stateful, self.layout, self.timed = stateful, layout, timed

    def behind(self, piece: Any, entry: Any = None) -> KnownColumns:
        """What is known behind a piece.

        Args:
            piece: The piece.
            entry: The agent or module, in a pipeline about several.
        """
        if piece.time_axis and not self.stateful:
            return self  # as the piece leaves the batch
        episodes = dict(self.episodes)
        columns = _of_piece(piece, dict(self.columns), episodes, entry)
        layout = piece.gives or self.layout
        if piece.halves_floats:
            columns = {name: _halved(space) for name, space in columns.items()}
        timed = self.timed if piece.time_axis is None else bool(piece.time_axis) and self.stateful
        return KnownColumns(columns, episodes, self.stateful, layout, timed)

    def spaces(self, prefix: str = "") -> Iterator[tuple[str, ColumnSpace]]:
        """Each column with what is known of it."""
        for name, space in self.columns.items():
            timed = self.timed and name not in _ONE_PER_SEQUENCE
            yield prefix + name, ColumnSpace(space, ("batch", "time") if timed else ("batch",), self.layout)


def _of_piece(piece: Any, columns: Spaces, episodes: Spaces, entry: Any) -> Spaces:
    if entry is None or not piece.spaces_by_agent:
        out: Spaces = piece.recompute_column_spaces(columns, episodes)
        return out
    if piece.space_by_space:
        own = piece.parts.of(entry) if getattr(piece, "uses_spaces", False) else piece
        out = own.recompute_column_spaces(columns, episodes)
        return out
    declared = piece.columnar or piece.reads is not None
    space = _entry(piece.observation_space, entry)
    if piece.rewrites_observations and space is not None:
        episodes[Columns.OBS] = space
    elif not declared or piece.mutates_episodes:
        episodes.clear()
    return {name: own for name, own in columns.items() if name not in piece.writes} if declared else {}


def start_of(pipeline: Any, spaces: tuple[Any, Any], stateful: bool = False) -> KnownColumns:
    """What is known at a pipeline's start.

    Args:
        pipeline: The pipeline.
        spaces: Of one observation and of one action of the module's; None where they are not known.
        stateful: Whether the module is recurrent.
    """
    observations, actions = spaces
    acts = pipeline.start_layout == "tensors"
    episodes: Spaces = {} if observations is None else {Columns.OBS: observations}
    if actions is not None and (pipeline.training is not False or acts):
        episodes[Columns.ACTIONS] = actions
    if pipeline.training is not False:
        episodes[Columns.REWARDS] = number(np.float64)
        episodes[Columns.TERMINATEDS] = episodes[Columns.TRUNCATEDS] = FLAG
    return KnownColumns({}, episodes, stateful, pipeline.start_layout, acts and stateful)


def column_spaces_of(pipeline: ConnectorPipelineV2, module: Any = None) -> dict[str, ColumnSpace]:
    """The columns that a pipeline gives, as far as they are known; see `ConnectorPipelineV2.column_spaces`."""
    steps, observations = pipeline.plan().steps, pipeline.input_observation_space
    several = pipeline.spaces_by_agent or any(step.piece.maps_agents for step in steps)
    if several and pipeline.start_layout == "tensors":
        return {}
    known: _Tracks
    if not several:
        acts = pipeline.start_layout == "tensors"
        spaces = observations, getattr(module, "action_space", None) if acts else pipeline.input_action_space
        known = {(None, None): _started(pipeline, spaces, None if module is None else acting_module(module))}
    else:
        agents = observations.spaces if isinstance(observations, gym.spaces.Dict) else {}
        known = {
            (agent, module_id): _started(pipeline, (space, _entry(pipeline.input_action_space, agent)), own)
            for module_id, own in {None: None, **_recurrent(module)}.items()
            for agent, space in agents.items()
        }
    for step in steps:
        try:
            if step.piece.maps_agents:
                known = _by_module(step.piece, known, module)
            known = {track: own.behind(step.piece, track[0]) for track, own in known.items()}
        except Exception as error:
            add_context(error, f"in {step.where}, the spaces of its columns:")
            raise
    return {
        name: column
        for (entry, module_id), own in known.items()
        if module_id is None
        for name, column in own.spaces("" if entry is None else f"{entry}/")
    }


_Tracks: TypeAlias = dict[tuple[Any, Any], KnownColumns]
"""What is known of an agent's columns if it is a recurrent module's (None: one without state), by (agent, module); of a
module's behind the mapping, by (module, None)."""


def _recurrent(module: Any) -> dict[Any, Any]:
    """The recurrent modules of a MultiRLModule."""
    return {key: own for key, own in module.items() if is_stateful(own)} if is_multi(module) else {}


def _started(pipeline: Any, spaces: tuple[Any, Any], module: Any) -> KnownColumns:
    """What is known at the start of a pipeline of the columns of one agent, which is a module's, if there is one."""
    stateful = module is not None and is_stateful(module)
    known = start_of(pipeline, spaces, stateful)
    known.episodes.update(_states(module) if stateful else {})
    return known


def _states(module: Any) -> dict[str, Any]:
    """The space of a recurrent module's states, as episodes hold them."""
    space = _space_like(initial_state(module))
    return {} if space is None else {Columns.STATE_OUT: space}


def _by_module(piece: Any, known: _Tracks, module: Any) -> _Tracks:
    """What is known of each module's columns: what is the same of all agents, and the module's own observations."""
    if not known or not isinstance(piece.observation_space, gym.spaces.Dict):
        return {}
    recurrent, found = _recurrent(module), {}
    for module_id, observations in piece.observation_space.spaces.items():
        stateful = module_id in recurrent
        agents = [own for (_, track), own in known.items() if track == (module_id if stateful else None)]
        first, *others = agents
        own = {key: space for key, space in first.columns.items() if all(_is(one, key, space) for one in others)}
        if any(Columns.OBS in one.columns for one in agents):
            own[Columns.OBS] = observations
        actions = _entry(piece.action_space, module_id)
        if actions is not None and any(Columns.ACTIONS in one.columns for one in agents):
            own[Columns.ACTIONS] = actions
        episodes = _states(recurrent[module_id]) if stateful else {}
        found[module_id, None] = KnownColumns(own, episodes, stateful, first.layout, first.timed)
    return found


def _is(known: KnownColumns, column: str, space: Any) -> bool:
    return bool(known.columns.get(column) == space)


def _entry(space: Any, key: Any) -> Any:
    return space.spaces.get(key) if isinstance(space, gym.spaces.Dict) else space


def _space_like(struct: Any) -> Any:
    """The space of a structure of arrays or tensors; None if one of them is of a type that has no Box."""
    leaves, form = flatten(struct)
    spaces = [space_like(tuple(np.shape(leaf)), _dtype_of(leaf)) for leaf in leaves]
    return None if None in spaces else _nested(unflatten(form, spaces))


def _nested(struct: Any) -> Any:
    if isinstance(struct, dict):
        return gym.spaces.Dict({key: _nested(own) for key, own in struct.items()})
    return gym.spaces.Tuple([_nested(own) for own in struct]) if isinstance(struct, tuple) else struct


def _dtype_of(leaf: Any) -> Any:
    try:
        return np.dtype(str(leaf.dtype).removeprefix("torch.")) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    except TypeError:  # bfloat16, which NumPy has not
        return np.dtype(object)


def space_like(shape: tuple[int, ...], dtype: Any) -> gym.spaces.Box | None:
    """The Box of all arrays of a shape and a type; None of types that have none, such as complex numbers and strings.

    Example:
        >>> space_like((2,), np.dtype(np.float32)), space_like((2,), np.dtype(np.complex64))
        (Box(-inf, inf, (2,), float32), None)
    """
    return unbounded(shape, dtype) if dtype.kind in "biu" or dtype in _FLOATS else None


def unbounded(shape: tuple[int, ...], dtype: Any) -> gym.spaces.Box:
    """The Box of all arrays of a shape and a type of bools, integers or floats.

    Example:
        >>> unbounded((2,), np.dtype(np.uint8))
        Box(0, 255, (2,), uint8)
    """
    if dtype.kind in "iu":
        return gym.spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    if dtype.kind == "b":
        return gym.spaces.Box(0, 1, shape, np.bool_)  # type: ignore[arg-type]
    return gym.spaces.Box(-np.inf, np.inf, shape, dtype.type)


def retyped(space: Any, dtype: Any) -> Any:
    """A space of rows of another type; None where there is no such space.

    Args:
        space: A Box; others are of one type.
        dtype: The type.
    """
    if not isinstance(space, gym.spaces.Box) or space_like((), dtype) is None:
        return None
    if dtype.kind != "f" or np.dtype(space.dtype).kind != "f":
        return unbounded(space.shape, dtype)
    return gym.spaces.Box(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype.type)


def _halved(space: Any) -> Any:
    """The space with float32 in place of float64."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _halved(own) for key, own in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_halved(own) for own in space.spaces])
    wide = isinstance(space, gym.spaces.Box) and np.dtype(space.dtype) == np.float64
    return retyped(space, np.dtype(np.float32)) if wide else space
