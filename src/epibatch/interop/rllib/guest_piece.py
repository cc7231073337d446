"""Adapter that runs one of RLlib's pieces as a piece of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from epibatch.connectors._engine.batch_items import key_for
from epibatch.connectors._engine.call import running_call
from epibatch.connectors._engine.chunks import chunk_keys
from epibatch.connectors.common.batch_individual_items import RowMap
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.core.errors import PieceOutputError

from .batches import ROW_MAP, Key, key_of_theirs, rekeyed, retag_as_ours, retag_as_theirs, sequences
from .changes import TheirChanges
from .episodes import check_ours, episode_like_theirs

__all__ = ["GuestPiece", "guest", "named"]


class GuestPiece(ConnectorV2):
    """Runs a piece of RLlib's in a pipeline of ours; `from_rllib_piece` makes it.

    Args:
        piece: RLlib's.
        rewrites_observations: True if it replaces the episodes' newest observations.
        lookback: Least number of steps that it reads before a chunk's start; recorded reads count too.
        input_observation_space: Space of the observations that come in.
        input_action_space: Space of the actions that come in.

    Attributes:
        piece: RLlib's.
    """

    def __init__(
        self,
        piece: Any,
        rewrites_observations: bool = False,
        lookback: int = 0,
        input_observation_space: Any = None,
        input_action_space: Any = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.piece = piece
        self.rewrites_observations = rewrites_observations
        self.lookback = lookback

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run the piece on the episodes and the batch converted to RLlib's; convert the result back."""
        check_ours(type(self.piece).__name__, episodes)
        call = running_call()
        keys = chunk_keys(episodes) if call is None else [key_for(episode) for episode in episodes]
        shown = _shown(episodes, keys, numpy=call is None or call.training is not False)
        changes = [TheirChanges(*pair) for pair in zip(episodes, shown)]
        before = [key_of_theirs(episode) for episode in shown]
        given = rekeyed(batch, keys, before, retag_as_theirs)
        shared = {} if shared_data is None else shared_data
        if isinstance(rows := shared.get(ROW_MAP), RowMap):
            shared[ROW_MAP] = list(rows)  # RLlib's pieces check that it is a list
        if not hasattr(self.piece, "connectors"):  # as RLlib's pipelines pass it on, for old pieces
            kwargs["data"] = given
        out = self.piece(
            rl_module=rl_module,
            batch=given,
            episodes=shown,
            explore=explore,
            shared_data=shared,
            metrics=metrics,
            **kwargs,
        )
        if not isinstance(out, Mapping):
            raise PieceOutputError(
                f"{type(self.piece).__name__}.__call__, of RLlib's",
                expected="the batch dict, returned",
                found=f"{type(out).__name__}: {out!r}",
                do="end __call__ with `return batch`",
            )
        for change in changes:
            change.carry_back(type(self.piece).__name__)
        after = [key_of_theirs(episode) for episode in shown]
        made = _as_ours(dict(out), before, after, keys, [len(episode) for episode in shown])
        for group in call.groups.values() if call is not None and not call.several else ():
            if group.rows is None:
                group.rows = sequences(made, keys, group.shared_data)
        return made

    # -- spaces and state ----------------------------------------------------------------------

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space of observations after the piece."""
        self._show_spaces(input_observation_space, input_action_space)
        return self.piece.observation_space

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space of actions after the piece."""
        self._show_spaces(input_observation_space, input_action_space)
        return self.piece.action_space

    def _show_spaces(self, observations: Any, actions: Any) -> None:
        self.piece.input_action_space = actions
        self.piece.input_observation_space = observations

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the piece's state."""
        state: dict[str, Any] = self.piece.get_state(components, not_components=not_components, **kwargs)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the piece's state."""
        self.piece.set_state(state)

    def reset_state(self) -> None:
        """Reset the piece's state."""
        self.piece.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the states of several copies into one."""
        merged: dict[str, Any] = self.piece.merge_states(states)
        return merged

    def freeze(self) -> None:
        """Stop RLlib's filter from updating its statistics; RLlib's other pieces cannot be frozen."""
        if hasattr(self.piece, "_update_stats"):
            self.piece._update_stats = False

    def __reduce__(self) -> Any:
        spaces = (self.input_observation_space, self.input_action_space)
        return guest, (self.piece, self.rewrites_observations, self.lookback, *spaces)


def guest(piece: Any, rewrites_observations: bool, lookback: int, *spaces: Any) -> ConnectorV2:
    """Return a GuestPiece with the name of the piece inside: `from_rllib_piece` without its checks."""
    made: ConnectorV2 = named(GuestPiece, type(piece).__name__)(piece, rewrites_observations, lookback, *spaces)
    return made


@cache
def named(cls: type, name: str) -> Any:
    """Return a class like `cls` with the name of the piece inside, as both libraries key states and timers by it."""
    return type(cls)(name, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__})


def _shown(episodes: Sequence[Any], keys: Sequence[Key], *, numpy: bool) -> list[Any]:
    """Convert episodes to RLlib's, each under its name in this call."""
    from .watched_buffer import WatchedBuffer

    shown = []
    for episode, key in zip(episodes, keys):
        theirs = episode_like_theirs(episode, numpy=numpy, buffer=WatchedBuffer)
        if len(key) == 1:
            theirs.id_ = key[0]
        columns = (theirs.observations, theirs.actions, theirs.rewards, theirs.infos)
        for buffer in (*columns, *theirs.extra_model_outputs.values()):
            buffer.t_started = theirs.t_started
        shown.append(theirs)
    return shown


def _as_ours(
    batch: dict[str, Any], before: list[Key], after: list[Key], keys: list[Key], lengths: list[int]
) -> dict[str, Any]:
    """Return a batch under our keys; some columns may have the names that the piece gave the episodes."""
    renamed = set(after) - set(before)
    new = {name: column for name, column in batch.items() if isinstance(column, dict) and renamed & column.keys()}
    old = {name: column for name, column in batch.items() if name not in new}
    out = {**rekeyed(old, before, keys, retag_as_ours, lengths), **rekeyed(new, after, keys, retag_as_ours, lengths)}
    return {name: out[name] for name in batch}
