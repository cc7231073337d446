"""The rows that episodes of a `Policy` hold, as an immutable value: each step makes a new one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeError
from epibatch.core.structs import flatten

from ._storage.block import Block
from ._storage.chunk import Chunk
from .vector_checks import VectorChecks
from .vector_episodes import VectorEpisodes

Spaces = tuple["gym.Space[Any] | None", "gym.Space[Any] | None"]


class ActingHistory:
    """The running episodes of N environments, as much of each as pieces look back at.

    It is never changed once `commit` was called: `after` copies the rows that are kept and adds to the
    copy. So a caller may go on from an old one, and do so twice.

    Args:
        block: The rows.
        chunks: One per environment.

    Attributes:
        episodes: The episodes, for pipelines.

    Examples:
        >>> spaces = (gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2))
        >>> first = ActingHistory.start(np.zeros((2, 1)), spaces)
        >>> first.commit()
        >>> step = {"actions": np.zeros(2, int), "rewards": np.ones(2), "outputs": {}}
        >>> later = first.after(observations=np.ones((2, 1)), lookback=3, **step)
        >>> later.episodes[0].get_observations(slice(-2, None)).tolist(), len(first.episodes[0])
        ([[0.0], [1.0]], 0)
    """

    def __init__(self, block: Block, chunks: list[Chunk]) -> None:
        self._block = block
        self.episodes = VectorEpisodes(block, chunks, recording=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return ActingHistory, (self._block, list(self.episodes.chunks))

    @classmethod
    def start(cls, observations: Any, spaces: Spaces, infos: Any = None) -> ActingHistory:
        """New episodes.

        Args:
            observations: Arrays of shape [N, ...].
            spaces: Observation and action space of one environment.
            infos: A vector environment's infos, that is a dict of arrays, or one dict per environment.
        """
        block = Block(len(flatten(observations)[0][0]), 1)
        block.stage(observations)
        if infos:
            block.infos[block.row] = infos
        return cls(block, [Chunk(block, env, 0, 0, spaces) for env in range(block.num_envs)])

    def after(
        self,
        *,
        observations: Any,
        actions: Any,
        rewards: Any,
        outputs: dict[str, Any],
        lookback: int,
        starts: Any = None,
        infos: Any = None,
    ) -> ActingHistory:
        """The history one step later.

        Args:
            observations: The next observations: arrays of shape [N, ...].
            actions: The module's actions: arrays of shape [N, ...].
            rewards: Shape [N]; NaN where the caller gave none. A piece that reads it raises.
            outputs: Other outputs of the module: arrays of shape [N, ...] per key.
            lookback: Earlier steps to keep.
            starts: bool, [N]: True if the observation is the first of a new episode. The row's action and reward
                then belong to no episode.
            infos: As in `start`.

        Raises:
            ColumnError: a column without one row per environment, or nested otherwise than before.
            EpisodeError: other outputs than in the step before.
        """
        checks = VectorChecks(self._block.num_envs)
        for name, value in (("obs", observations), ("actions", actions), ("rewards", rewards), *outputs.items()):
            checks.check_rows(name, value)
        block = self._block.successor(lookback, 2)
        block.unknown_rewards = True
        block.returns_before = self.episodes.running_returns()
        chunks = [chunk.next_chunk(block, lookback) for chunk in self.episodes.chunks]
        block.actions.put(lookback, actions)
        block.rewards.put(lookback, rewards)
        self._put_outputs(block, lookback, outputs)
        block.row = lookback + 1
        block.stage(observations)
        if infos:
            block.infos[block.row] = infos
        for env in () if starts is None else np.flatnonzero(starts).tolist():
            chunks[env] = Chunk(block, env, block.row, block.row, chunks[env].spaces)
        return ActingHistory(block, chunks)

    def _put_outputs(self, block: Block, row: int, outputs: dict[str, Any]) -> None:
        if not self._block.rewards.leaves:
            block.extras = {key: block.new_column() for key in outputs}
        if block.extras.keys() != outputs.keys():
            raise EpisodeError(
                "outputs of the module",
                expected=f"those of the step before: {sorted(block.extras)}",
                found=str(sorted(outputs)),
                do="act with the same `explore` from the beginning of an episode to its end, or let the module "
                "return the same columns either way",
            )
        for key, value in outputs.items():
            block.extras[key].put(row, value)

    def commit(self) -> None:
        """Make the newest observations final, as pieces left them."""
        self._block.commit()
