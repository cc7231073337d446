"""Changes the newest observation of each episode by a method of one's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, PipelineError, SpaceError, explain
from epibatch.core.space_checks import check_row

from ..agent_parts import entry_of
from ..connector_v2 import ConnectorV2

__all__ = ["ObservationPreprocessor", "SingleAgentObservationPreprocessor"]


class SingleAgentObservationPreprocessor(ConnectorV2):
    """A base for pieces that turn the newest observation of an episode into another one.

    Subclasses write `preprocess`, and `recompute_output_observation_space` if what comes out is of another space.
    What it returns is written back into the episode, so that the learner sees what the module saw. It is called
    once per episode and step; where that takes too long, `MeanStdFilter` and its like take all episodes at once.

    Example:
        >>> import numpy as np
        >>> class PositionsOnly(SingleAgentObservationPreprocessor):
        ...     def recompute_output_observation_space(self, input_observation_space, input_action_space):
        ...         return gym.spaces.Box(-5.0, 5.0, (2,), np.float32)
        ...
        ...     def preprocess(self, observation, episode):
        ...         return observation[[0, 2]]
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[np.float32([1.0, 2.0, 3.0, 4.0])])
        >>> _ = PositionsOnly(gym.spaces.Box(-9, 9, (4,)))(rl_module=None, batch={}, episodes=[episode])
        >>> episode.get_observations(-1)
        array([1., 3.], dtype=float32)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    rewrites_observations = True
    space_by_space: ClassVar[bool] = True

    @abstractmethod
    def preprocess(self, observation: Any, episode: Any) -> Any:
        """What an observation becomes.

        Args:
            observation: the newest observation, one row, nested as its space is.
            episode: the `SingleAgentEpisode` that it belongs to; what came before can be read from it.

        Returns:
            One row of the output observation space.
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
        """Rewrite the newest observation of each episode; the batch stays as it is.

        Raises:
            PipelineError: a piece in front has put observations into the batch already.
            ColumnError: `preprocess` returned None.
            SpaceError: it returned a row of another nesting, shape or kind than the output space has.
        """
        if Columns.OBS in batch:
            raise self._too_late()
        spaces = self.observation_space
        for episode in self.single_agent_episode_iterator(episodes):
            space = (
                spaces if episode.agent_id is None else entry_of(self, "observation space", spaces, episode.agent_id)
            )
            row = self.preprocess(observation=episode.get_observations(-1), episode=episode)
            self._check(row, space)
            episode.set_observations(new_data=row, at_indices=-1)
            if space is not None:
                episode.observation_space = space
        return batch

    def _check(self, row: Any, space: gym.Space[Any] | None) -> None:
        where = f"{type(self).__name__}.preprocess"
        if row is None:
            do = "end preprocess with `return observation`"
            raise ColumnError(explain(where, expected="the new observation, returned", found="None", do=do))
        if space is None:
            return
        try:
            check_row(space, row, where)
        except SpaceError as error:
            facts = str(error).rpartition("\n")[0]
            do = f"let {type(self).__name__}.recompute_output_observation_space return the space of what comes out"
            raise SpaceError(f"{facts}\n  do:       {do}") from None

    def _too_late(self) -> PipelineError:
        return PipelineError(
            explain(
                type(self).__name__,
                expected="a batch without observations, which are to be taken after they are rewritten",
                found=f"a column {Columns.OBS!r}, written by a piece in front",
                do=f"move {type(self).__name__} in front of that piece",
            )
        )


ObservationPreprocessor = SingleAgentObservationPreprocessor
