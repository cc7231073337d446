"""The base class of episodes of one agent and of several agents."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from epibatch.core.errors import EpisodeStateError, NotAvailableError

from ..arrays import make_writable

AnyEpisode = TypeVar("AnyEpisode", bound="Episode")


class Episode:  # no ABC: isinstance would take longer
    """An episode, or a chunk of one, that steps are added to.

    Attributes:
        id_: Name of the episode; chunks of one episode share it.
        is_terminated: True if the environment ended the episode by itself.
        is_truncated: True if the episode was cut off by a limit.
    """

    id_: str
    is_terminated: bool
    is_truncated: bool
    _custom_data: dict[str, Any]
    _start_time: float | None
    _last_step_time: float | None

    @abstractmethod
    def __len__(self) -> int:
        """Number of env steps in this chunk, lookback excluded."""

    @abstractmethod
    def slice(self: AnyEpisode, slice_: slice) -> AnyEpisode:
        """Copy a range of steps into a chunk of its own."""

    def env_steps(self) -> int:
        """Number of env steps in this chunk, lookback excluded."""
        return len(self)

    @property
    def is_done(self) -> bool:
        """True if the episode ended, by termination or truncation."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Always True: columns are arrays from their first row on."""
        return True

    @property
    def custom_data(self) -> dict[str, Any]:
        """Anything a user wants to keep with the episode."""
        return self._custom_data

    def to_numpy(self: AnyEpisode) -> AnyEpisode:
        """Return the episode itself: its columns are arrays already."""
        return self

    def get_duration_s(self) -> float:
        """Seconds between the reset and the newest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def __getitem__(self: AnyEpisode, item: Any) -> AnyEpisode:
        if not isinstance(item, slice):
            raise NotAvailableError(
                f"episode {self.id_}[...]",
                expected="a slice",
                found=repr(item),
                do="use episode[i:i+1], or a getter such as get_rewards(i)",
            )
        return self.slice(item)

    def _not_cuttable(self, now: str) -> EpisodeStateError:
        """Return the error of a cut of an episode that does not run, and is at step `now`."""
        return EpisodeStateError(
            f"episode {self.id_}, cut",
            expected="a running episode",
            found=f"one that ended at {now}" if self.is_done else "one that was not reset",
            do="cut only episodes that go on",
        )

    def __setstate__(self, state: Any) -> None:
        # One by one: attributes that are set as a whole dict are spread over memory, which slows the reading of many
        # episodes.
        attributes, slots = state if isinstance(state, tuple) else (state, None)  # slots: of a subclass
        for values in (attributes, slots):
            for name, value in (values or {}).items():
                setattr(self, name, value)
        if self._custom_data:
            make_writable(self._custom_data)
