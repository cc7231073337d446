"""Pieces as users write them, which declare nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.connectors import ConnectorV2


class LeaveAlone(ConnectorV2):
    """Does nothing."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch


class RaiseRewardsInPlace(ConnectorV2):
    """Adds 2 to what the getter of rewards gives."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rewards = episode.get_rewards()
            if len(rewards):
                rewards += 2
        return batch


class SetRewards(ConnectorV2):
    """Writes every second reward again, with a fraction."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            for t in range(0, len(episode), 2):
                episode.set_rewards(new_data=float(episode.get_rewards(t)) * 0.5 + 0.125, at_indices=t)
        return batch


class AddRowNumbers(ConnectorV2):
    """Adds a column with one number per row that `obs` has, through the static helpers."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            numbers = [np.int32(100 * episode.t_started + t) for t in range(len(episode))]
            if numbers:
                self.add_n_batch_items(batch, "row", numbers, len(numbers), episode)
        return batch


class DoubleRewardItems(ConnectorV2):
    """Doubles the rewards in the batch, item by item."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self.foreach_batch_item_change_in_place(
            batch, "rewards", lambda item, *_: (item[0] if isinstance(item, tuple) else item) * 2
        )
        return batch


class TagArrays(ConnectorV2):
    """Adds a column beside `obs` after the batch was made of arrays."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        for columns in [batch] if "rewards" in batch else batch.values():
            if "rewards" in columns:
                columns["tag"] = columns["rewards"] * 4
        return batch
