"""Lets a module choose among bins of continuous actions."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.restoring import restore_generator

from .box_actions import BoxActionTransform, is_continuous, numbers_for, one_for_all

_MOST_CHOICES = 2**20
_WITHIN = {"edge": 0.0, "low": 0.0, "midpoint": 0.5, "high": 1.0}


class DiscretizeActions(BoxActionTransform):
    """Cuts each entry of continuous actions into bins for the module to choose from.

    The module acts in a Discrete space where the Box has one entry or `flat` is set, else in a MultiDiscrete space of
    the Box's shape. The environment is given a number of the chosen bin. Episodes store the choices. Put it into
    the env-to-module pipeline; configs add its inverse. In the learner pipeline it makes bins of continuous actions
    that were recorded elsewhere. Parts of nested actions that are no float Boxes stay as they are. After the
    discretisation of Tang & Agrawal (2020), "Discretizing continuous action space for on-policy optimization".

    Counterparts: TorchRL's `ActionDiscretizer`.

    Args:
        bins: Number of bins of each entry; or a list of numbers, one for each entry of the Box in C order.
        value: The number of a bin that the environment gets: "midpoint", "low" or "high"; "edge" (the bins are points,
            and the outermost two are the bounds); or "random", drawn uniformly from the bin each time.
        flat: Whether the module makes one choice, among all combinations of bins; the last entry goes round fastest.
        columns: The actions, or some parts of them, as `actions/steer`.

    Raises:
        ConfigError: a number of bins below 1 (2 for "edge"), or not one for each entry.
        SpaceError: no float Box, one without bounds, or more combinations than 2 to the 20th.

    Examples:
        >>> piece = DiscretizeActions(input_action_space=gym.spaces.Box(-2.0, 2.0, (1,)), bins=5, value="edge")
        >>> piece.action_space
        Discrete(5)
        >>> piece.changed(piece.paths[0], np.array([0, 3, 4]), piece.inverse)
        array([[-2.],
               [ 1.],
               [ 2.]])
    """

    bins: int | list[int] = 11
    value: Literal["midpoint", "low", "high", "edge", "random"] = "midpoint"
    flat: bool = False
    columns: Any = "actions"

    def __post_init__(self) -> None:
        """Check the numbers of bins."""
        least = 2 if self.value == "edge" else 1
        counts = self.bins if isinstance(self.bins, (list, tuple, np.ndarray)) else [self.bins]
        if not len(counts) or not all(_is_count(count) and count >= least for count in counts):
            raise ConfigError(
                "DiscretizeActions.bins",
                expected=f"a whole number of at least {least}, or a list of them, one for each entry",
                found=repr(self.bins),
                do="pass bins=11, or bins=[5, 11] for two entries",
            )
        self._rng = np.random.default_rng()

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    # -- spaces --------------------------------------------------------------------------------

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The choices that stand for a Box; other spaces stay."""
        if not is_continuous(space):
            return space
        counts = self._counts(space)
        if self.flat or counts.size == 1:
            total = int(np.prod(counts.astype(np.float64)))
            if total > _MOST_CHOICES:
                raise SpaceError(
                    "DiscretizeActions(flat=True)",
                    expected=f"at most {_MOST_CHOICES} combinations of bins",
                    found=f"{' x '.join(map(str, counts))} of {space}",
                    do="leave flat out, so that each entry is a choice of its own; or take fewer bins",
                )
            return gym.spaces.Discrete(total)
        return gym.spaces.MultiDiscrete(counts.reshape(space.shape))

    def _counts(self, box: Any) -> Any:
        """Bins of each entry of a Box, int64 [entries]."""
        if not box.is_bounded():
            raise SpaceError(
                "DiscretizeActions",
                expected="a Box with two bounds for each entry, between which the bins lie",
                found=str(box),
                do="bound the actions: put ClipActions(low=-1.0, high=1.0) before it",
            )
        size = int(np.prod(box.shape))
        if isinstance(self.bins, int):
            return np.full(size, self.bins, np.int64)
        if len(self.bins) != size:
            raise ConfigError(
                "DiscretizeActions.bins",
                expected=f"{size} numbers, one for each entry of {box}",
                found=f"{len(self.bins)}: {self.bins}",
                do="give every entry its number, or one number for all",
            )
        return np.array(self.bins, np.int64)

    # -- rows ----------------------------------------------------------------------------------

    def transform(self, x: Any) -> Any:
        """Return the bins of actions.

        Args:
            x: Actions of a Box, [rows, ...].

        Raises:
            ColumnError: there is NaN among them, which is in no bin.
        """
        bins = numbers_for(self, self._bins)
        if bins is None:
            return x
        counts, low, width, _, shape = bins
        places = x.reshape(len(x), -1).astype(np.float64)
        places -= low
        places *= 1 / width
        if self.value == "edge":
            np.rint(places, out=places)
        np.clip(places, 0.0, one_for_all(counts) - 1.0, out=places)
        if np.isnan(places.sum()):
            row = int(np.flatnonzero(np.isnan(x.reshape(len(x), -1)).any(1))[0])
            raise ColumnError(
                "DiscretizeActions",
                expected="numbers, each of which lies in a bin",
                found=f"NaN in row {row}: {x[row].tolist()}",
                do="leave the steps out whose actions are not known, or write a number there with an earlier piece",
            )
        choices = places.astype(np.int64)  # which rounds down
        if self.flat or counts.size == 1:
            return np.ravel_multi_index(tuple(choices.T), tuple(counts))
        return choices.reshape(len(x), *shape)

    def inverse(self, y: Any) -> Any:
        """A number of each chosen bin.

        Args:
            y: Choices, [rows] or [rows, ...].
        """
        bins = numbers_for(self, self._bins)
        if bins is None:
            return y
        counts, low, width, high, shape = bins
        if self.flat or counts.size == 1:
            choices = np.stack(np.unravel_index(y, tuple(counts)), -1)
        else:
            choices = y.reshape(len(y), -1)
        places: Any = choices.astype(np.float64)
        places += self._rng.random(places.shape) if self.value == "random" else _WITHIN[self.value]
        places *= width
        places += low
        return np.clip(places, low, high, out=places).reshape(len(y), *shape)

    def _bins(self, box: Any) -> tuple[Any, ...]:
        """Numbers of bins, where the first ones begin, how wide they are (of "edge": how far apart), where they end,
        and the shape of an action.
        """
        counts = self._counts(box)
        low, high = box.low.ravel().astype(np.float64), box.high.ravel().astype(np.float64)
        width = (high - low) / (counts - (self.value == "edge"))
        width = np.where(width > 0, width, 1.0)  # an entry with one value alone
        return counts, one_for_all(low), one_for_all(width), one_for_all(high), box.shape

    # -- state ---------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The state of the random stream, if numbers are drawn."""
        return {"generator": self._rng.bit_generator.state} if self.value == "random" else {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a random stream."""
        if "generator" in state:
            restore_generator("DiscretizeActions.set_state", self._rng, state["generator"])


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
