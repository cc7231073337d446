"""Turns nested observations into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, SpaceError, UnknownNameError, nearest

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import gather
from .._engine.observation_rewriter import ObservationRewriter
from .flat_rows import FlatRows

if TYPE_CHECKING:
    from .._engine.call import PipelineCall
    from .._engine.columns import Batch

__all__ = ["FlattenObservations"]


class FlattenObservations(ObservationRewriter):
    """Joins all parts of an observation into one float32 vector.

    Dict entries go by sorted key; Discrete and MultiDiscrete parts become one-hots, Boxes and MultiBinary are
    flattened. For acting it writes the newest observations back into the episodes, so that the learner sees
    vectors too. As a learner piece, for episodes whose observations are not flat (recorded elsewhere, say), it
    adds column `obs` and leaves the episodes alone. The default networks take nested observations as they are.

    Counterparts: RLlib's `FlattenObservations`, TorchRL's `FlattenObservation`, `CatTensors`.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        multi_agent: Whether the spaces are Dicts of several agents' spaces; a pipeline with AgentToModuleMapping knows.
        as_learner_connector: Whether the batch is for training.
        keys_to_remove: Entries of a Dict observation that are left out.
        agent_ids: Of several agents those whose observations are flattened; default: all.

    Raises:
        ConfigError: `keys_to_remove` is no list of keys, or `agent_ids` on the learner side.
        SpaceError: no observation space, a part that has no fixed number of entries, observations that do not
            match the space, or keys to remove from something other than a Dict.
        UnknownNameError: a key that the Dict does not have.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> space = gym.spaces.Dict(b=gym.spaces.Discrete(3), a=gym.spaces.Box(-1, 1, (2,)))
        >>> episode = SingleAgentEpisode(observations=[{"a": np.array([0.5, -1.0]), "b": 2}])
        >>> batch = FlattenObservations(space)(batch={}, episodes=[episode])
        >>> episode.get_observations(-1)
        array([ 0.5, -1. ,  0. ,  0. ,  1. ], dtype=float32)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        multi_agent: bool = False,
        as_learner_connector: bool = False,
        keys_to_remove: Sequence[Any] | None = None,
        agent_ids: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        if keys_to_remove is not None and not isinstance(keys_to_remove, (list, tuple)):
            raise ConfigError(
                "FlattenObservations.keys_to_remove",
                expected="a list of keys",
                found=repr(keys_to_remove),
                do=f"pass [{keys_to_remove!r}]",
            )
        if agent_ids is not None and as_learner_connector:
            raise ConfigError(
                "FlattenObservations.agent_ids",
                expected="the acting side, which writes vectors into the episodes",
                found="as_learner_connector=True",
                do="leave the learner's piece out: it finds the vectors there",
            )
        self._keys_to_remove = list(keys_to_remove or ())
        self._agent_ids = None if agent_ids is None else list(agent_ids)
        self._as_learner_connector = as_learner_connector
        if as_learner_connector:
            self.rewrites_observations = False
            self.writes = (Columns.OBS,)  # type: ignore[misc]
            self.replaces = (Columns.OBS,)
        self._rows: tuple[Any, FlatRows] | None = None

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """A Box without bounds, with one entry per number of the vector."""
        if self._left_alone:
            return input_observation_space
        return gym.spaces.Box(-np.inf, np.inf, (FlatRows(self._kept(input_observation_space)).size,), np.float32)

    @property
    def _left_alone(self) -> bool:
        """Whether this is the copy for an agent that is not among those to flatten."""
        return self._agent_ids is not None and self.part_of is not None and self.part_of not in self._agent_ids

    def _kept(self, space: Any) -> Any:
        """The space without the keys to remove."""
        if not self._keys_to_remove:
            return space
        if not isinstance(space, gym.spaces.Dict):
            raise SpaceError(
                f"FlattenObservations(keys_to_remove={self._keys_to_remove})",
                expected="a Dict observation space",
                found=space,
                do="leave keys_to_remove out",
            )
        for key in self._keys_to_remove:
            if key not in space.spaces:
                raise UnknownNameError(
                    "FlattenObservations.keys_to_remove",
                    expected="keys of the observation space",
                    found=repr(key),
                    do=nearest(str(key), map(str, space.spaces)),
                )
        return gym.spaces.Dict([(key, own) for key, own in space.spaces.items() if key not in self._keys_to_remove])

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite the newest observations of the agents, group by group, or agent by agent if only some are meant."""
        if self._agent_ids is None:
            return super().run_all(batch, call)
        return self.run_agents(batch, call)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Rewrite the newest observations, or in training add the column."""
        if not self._as_learner_connector:
            return columns if self._left_alone else super().run(columns, group)
        if len(group.episodes):
            data = gather(group, Columns.OBS, plus_one=group.plus_one)
            columns[Columns.OBS] = EpisodeColumn(self.rewrite(data, group), group.counts)
        return columns

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Flatten rows of observations."""
        space = self.input_observation_space
        if space is None:
            raise SpaceError(
                "FlattenObservations",
                expected="the observation space, which says what becomes a one-hot",
                found="none",
                do="pass it to the pipeline, or to the piece: FlattenObservations(observation_space)",
            )
        if self._rows is None or self._rows[0] is not space:
            self._rows = space, FlatRows(self._kept(space))
        if self._keys_to_remove and isinstance(observations, dict):
            observations = {key: own for key, own in observations.items() if key not in self._keys_to_remove}
        return self._rows[1](observations)
