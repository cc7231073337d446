"""Adapters that run a piece of one library in a pipeline of the other; importing this module loads RLlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2 as RLlibConnectorV2
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from epibatch.connectors._engine.batch_items import key_for
from epibatch.connectors._engine.call import ADDED_LOSS_MASK, PipelineCall, running_call, within
from epibatch.connectors._engine.chunks import chunk_keys
from epibatch.connectors._engine.layouts import to_columns, to_plain
from epibatch.connectors._engine.run import no_batch
from epibatch.connectors.columnar_piece import is_columnar
from epibatch.connectors.common.batch_individual_items import RowMap
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from epibatch.core import ROW_MAP
from epibatch.core.errors import PieceOutputError, add_context
from epibatch.episodes.indexing import note_history, position_of, positions_of

from .batches import Key, rllib_key, sequences, to_epibatch_tags, to_rllib_tags, with_keys
from .changes import EpibatchChanges, RLlibChanges
from .episodes import check_epibatch_episodes, check_rllib_episodes, to_epibatch_episode, to_rllib_episode


class _Adapter:
    """What both adapters share: spaces and state are those of the piece inside."""

    piece: Any

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space of observations after the piece."""
        self._pass_spaces(input_observation_space, input_action_space)
        return self.piece.observation_space

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space of actions after the piece."""
        self._pass_spaces(input_observation_space, input_action_space)
        return self.piece.action_space

    def _pass_spaces(self, observations: Any, actions: Any) -> None:
        self.piece.input_action_space, self.piece.input_observation_space = actions, observations

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


@cache
def _named(cls: type, name: str) -> Any:
    """Return a class like `cls` with the name of the piece inside, as both libraries key states and timers by it."""
    return type(cls)(name, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__})


# ------------------------------------------------------------------------------ RLlib's piece in our pipeline


class RLlibPieceAdapter(_Adapter, ConnectorV2):
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
        check_epibatch_episodes(type(self.piece).__name__, episodes)
        call = running_call()
        keys = chunk_keys(episodes) if call is None else [key_for(episode) for episode in episodes]
        rllib_episodes = _converted_episodes(episodes, keys, numpy=call is None or call.training or call.by_hand)
        changes = [RLlibChanges(*pair) for pair in zip(episodes, rllib_episodes)]
        before = [rllib_key(episode) for episode in rllib_episodes]
        rllib_batch = with_keys(batch, keys, before, to_rllib_tags)
        shared = {} if shared_data is None else shared_data
        if isinstance(rows := shared.get(ROW_MAP), RowMap):
            shared[ROW_MAP] = list(rows)  # RLlib's pieces check that it is a list
        if not hasattr(self.piece, "connectors"):  # as RLlib's pipelines pass it on, for old pieces
            kwargs["data"] = rllib_batch
        out = self.piece(
            rl_module=rl_module,
            batch=rllib_batch,
            episodes=rllib_episodes,
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
            change.write_back(type(self.piece).__name__)
        after = [rllib_key(episode) for episode in rllib_episodes]
        result = _with_our_keys(dict(out), before, after, keys, [len(episode) for episode in rllib_episodes])
        for group in call.groups.values() if call is not None and not call.several else ():
            if group.rows is None:
                group.rows = sequences(result, keys, group.shared_data)
        return result

    def freeze(self) -> None:
        """Stop RLlib's filter from updating its statistics; RLlib's other pieces cannot be frozen."""
        if hasattr(self.piece, "_update_stats"):
            self.piece._update_stats = False

    def __reduce__(self) -> Any:
        spaces = (self.input_observation_space, self.input_action_space)
        return adapt_rllib_piece, (self.piece, self.rewrites_observations, self.lookback, *spaces)


def adapt_rllib_piece(piece: Any, rewrites_observations: bool, lookback: int, *spaces: Any) -> ConnectorV2:
    """Return an RLlibPieceAdapter with the name of the piece inside: `from_rllib_piece` without its checks."""
    cls = _named(RLlibPieceAdapter, type(piece).__name__)
    adapter: ConnectorV2 = cls(piece, rewrites_observations, lookback, *spaces)
    return adapter


def _converted_episodes(episodes: Sequence[Any], keys: Sequence[Key], *, numpy: bool) -> list[Any]:
    """Convert episodes to RLlib's, each under its name in this call."""
    converted = []
    for episode, key in zip(episodes, keys):
        theirs = to_rllib_episode(episode, numpy=numpy, buffer=WatchedBuffer)
        if len(key) == 1:
            theirs.id_ = key[0]
        columns = (theirs.observations, theirs.actions, theirs.rewards, theirs.infos)
        for buffer in (*columns, *theirs.extra_model_outputs.values()):
            buffer.t_started = theirs.t_started
        converted.append(theirs)
    return converted


def _with_our_keys(
    batch: dict[str, Any], before: list[Key], after: list[Key], keys: list[Key], lengths: list[int]
) -> dict[str, Any]:
    """Return a batch under our keys; some columns may have the names that the piece gave the episodes."""
    renamed = set(after) - set(before)
    new = {name: column for name, column in batch.items() if isinstance(column, dict) and renamed & column.keys()}
    old = {name: column for name, column in batch.items() if name not in new}
    out = {
        **with_keys(old, before, keys, to_epibatch_tags, lengths),
        **with_keys(new, after, keys, to_epibatch_tags, lengths),
    }
    return {name: out[name] for name in batch}


class WatchedBuffer(InfiniteLookbackBuffer):  # type: ignore[misc]
    """A column of an episode that one of RLlib's pieces gets in a pipeline of ours.

    The pipeline records every read into lookback, as for our own pieces, so that chunks are cut with as much lookback
    as the piece needs.

    Args:
        data: Its rows.
        lookback: Number of rows before the chunk's start.
        space: Their space.

    Attributes:
        t_started: The step of the whole episode at which the chunk starts.

    Examples:
        >>> from epibatch.episodes.indexing import HistoryWatch, watch_history
        >>> buffer = WatchedBuffer([1, 2, 3], lookback=2)
        >>> with watch_history(HistoryWatch()) as watch:
        ...     rows = buffer.get(slice(-2, None))
        >>> watch.depth
        1
    """

    t_started = 0

    def get(self, indices: Any = None, *, neg_index_as_lookback: bool = False, fill: Any = None, **kwargs: Any) -> Any:
        """Return rows, as RLlib's buffer does.

        Raises:
            LookbackError: rows of the episode that this chunk does not contain.
        """
        total = self.len_incl_lookback()
        first = self.lookback
        if isinstance(indices, (slice, list)):
            positions = positions_of(indices, self.lookback, total, neg_index_as_lookback, fill is not None)
            first = int(min(positions)) if len(positions) else first
        elif indices is not None:
            first = position_of(indices, self.lookback, total, neg_index_as_lookback)
        note_history(first, self.lookback, self.t_started)
        return super().get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill, **kwargs)


# ------------------------------------------------------------------------------ our piece in RLlib's pipeline


class EpibatchPieceAdapter(_Adapter, RLlibConnectorV2):  # type: ignore[misc]
    """Runs a piece of ours in a pipeline of RLlib's; `to_rllib_piece` makes it.

    Args:
        piece: Ours.
        pipeline: Its pipeline: "env_to_module", "module_to_env", "learner"; None: unknown.
        input_observation_space: Space of the observations that come in.
        input_action_space: Space of the actions that come in.

    Attributes:
        piece: Ours.
    """

    def __init__(
        self,
        piece: Any,
        pipeline: str | None = None,
        input_observation_space: Any = None,
        input_action_space: Any = None,
    ) -> None:
        self.piece = piece
        self._pipeline = pipeline
        super().__init__(input_observation_space, input_action_space)

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
        """Run the piece on the episodes and the batch converted to ours; convert the result back."""
        kwargs.pop("data", None)  # the batch a second time, which RLlib passes on for old pieces
        check_rllib_episodes(type(self.piece).__name__, episodes)
        shared = {} if shared_data is None else shared_data
        longer = bool(shared.get(ADDED_LOSS_MASK))  # by the bootstrap step, which is a real step in RLlib's episodes
        converted = [to_epibatch_episode(episode) for episode in episodes]
        changes = [EpibatchChanges(*pair) for pair in zip(episodes, converted)]
        call = PipelineCall(
            rl_module=rl_module,
            episodes=[to_epibatch_episode(item, steps=len(item) - 1) for item in episodes] if longer else converted,
            explore=explore,
            shared_data=shared,
            metrics=metrics,
            training=self._pipeline == "learner",
            by_hand=self._pipeline is None,
            plus_one=longer,
            kwargs=kwargs,
            batch=batch,
        )
        groups = list(call.groups.values())
        for group in groups if longer else ():
            group.add_bootstrap_step(converted)
        our_keys = groups[0].keys
        keys = [rllib_key(episode) for episode in episodes]
        our_batch = with_keys(batch, keys, our_keys, to_epibatch_tags, [len(episode) for episode in episodes])
        for group in groups:
            group.rows = sequences(our_batch, our_keys, shared)
        try:
            with within(call):
                out = self._run(our_batch, call)
        except Exception as error:
            add_context(error, f"in {type(self.piece).__name__} of epibatch, in a pipeline of RLlib's:")
            raise
        for change in changes:
            change.write_back()
        if isinstance(self.piece, AddOneTsToEpisodesAndTruncate):
            _add_bootstrap_steps(episodes)
        keys = [rllib_key(episode) for episode in episodes]
        self._write_row_map(shared, our_keys, keys)
        return with_keys(out, our_keys, keys, to_rllib_tags)

    def _run(self, batch: dict[str, Any], call: PipelineCall) -> dict[str, Any]:
        if is_columnar(self.piece):
            return to_plain(self.piece.run_all(to_columns(batch, call), call), call)
        call.piece = self.piece
        out = self.piece(
            rl_module=call.rl_module,
            batch=batch,
            episodes=call.plain_episodes(),
            explore=call.explore,
            shared_data=call.shared_data,
            metrics=call.metrics,
            **call.kwargs,
        )
        if not isinstance(out, Mapping):
            raise no_batch(self.piece, "__call__", out)
        return dict(out)

    @staticmethod
    def _write_row_map(shared_data: dict[str, Any], our_keys: list[Any], keys: list[Key]) -> None:
        """Write the row map of a batch in RLlib's form: a list with the ids of its episodes."""
        rows = shared_data.get(ROW_MAP)
        if isinstance(rows, RowMap):
            names = {old[0]: new[0] for old, new in zip(our_keys, keys)}
            shared_data[ROW_MAP] = [names[name] for name in rows]

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the constructor arguments of the piece."""
        return (self.piece, self._pipeline, self.input_observation_space, self.input_action_space), {}

    def __reduce__(self) -> Any:
        return adapt_epibatch_piece, self.get_ctor_args_and_kwargs()[0]


def adapt_epibatch_piece(piece: Any, pipeline: str | None, *spaces: Any) -> Any:
    """Return an EpibatchPieceAdapter with the name of the piece inside: `to_rllib_piece` without its checks."""
    return _named(EpibatchPieceAdapter, type(piece).__name__)(piece, pipeline, *spaces)


def _add_bootstrap_steps(episodes: Sequence[Any]) -> None:
    """Add the bootstrap step and a unique name to RLlib's episodes, as RLlib's later pieces need both."""
    from ray.rllib.utils.postprocessing.episodes import add_one_ts_to_episodes_and_truncate

    for i, episode in enumerate(episodes):
        episode.id_ += f"_{i}"
    add_one_ts_to_episodes_and_truncate(episodes)
