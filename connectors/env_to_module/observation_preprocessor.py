"""Base classes for pieces that change the newest observations, by agent or for all agents together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from epibatch.core.errors import BatchLayoutError, ColumnError, SpaceError, UnknownNameError
from epibatch.core.spaces import check_row
from epibatch.core.structs import is_leaf

from ...episodes.multi_agent_episode import MultiAgentEpisode
from .._engine.agent_copies import entry_of, output_spaces
from ..columnar_piece import refuse_observations
from ..connector_v2 import ConnectorV2

__all__ = ["MultiAgentObservationPreprocessor", "ObservationPreprocessor", "SingleAgentObservationPreprocessor"]


class _Preprocessor(ConnectorV2):
    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    rewrites_observations = True

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Rewrite the newest observations of the episodes; the batch stays as it is.

        Raises:
            PipelineError: an earlier piece has put observations into the batch already.
            BatchLayoutError: episodes of one agent each, where agents are preprocessed together.
            ColumnError: `preprocess` returned nothing, or no dict of agents.
            UnknownNameError: it returned an observation for an agent that has none at this env step.
            SpaceError: a row, returned or left as it was, of another nesting, shape or kind than its output space has.
        """
        refuse_observations(self, batch)
        self._rewrite_all(episodes, self.observation_space)
        return batch

    @abstractmethod
    def _rewrite_all(self, episodes: Sequence[Any], spaces: Any) -> None:
        """Write the new observations, which are of the output spaces, into the episodes."""


class SingleAgentObservationPreprocessor(_Preprocessor):
    """A base for pieces that turn the newest observation of an episode into another one.

    Subclasses write `preprocess`, and `recompute_output_observation_space` if what comes out is of another space.
    What it returns is written back into the episode, so that the learner sees what the module saw. It is called
    once per episode and step; where that takes too long, `MeanStdFilter` and its like take all episodes at once.

    Examples:
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

    def _outputs_by_agent(self) -> tuple[Any, Any]:
        return output_spaces(self)

    @abstractmethod
    def preprocess(self, observation: Any, episode: Any) -> Any:
        """Return the new value of an observation.

        Args:
            observation: The newest observation, one row, nested as its space is.
            episode: The `SingleAgentEpisode` that it belongs to; earlier steps can be read from it.

        Returns:
            One row of the output observation space. Whole floats become integers where the space has integers.
        """

    def _rewrite_all(self, episodes: Sequence[Any], spaces: Any) -> None:
        for episode in self.single_agent_episode_iterator(episodes):
            agent = episode.agent_id
            space = spaces if agent is None else entry_of(self, "observation space", spaces, agent)
            row = self.preprocess(observation=episode.get_observations(-1), episode=episode)
            if row is None:
                raise _nothing(self, "the new observation", "observation")
            _write(self, episode, row, space)


class MultiAgentObservationPreprocessor(_Preprocessor):
    """Base class for pieces that transform the newest observations of all agents of an episode together.

    Subclasses write `preprocess`. It gets a dict of the observations of all agents that have one at the newest env
    step. If the spaces change, they also write `recompute_output_observation_space`. It gets the Dict of all agents'
    spaces and returns one. The result of `preprocess` is written back to the agents' episodes, so that the learner
    sees what the modules saw. It is called once per episode and env step with an observation of any agent. To
    transform each agent's observation by itself, use `SingleAgentObservationPreprocessor`.

    Examples:
        >>> import numpy as np
        >>> class SeeEachOther(MultiAgentObservationPreprocessor):
        ...     def recompute_output_observation_space(self, input_observation_space, input_action_space):
        ...         return gym.spaces.Dict({a: gym.spaces.Box(-9, 9, (2,)) for a in input_observation_space})
        ...
        ...     def preprocess(self, observations, episode):
        ...         total = sum(observations.values())
        ...         return {agent: np.concatenate([own, total - own]) for agent, own in observations.items()}
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> episode = MultiAgentEpisode()
        >>> episode.add_env_reset(observations={"a": np.float32([1.0]), "b": np.float32([2.0])})
        >>> _ = SeeEachOther()(batch={}, episodes=[episode])
        >>> episode.get_observations(-1)["a"]
        array([1., 2.], dtype=float32)
    """

    @abstractmethod
    def preprocess(self, observations: dict[Any, Any], episode: Any) -> Mapping[Any, Any]:
        """Return the new values of observations.

        Args:
            observations: The newest observation of each agent that has one at the newest env step, one row each.
            episode: The `MultiAgentEpisode` that they belong to; earlier steps can be read from it.

        Returns:
            A dict with the new observations; those of agents that are left out stay as they are.
        """

    def _rewrite_all(self, episodes: Sequence[Any], spaces: Any) -> None:
        for episode in episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise BatchLayoutError(
                    type(self).__name__,
                    expected="episodes of several agents",
                    found=type(episode).__name__,
                    do="subclass SingleAgentObservationPreprocessor",
                )
            observed = list(episode.get_agents_that_observed())
            if not observed:
                continue
            observations = episode.get_observations(-1, observed)
            rows = self.preprocess(observations=dict(observations), episode=episode)
            self._check(rows, observed)
            parts = episode.agent_episodes
            for agent in observed:
                space = entry_of(self, "observation space", spaces, agent)
                _write(self, parts[agent], rows.get(agent, observations[agent]), space, agent in rows)

    def _check(self, rows: Any, observed: list[Any]) -> None:
        if not isinstance(rows, Mapping):
            raise _nothing(self, "a dict of the agents' new observations", "observations", rows)
        strangers = [agent for agent in rows if agent not in observed]
        if strangers:
            raise UnknownNameError(
                f"{type(self).__name__}.preprocess",
                expected=f"observations of agents that have one at this env step: {', '.join(map(repr, observed))}",
                found=f"one for {strangers[0]!r}",
                do="return entries for the agents in `observations` only",
            )


def _write(piece: ConnectorV2, episode: Any, row: Any, space: gym.Space[Any] | None, changed: bool = True) -> None:
    """Make a row that fits its space the newest observation of an agent's episode."""
    if space is not None:
        whose = "" if episode.agent_id is None else f", agent {episode.agent_id!r}"
        row = _checked_row(piece, row, space, whose)
    if changed:
        episode.set_observations(new_data=row, at_indices=-1)
    if space is not None:
        episode.observation_space = space


def _checked_row(piece: ConnectorV2, row: Any, space: gym.Space[Any], whose: str) -> Any:
    """The row, with integers in place of whole floats where its space has integers.

    Raises:
        SpaceError: it does not fit the space.
    """
    name = type(piece).__name__
    try:
        check_row(space, row, f"{name}.preprocess{whose}")
        return row
    except SpaceError as error:
        converted = _with_integers(space, row)
        try:
            check_row(space, converted, f"{name}.preprocess{whose}")
        except SpaceError:
            facts = str(error).rpartition("\n")[0]
            do = f"let {name}.recompute_output_observation_space return the space of what comes out"
            integers = "; or return integers" if "integer" in facts else ""
            raise SpaceError(f"{facts}\n  do:       {do}{integers}") from None
        return converted


def _with_integers(space: gym.Space[Any], row: Any) -> Any:
    """A row with integers in place of whole floats where its space has integers."""
    if isinstance(space, spaces.Dict) and isinstance(row, dict):
        return {key: _with_integers(space[key], part) if key in space.spaces else part for key, part in row.items()}
    if isinstance(space, spaces.Tuple) and isinstance(row, tuple) and len(row) == len(space):
        return tuple(map(_with_integers, space.spaces, row))
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)) and is_leaf(row):
        array = np.asarray(row)
        if array.dtype.kind == "f" and np.array_equal(array, np.floor(array)):
            return array.astype(space.dtype)[()]
    return row


def _nothing(piece: ConnectorV2, expected: str, name: str, found: Any = None) -> ColumnError:
    where, do = f"{type(piece).__name__}.preprocess", f"end preprocess with `return {name}`"
    found = "None" if found is None else f"{type(found).__name__}: {found!r}"
    return ColumnError(where, expected=f"{expected}, returned", found=found, do=do)


ObservationPreprocessor = SingleAgentObservationPreprocessor
