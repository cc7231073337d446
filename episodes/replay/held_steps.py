"""Steps of episodes that are held in a store, and what a draw asks about them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..store import Flags, Ints, Store


class Name(NamedTuple):
    """The names of an episode.

    Args:
        id_: Its id.
        agent_id: Its agent, if it is that of one of several.
        multi_agent_episode_id: The id of the episode of all of them.
    """

    id_: str
    agent_id: Any = None
    multi_agent_episode_id: Any = None


class Life(NamedTuple):
    """Places and ends of the episodes that rows belong to.

    Args:
        first: The place of the oldest row that is held of it.
        last: The place of its newest observation.
        terminated: True if it was terminated there.
        truncated: True if it was truncated there.
        t: The step of it that each row is.
    """

    first: Ints
    last: Ints
    terminated: Flags
    truncated: Flags
    t: Ints


class HeldSteps(Store, Protocol):
    """A store of steps that can be drawn: rows of episodes, those of each at consecutive places.

    The last row of an episode has an observation only, so it is no step. Nor are rows that are held for the history of
    later ones.

    Attributes:
        num_steps: Rows that are steps.
        num_steps_added: Steps that were ever added, those that are not held any more included.
        num_rows: Rows that are held.
        device: Where their columns are, if they are tensors; None: they are arrays.
    """

    @property
    def num_steps(self) -> int: ...
    @property
    def num_steps_added(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def device(self) -> Any: ...

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of the arrays at some places: int64 [R]."""

    def places(self, numbers: Ints) -> Ints:
        """Return the places of rows by their number, from 0 to `num_rows` - 1: int64 [R]."""

    def newest(self, most: int | None = None) -> Ints:
        """Return places, the newest so many among them, of each stream of steps in order; None: all; int64."""

    def numbers_of(self, places: Ints) -> Ints:
        """Return the number of the step at each place among all that were ever added, -1 for no step: int64 [R]."""

    def lives_of(self, places: Ints) -> Life:
        """Return what is known about the episode at each place."""

    def names_of(self, places: Ints) -> list[Name]:
        """Return the names of the episode at each place."""
