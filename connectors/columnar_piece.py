"""Pieces that work on whole columns instead of items."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.errors import ColumnError, explain, nearest

from .call import ADDED_LOSS_MASK, Call, within
from .connector_v2 import ConnectorV2
from .layouts import is_plain, to_columns, to_plain

__all__ = ["ColumnarPiece"]


class ColumnarPiece(ConnectorV2):
    """A piece that takes and gives `EpisodeColumn`s, and may be handed a `VectorEpisodes`.

    Subclasses write `run`. Called directly, outside a pipeline, such a piece takes and gives the
    plain layouts like any other.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
    """

    columnar: ClassVar[bool] = True

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)  # and no other keywords

    @abstractmethod
    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Change the batch.

        Args:
            batch: Columns; per-episode ones are `EpisodeColumn`s.
            call: The episodes and everything else the call is about.
        """

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run the piece by itself, on plain layouts."""
        call = Call(
            rl_module=rl_module,
            episodes=episodes,
            explore=explore,
            shared_data=shared_data,
            metrics=metrics,
            plus_one=bool(shared_data and shared_data.get(ADDED_LOSS_MASK)),
            kwargs=kwargs,
        )
        if not len(episodes):
            call.take_keys(filter(is_plain, batch.values()))
        with within(call):
            return to_plain(self.run(to_columns(batch, call), call), call)

    def need(self, batch: dict[str, Any], name: str, do: str) -> Any:
        """The column `name` of the batch.

        Raises:
            ColumnError: the batch has none.
        """
        if name not in batch:
            raise ColumnError(
                explain(
                    type(self).__name__,
                    expected=f"a column {name!r}",
                    found=f"columns {sorted(map(str, batch))}",
                    do=do or nearest(name, map(str, batch)),
                )
            )
        return batch[name]
