"""Reading and writing an episode's columns by timestep."""

from __future__ import annotations

from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchError, UnknownNameError, add_context, nearest

from .._storage.arrays import shielded
from .._storage.indexing import WATCH, Indices, check_newest
from ..infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["EpisodeGetters"]


class EpisodeGetters:
    """Getters and setters over an episode's buffers.

    Every getter takes an int (one row), a slice or a list of ints (stacked rows), or None (all rows
    after the lookback). Non-negative indices count from the chunk's start, negative ones from the
    end, or from the chunk's start backwards with `neg_index_as_lookback`. With `fill`, rows that do
    not exist are filled with that value; without it ints raise and slices are shortened.

    Rows of numbers that are not filled are views. Writing to them writes to the episode, as code for RLlib's episodes
    does it: after `rewards = episode.get_rewards()`, `rewards -= rewards.mean()` changes the episode, and
    `rewards = rewards - rewards.mean()` does not.
    """

    observations: InfiniteLookbackBuffer
    actions: InfiniteLookbackBuffer
    rewards: InfiniteLookbackBuffer
    infos: Any
    extra_model_outputs: dict[str, InfiniteLookbackBuffer]
    id_: str

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Observations; row 0 is the chunk's first, and there is one more than steps.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place.
        """
        return self.observations.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Info dicts, one per observation; several come as a list."""
        return self.infos.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Actions, as the module gave them.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place.
        """
        return self.actions.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Rewards.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place. For pieces
        of acting pipelines they are read-only, as `set_rewards` says.
        """
        rows = self.rewards.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)
        watch = WATCH.get()
        return shielded(rows) if watch is not None and watch.acting else rows

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Rows of one of the module's other outputs.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place.
        """
        return self._extra(key).get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations; None addresses all rows after the lookback."""
        self._set(self.observations, "obs", new_data, at_indices, neg_index_as_lookback)

    def set_infos(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite info dicts."""
        self._set(self.infos, "infos", new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite actions."""
        self._set(self.actions, "actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite rewards.

        Raises:
            EpisodeStateError: a piece of an acting pipeline addresses more than the newest step. Such a piece sees
                the same episode again after every step, so that a change would pile up.
        """
        self._set(self.rewards, "rewards", new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite rows of one of the module's other outputs; the key must exist."""
        self._set(self._extra(key), key, new_data, at_indices, neg_index_as_lookback)

    def _set(self, buffer: Any, name: str, new_data: Any, at_indices: Indices, neg_index_as_lookback: bool) -> None:
        try:
            watch = WATCH.get()
            if watch is not None and watch.acting and name == Columns.REWARDS:
                check_newest(at_indices, buffer.lookback, buffer.len_incl_lookback(), neg_index_as_lookback)
            buffer.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)
        except EpibatchError as error:
            add_context(error, f"episode {self.id_!r}, column {name!r}:")
            raise

    def _extra(self, key: str) -> InfiniteLookbackBuffer:
        if key not in self.extra_model_outputs:
            raise UnknownNameError(
                f"episode {self.id_}",
                expected="the key of an extra model output",
                found=repr(key),
                do=nearest(key, self.extra_model_outputs),
            )
        return self.extra_model_outputs[key]
