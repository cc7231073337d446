"""The smallest space that has room for the values of several, and values brought to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import SpaceError

from .._engine.agent_table import check_agent_ids, places_of
from ..columnar_piece import ObservationRewriter

__all__ = ["PaddingPiece", "common_space", "padding"]


class PaddingPiece(ObservationRewriter):
    """A piece that gives some agents, or all, one common space.

    Args:
        input_observation_space: Dict of the agents' observation spaces.
        input_action_space: Dict of the agents' action spaces.
        agent_ids: The agents that are to have one space; others are left alone. Default: all.
    """

    multi_agent: bool = False
    agent_ids: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        """Check the agents."""
        self._agent_ids = check_agent_ids(self, self.agent_ids)

    @property
    def left_alone(self) -> bool:
        """True if this is no agent's copy of the piece, or that of an agent that is not meant."""
        return self.agent_copy_for is None or (
            self._agent_ids is not None and self.agent_copy_for not in self._agent_ids
        )

    def no_spaces(self, kind: str, found: Any) -> SpaceError:
        """The error of a piece that was not told what spaces the agents have."""
        name, do = type(self).__name__, "pass it to the pipeline, or to the piece with multi_agent=True"
        return SpaceError(name, expected=f"a Dict of the agents' {kind} spaces", found=str(found), do=do)

    def meant(self, spaces: gym.spaces.Dict) -> list[gym.Space[Any]]:
        """Of all agents' spaces those of the agents that are meant."""
        agents = list(spaces.spaces) if self._agent_ids is None else self._agent_ids
        places_of(self, list(spaces.spaces), agents)  # which refuses strangers
        return [spaces.spaces[agent] for agent in agents]


def common_space(spaces: Sequence[gym.Space[Any]], where: str) -> gym.Space[Any]:
    """Return the smallest common space of several spaces, entry by entry.

    Boxes with the same number of axes are padded to the largest length of each axis: their bounds take in the zeros of
    the padding, and types are promoted. Discrete spaces give the Discrete from their smallest value to their largest,
    MultiBinary vectors the longest one. Dicts with the same keys, and Tuples of the same length, go part by part. Other
    spaces must be equal.

    Args:
        spaces: At least one.
        where: Their source, for the message.

    Raises:
        SpaceError: spaces of different kinds, or Boxes with different numbers of axes.

    Examples:
        >>> common_space([gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(2, 3, (3,))], "observations")
        Box([-1. -1.  0.], 3.0, (3,), float32)
        >>> common_space([gym.spaces.Discrete(3), gym.spaces.Discrete(4, start=2)], "actions")
        Discrete(6)
    """
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    common = _common(list(spaces), where)
    if common is not None:
        return common
    other = next(space for space in spaces if space != first)
    raise SpaceError(
        where,
        expected="Boxes with one number of axes, or Discrete, MultiBinary, Dict or Tuple spaces of one form",
        found=f"{first} and {other}",
        do="bring them to one kind first (FlattenObservations), or pass agent_ids= for those that share a space",
    )


def _common(spaces: list[Any], where: str) -> gym.Space[Any] | None:
    """The common space of spaces of one kind; None if they have none."""
    kinds = {type(space) for space in spaces}
    if kinds == {gym.spaces.Box} and len({len(space.shape) for space in spaces}) == 1:
        return _common_box(spaces)
    if kinds == {gym.spaces.Discrete}:
        low = min(int(space.start) for space in spaces)
        return gym.spaces.Discrete(max(int(space.start + space.n) for space in spaces) - low, start=low)
    if kinds == {gym.spaces.MultiBinary} and all(len(space.shape) == 1 for space in spaces):
        return gym.spaces.MultiBinary(max(space.shape[0] for space in spaces))
    if kinds == {gym.spaces.Dict} and len({frozenset(space.spaces) for space in spaces}) == 1:
        keys = spaces[0].spaces
        return gym.spaces.Dict(
            {key: common_space([space[key] for space in spaces], f"{where}[{key!r}]") for key in keys}
        )
    if kinds == {gym.spaces.Tuple} and len({len(space) for space in spaces}) == 1:
        columns = zip(*[space.spaces for space in spaces])
        return gym.spaces.Tuple([common_space(parts, f"{where}[{i}]") for i, parts in enumerate(columns)])
    return None


def _common_box(spaces: Sequence[Any]) -> gym.spaces.Box:
    shape = tuple(max(lengths) for lengths in zip(*[space.shape for space in spaces]))
    dtype = np.result_type(*[space.dtype for space in spaces])
    lows = [_padded(space.low[None].astype(dtype), shape)[0] for space in spaces]
    highs = [_padded(space.high[None].astype(dtype), shape)[0] for space in spaces]
    return gym.spaces.Box(np.min(lows, axis=0), np.max(highs, axis=0), dtype=dtype.type)


def _padded(rows: npt.NDArray[Any], shape: tuple[int, ...], dtype: Any = None) -> npt.NDArray[Any]:
    """Return an array padded with zeros at the end of each axis but the first."""
    out = np.zeros((len(rows), *shape), dtype or rows.dtype)
    out[tuple(map(slice, rows.shape))] = rows
    return out


def padding(space: gym.Space[Any], common: gym.Space[Any], where: str) -> Callable[[Any], Any]:
    """Return the function that pads rows of one space to the common one.

    Args:
        space: Their space.
        common: The result of `common_space` for this space and others.
        where: Source of the rows, for the message.

    Returns:
        A function of arrays of shape [N, ...], nested like `space`, that gives arrays nested like `common`; the same
        arrays where nothing changes. It raises SpaceError for rows that do not match their space.

    Examples:
        >>> space = gym.spaces.Box(-1, 1, (2,))
        >>> pad = padding(space, common_space([space, gym.spaces.Box(-1, 1, (4,))], "rows"), "rows")
        >>> pad(np.ones((1, 2), np.float32))
        array([[1., 1., 0., 0.]], dtype=float32)
    """
    if space == common:
        return _as_they_are
    if isinstance(space, gym.spaces.Dict) and isinstance(common, gym.spaces.Dict):
        by_key = {key: padding(space[key], common[key], f"{where}[{key!r}]") for key in space.spaces}
        return partial(_padded_dict, by_key, space, where)
    if isinstance(space, gym.spaces.Tuple) and isinstance(common, gym.spaces.Tuple):
        parts = [padding(part, other, f"{where}[{i}]") for i, (part, other) in enumerate(zip(space, common))]
        return partial(_padded_tuple, parts, space, where)
    return partial(_padded_rows, space, common, where)


# Functions of the module, so that pieces that hold them can be pickled.


def _as_they_are(rows: Any) -> Any:
    return rows


def _padded_rows(space: gym.Space[Any], common: gym.Space[Any], where: str, rows: Any) -> Any:
    if not isinstance(rows, np.ndarray) or rows.shape[1:] != space.shape:
        raise _unlike(where, space, rows)
    if isinstance(space, gym.spaces.Discrete):
        return rows
    return _padded(rows, common.shape or (), np.result_type(rows.dtype, common.dtype))


def _padded_dict(parts: dict[Any, Callable[[Any], Any]], space: gym.Space[Any], where: str, rows: Any) -> Any:
    if not isinstance(rows, dict) or rows.keys() != parts.keys():
        raise _unlike(where, space, rows)
    return {key: parts[key](part) for key, part in rows.items()}


def _padded_tuple(parts: list[Callable[[Any], Any]], space: gym.Space[Any], where: str, rows: Any) -> Any:
    if not isinstance(rows, tuple) or len(rows) != len(parts):
        raise _unlike(where, space, rows)
    return tuple(pad(part) for pad, part in zip(parts, rows))


def _unlike(where: str, space: gym.Space[Any], rows: Any) -> SpaceError:
    found = f"rows of shape {rows.shape[1:]}" if isinstance(rows, np.ndarray) else f"rows in a {type(rows).__name__}"
    return SpaceError(where, expected=f"values of {space}", found=found, do="return what the agent's space says")
