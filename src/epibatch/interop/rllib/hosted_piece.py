"""Adapter that runs one of our pieces as a piece of RLlib's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2

from epibatch.connectors._engine.call import ADDED_LOSS_MASK, PipelineCall, within
from epibatch.connectors._engine.layouts import to_columns, to_plain
from epibatch.connectors._engine.run import no_batch
from epibatch.connectors.columnar_piece import is_columnar
from epibatch.connectors.common.batch_individual_items import RowMap
from epibatch.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from epibatch.core.errors import add_context

from .batches import ROW_MAP, Key, key_of_theirs, rekeyed, retag_as_ours, retag_as_theirs, sequences
from .changes import OurChanges
from .episodes import check_theirs, episode_like_ours
from .guest_piece import named

__all__ = ["HostedPiece", "hosted"]


class HostedPiece(ConnectorV2):  # type: ignore[misc]
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
        self._training = None if pipeline is None else pipeline == "learner"
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
        check_theirs(type(self.piece).__name__, episodes)
        shared = {} if shared_data is None else shared_data
        longer = bool(shared.get(ADDED_LOSS_MASK))  # by the bootstrap step, which is a real step in RLlib's episodes
        shown = [episode_like_ours(episode) for episode in episodes]
        changes = [OurChanges(*pair) for pair in zip(episodes, shown)]
        call = PipelineCall(
            rl_module=rl_module,
            episodes=[episode_like_ours(one, steps=len(one) - 1) for one in episodes] if longer else shown,
            explore=explore,
            shared_data=shared,
            metrics=metrics,
            training=self._training,
            plus_one=longer,
            kwargs=kwargs,
            batch=batch,
        )
        groups = list(call.groups.values())
        for group in groups if longer else ():
            group.lengthen(shown)
        ours = groups[0].keys
        keys = [key_of_theirs(episode) for episode in episodes]
        given = rekeyed(batch, keys, ours, retag_as_ours, [len(episode) for episode in episodes])
        for group in groups:
            group.rows = sequences(given, ours, shared)
        try:
            with within(call):
                out = self._run(given, call)
        except Exception as error:
            add_context(error, f"in {type(self.piece).__name__} of epibatch, in a pipeline of RLlib's:")
            raise
        for change in changes:
            change.carry_back()
        if isinstance(self.piece, AddOneTsToEpisodesAndTruncate):
            _lengthen(episodes)
        keys = [key_of_theirs(episode) for episode in episodes]
        self._spell_row_map(shared, ours, keys)
        return rekeyed(out, ours, keys, retag_as_theirs)

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
    def _spell_row_map(shared_data: dict[str, Any], ours: list[Any], keys: list[Key]) -> None:
        """Write the row map of a batch in RLlib's form: a list with the ids of its episodes."""
        rows = shared_data.get(ROW_MAP)
        if isinstance(rows, RowMap):
            names = {own[0]: theirs[0] for own, theirs in zip(ours, keys)}
            shared_data[ROW_MAP] = [names[name] for name in rows]

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

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the constructor arguments of the piece."""
        return (self.piece, self._pipeline, self.input_observation_space, self.input_action_space), {}

    def __reduce__(self) -> Any:
        return hosted, self.get_ctor_args_and_kwargs()[0]


def hosted(piece: Any, pipeline: str | None, *spaces: Any) -> Any:
    """Return a HostedPiece with the name of the piece inside: `to_rllib_piece` without its checks."""
    return named(HostedPiece, type(piece).__name__)(piece, pipeline, *spaces)


def _lengthen(episodes: Sequence[Any]) -> None:
    """Add the bootstrap step and a unique name to RLlib's episodes, as RLlib's later pieces need both."""
    from ray.rllib.utils.postprocessing.episodes import add_one_ts_to_episodes_and_truncate

    for i, episode in enumerate(episodes):
        episode.id_ += f"_{i}"
    add_one_ts_to_episodes_and_truncate(episodes)
