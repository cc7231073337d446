"""Other bounds for continuous actions: narrower ones, or units of a module's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, SpaceError

from .._engine.agent_copies import no_space
from ..authoring.column_transform import ColumnTransform

_MOST_SPACES = 64


def numbers_for(piece: Any, make: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Return `make(box)` for the float Box of a transform's rows; None for rows of another space.

    The result is cached as long as the rows have the same spaces.

    Args:
        piece: The transform, while it runs.
        make: Function of a Box.

    Raises:
        SpaceError: the space of the rows is not known.
    """
    space = piece.row_space
    cache: dict[int, tuple[Any, tuple[Any, ...] | None]] = piece.__dict__.setdefault("_of_spaces", {})
    found = cache.get(id(space))
    if found is None or found[0] is not space:
        if space is None:
            expected = "the space of the actions, on whose bounds its work depends"
            raise no_space(piece, expected, "None, action_space, ...")
        if len(cache) > _MOST_SPACES:
            cache.clear()
        found = cache[id(space)] = space, make(space) if is_continuous(space) else None
    return found[1]


class BoxActionTransform(ColumnTransform):
    """A transform of the float Boxes among actions, by the bounds of the agent's own space."""

    uses_spaces: ClassVar[bool] = True

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of transformed actions.

        Raises:
            SpaceError: there is no float Box among the actions that are to change.
        """
        spaces, agent_spaces = [input_action_space], getattr(self.agent_template, "input_action_space", None)
        if self.agent_copy_for is not None and isinstance(agent_spaces, gym.spaces.Dict):
            spaces = list(agent_spaces.spaces.values())  # another agent may have what the piece is for
        keys = [path.keys for path in self.paths if path.column == Columns.ACTIONS]
        if keys and not any(_has_box(space, part) for space in spaces for part in keys):
            raise SpaceError(
                type(self).__name__,
                expected="a float Box among the actions",
                found=", ".join(map(str, spaces)),
                do="take the piece out: these actions are choices already",
            )
        return super().recompute_output_action_space(input_observation_space, input_action_space)


def _has_box(space: Any, keys: tuple[str, ...]) -> bool:
    """True if there is a float Box in the part of a space at some keys."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        named = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        return any(_has_box(part, keys[1:]) for key, part in named if not keys or str(key) == keys[0])
    return not keys and is_continuous(space)


def is_continuous(space: Any) -> bool:
    """True if a space is a Box of floats."""
    return isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind == "f"


def one_for_all(entries: Any) -> Any:
    """The number that all entries have, or the array of them: rows of few entries take many times as long with arrays.

    Examples:
        >>> one_for_all(np.array([2.0, 2.0])), one_for_all(np.array([1.0, 2.0]))
        (np.float64(2.0), array([1., 2.]))
    """
    first = entries.flat[0] if entries.size else None
    return first if first is not None and (entries == first).all() else entries


def tensors_of(numbers: Iterable[Any], device: Any, dtype: Any = None) -> tuple[Any, ...]:
    """Return numbers and arrays as tensors on a device, in a NumPy type; None: their own."""
    import torch

    return tuple(torch.as_tensor(np.array(number, dtype), device=device) for number in numbers)


class ClipActions(BoxActionTransform):
    """Clips continuous actions to the environment's bounds, or to narrower limits, and takes them as they are.

    The module's space is the Box within the limits. What it gives is clipped to them on the way to the environment and
    stored as it was; it is taken for numbers of that space, not for units of its bounds, whatever the setting
    `normalize_actions` says. Without limits the environment's bounds are meant, as with Gymnasium's ClipAction. Actions
    without bounds get some by limits. Parts of nested actions that are no float Boxes stay as they are.

    Counterparts: TorchRL's `ClipTransform`.

    Args:
        low: Least number; None: the space's own bound.
        high: Greatest number; None: the space's own bound.
        columns: The actions, or some parts of them, as `actions/steer`.

    Raises:
        ConfigError: limits in the wrong order.
        SpaceError: limits with nothing of the space between them, neither limits nor bounds, or no float Box among the
            actions.

    Examples:
        >>> piece = ClipActions(input_action_space=gym.spaces.Box(-2.0, 2.0, (1,)), low=-0.5, high=3.0)
        >>> piece.action_space
        Box(-0.5, 2.0, (1,), float32)
        >>> piece.changed(piece.paths[0], np.array([[-1.0], [0.25], [9.0]]), piece.inverse).tolist()
        [[-0.5], [0.25], [2.0]]
    """

    low: float | None = None
    high: float | None = None
    columns: Any = "actions"
    takes_tensors = True

    def __post_init__(self) -> None:
        """Check the limits."""
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not low < high:
            raise _no_limits("ClipActions", "low below high, one of which may be None", self)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The Box within the limits; other spaces stay."""
        if not is_continuous(space):
            return space
        box: Any = space
        low, high = self._limits(box)
        if self.low is None and self.high is None and not (np.isfinite(low).any() or np.isfinite(high).any()):
            do = "give some, ClipActions(low=-1.0, high=1.0), or take the piece out"
            raise SpaceError("ClipActions", expected="limits, or actions with bounds", found=str(box), do=do)
        if (low > high).any():
            raise SpaceError(
                "ClipActions",
                expected=f"limits that leave something of {box}",
                found=f"low={self.low}, high={self.high}",
                do="take limits between the bounds of the environment's actions",
            )
        return gym.spaces.Box(low, high, dtype=box.dtype.type)

    def _limits(self, box: Any) -> tuple[Any, Any]:
        low = box.low if self.low is None else np.maximum(box.low, box.dtype.type(self.low))
        high = box.high if self.high is None else np.minimum(box.high, box.dtype.type(self.high))
        return low, high

    def _numbers(self, box: Any) -> tuple[Any, Any]:
        low, high = self._limits(box)
        return one_for_all(low), one_for_all(high)

    def transform(self, x: Any) -> Any:
        """Actions within the limits."""
        limits = numbers_for(self, self._numbers)
        if limits is not None and not isinstance(x, np.ndarray):
            limits = tensors_of(limits, x.device)
        return x if limits is None else x.clip(*limits)

    def inverse(self, y: Any) -> Any:
        """Actions within the limits, as before: those are the environment's."""
        return self.transform(y)


class RescaleActions(BoxActionTransform):
    """Gives continuous actions bounds of the module's own, and stretches what it gives to those of the environment.

    With the setting `normalize_actions`, which is on by default, modules act between -1 and 1 without this piece; it is
    for other units, or for some parts of the actions. What the module gives is clipped to its bounds first, and stored
    as it was. Parts of nested actions that are no float Boxes stay as they are.

    Args:
        low: The module's lower bound, of every entry.
        high: The module's upper bound, of every entry.
        columns: The actions, or some parts of them, as `actions/steer`.

    Raises:
        ConfigError: bounds that are not finite, or in the wrong order.
        SpaceError: actions without bounds, or no float Box among them.

    Examples:
        >>> piece = RescaleActions(input_action_space=gym.spaces.Box(0.0, 10.0, (1,)), low=-1.0, high=1.0)
        >>> piece.action_space
        Box(-1.0, 1.0, (1,), float32)
        >>> piece.changed(piece.paths[0], np.array([[-1.0], [0.5], [7.0]]), piece.inverse).tolist()
        [[0.0], [7.5], [10.0]]
    """

    low: float = -1.0
    high: float = 1.0
    columns: Any = "actions"
    takes_tensors = True

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not -math.inf < self.low < self.high < math.inf:
            raise _no_limits("RescaleActions", "two finite numbers, low below high", self)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The Box with the module's bounds; other spaces stay."""
        if not is_continuous(space):
            return space
        box: Any = space
        if not box.is_bounded():
            raise SpaceError(
                "RescaleActions",
                expected="a Box with two bounds for each entry",
                found=str(box),
                do="bound the actions: put ClipActions(low=..., high=...) before it",
            )
        return gym.spaces.Box(self.low, self.high, box.shape, box.dtype.type)

    def transform(self, x: Any) -> Any:
        """Actions of the environment in the module's units."""
        numbers = numbers_for(self, self._numbers)
        if numbers is None:
            return x
        factor, shift, *_, dtype = numbers
        return _moved(x, factor, shift, (self.low, self.high), dtype)

    def inverse(self, y: Any) -> Any:
        """The module's actions in the environment's units."""
        numbers = numbers_for(self, self._numbers)
        if numbers is None:
            return y
        _, _, factor, shift, low, high, dtype = numbers
        return _moved(y, factor, shift, (low, high), dtype)

    def _numbers(self, box: Any) -> tuple[Any, ...]:
        """Factor and shift there, factor and shift back, the bounds, and their type."""
        low, span = box.low.astype(np.float64), box.high.astype(np.float64) - box.low
        factor = np.divide(self.high - self.low, span, out=np.zeros_like(span), where=span > 0)
        back = span / (self.high - self.low)
        numbers = factor, self.low - low * factor, back, low - self.low * back
        return *map(one_for_all, numbers), one_for_all(box.low), one_for_all(box.high), box.dtype


def _moved(rows: Any, factor: Any, shift: Any, bounds: tuple[Any, Any], dtype: Any) -> Any:
    """Rows times a factor and moved, within bounds, in a type."""
    if not isinstance(rows, np.ndarray):
        factor, shift, low, high = tensors_of((factor, shift, *bounds), rows.device, np.result_type(dtype, np.float32))
        return (rows.to(factor.dtype) * factor + shift).clip(low, high)
    exact = np.result_type(rows.dtype, dtype, np.float32)
    out = np.multiply(rows, factor.astype(exact), dtype=exact)
    out += shift.astype(exact)
    out = out.astype(dtype, copy=False)
    return np.clip(out, *(np.asarray(bound, dtype) for bound in bounds), out=out)


def _no_limits(piece: str, expected: str, found: Any) -> ConfigError:
    do = f"pass limits such as {piece}(low=-1.0, high=1.0)"
    return ConfigError(piece, expected=expected, found=f"low={found.low}, high={found.high}", do=do)
