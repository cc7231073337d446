"""Recorded episodes in the place of sampled ones: what is drawn from them, and their spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, NotAvailableError
from epibatch.core.random_streams import random_stream
from epibatch.core.restoring import restore_generator
from epibatch.core.spaces import infer_spaces

from ..env_runner.multi_agent_env import MultiAgentEnv
from ..episodes import episodes_to_columns
from ..episodes.reader import reader_of
from ..offline.episode_dataset import EpisodeDataset

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


class RecordedEpisodes:
    """Draws whole episodes of a data set, each once per pass, in a new order in each pass.

    Args:
        config: the algorithm's: `input_`, `train_batch_size`, `seed`.
    """

    is_late = False

    def __init__(self, config: AlgorithmConfig) -> None:
        self._episodes, self._num_steps = config.input_, config.total_train_batch_size
        self._random = np.random.default_rng(random_stream(config.seed, "offline_data"))
        self._order = np.zeros(0, np.int64)

    def sample(self) -> Sequence[Any]:
        """Return as many episodes as have `train_batch_size` steps together."""
        is_data_set = isinstance(self._episodes, EpisodeDataset)
        drawn: list[Any] = []
        steps = 0
        while steps < self._num_steps:
            if not len(self._order):
                self._order = self._random.permutation(len(self._episodes))
            number = int(self._order[0])
            self._order = self._order[1:]
            drawn.append(number if is_data_set else self._episodes[number])
            steps += int(self._episodes.lengths[number]) if is_data_set else len(drawn[-1])
        return self._episodes.take(drawn) if is_data_set else drawn

    def sample_ahead(self) -> None:
        """Prepare nothing: drawing takes no time."""

    def forget(self) -> None:
        """Keep the order: an episode that was drawn was returned."""

    def get_state(self) -> dict[str, Any]:
        """Return the numbers of the episodes that are left in this pass, and the state of the random generator."""
        generator = self._random.bit_generator.state
        return {"num_episodes": len(self._episodes), "order": self._order.copy(), "generator": generator}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the source did whose state it is.

        Raises:
            CheckpointError: it is the state of other data.
        """
        where, count = "state of the recorded episodes", len(self._episodes)
        if state["num_episodes"] != count:
            raise CheckpointError(
                where,
                expected=f"that of {count} episodes",
                found=f"that of {state['num_episodes']!r}",
                do="restore with the episodes of the run that was saved",
            )
        order = np.array(state["order"], np.int64)
        if not set(order.tolist()) <= set(range(count)):
            raise CheckpointError(
                where, expected=f"numbers below {count}", found=f"{order}", do="use a whole checkpoint"
            )
        restore_generator(where, self._random, state["generator"])
        self._order = order


class SpacesEnv(gym.Env[Any, Any]):
    """An environment of spaces alone, which stands where pipelines and modules are built without an environment.

    Args:
        observation_space: its space of observations.
        action_space: its space of actions.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> NoReturn:
        """Raise an error.

        Raises:
            NotAvailableError: always.
        """
        raise NotAvailableError(
            "sampling",
            expected="an environment",
            found="a config of recorded episodes, without one",
            do='name one: .environment("CartPole-v1")',
        )


class MultiAgentSpacesEnv(SpacesEnv, MultiAgentEnv):
    """A `SpacesEnv` of several agents; the spaces are mappings from agents."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(None, None)
        self.observation_spaces, self.action_spaces = dict(observation_space), dict(action_space)
        self.agents = self.possible_agents = list(self.action_spaces)


def with_spaces_of_data(config: ConfigT) -> ConfigT:
    """Return a config of recorded episodes without an environment, with their spaces in its place.

    Spaces are those of the config, else those of the episodes, else they are inferred from the data.

    Raises:
        SpaceError: the data has no space, such as columns of text.
    """
    episodes, several = config.input_, config.is_multi_agent
    spaces = [
        getattr(config, name) or _spaces_of(episodes, name, several) for name in ("observation_space", "action_space")
    ]
    if None in spaces:
        columns = episodes_to_columns(episodes) if several else _columns_of(episodes)
        for place, name in enumerate((Columns.OBS, Columns.ACTIONS)):
            infer = partial(infer_spaces, discrete=name == Columns.ACTIONS)
            if spaces[place] is None and several:
                spaces[place] = {agent: infer(columns[agent][name]) for agent in columns}
            elif spaces[place] is None:
                spaces[place] = infer(columns[name])
    kind = MultiAgentSpacesEnv if several else SpacesEnv

    def spaces_of_data() -> gym.Env[Any, Any]:
        return kind(*spaces)

    environment = {"env": spaces_of_data, "env_config": {}, "wrappers": []}
    alone = {"num_envs_per_env_runner": 1, "gym_env_vectorize_mode": "sync"}
    return config.copy().change("offline_data", {"environment": environment, "env_runners": alone})


def _columns_of(episodes: Sequence[Any]) -> dict[str, Any]:
    """Return the observations and actions of single-agent episodes."""
    reader = reader_of(episodes)
    return {name: reader.rows(name).joined() for name in (Columns.OBS, Columns.ACTIONS)}


def _spaces_of(episodes: Sequence[Any], name: str, several: bool) -> Any:
    """Return the space that the episodes have, of several agents by agent; None if they have none."""
    if several:
        return {agent: space for episode in episodes for agent, space in getattr(episode, name).items()} or None
    first = episodes[0]
    return getattr(first, f"given_{name}", None) or getattr(first, name)
