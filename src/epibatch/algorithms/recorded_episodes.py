"""Recorded episodes in the place of sampled ones: what is drawn from them, and their spaces."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchWarning, NotAvailableError
from epibatch.core.random_state import random_state_apart
from epibatch.core.random_streams import random_stream
from epibatch.core.restoring import restore_generator
from epibatch.core.spaces import get_base_struct_from_space, infer_spaces
from epibatch.core.structs import flatten, map_struct, paths_of

from ..env_runner.multi_agent_env import MultiAgentEnv
from ..episodes import MultiAgentEpisode, episodes_to_columns
from ..episodes.reader import reader_of
from ..offline.episode_dataset import EpisodeDataset
from ..offline.foreign import batches_of

if TYPE_CHECKING:
    from ..learner.learner import Learner
    from .algorithm_config import AlgorithmConfig

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")
_AT_ONCE = 4096
"""Steps of held-out episodes that are measured at once, about; and of those whose actions are compared with a scale."""
_ROUNDED = 1e-4
"""Distance from -1 and 1 that rounding leaves."""


def training_episodes(config: AlgorithmConfig) -> Sequence[Any]:
    """Return the recorded episodes of a config that are not held out."""
    return _parts(config)[0] if config.held_out else config.input_


def held_out_episodes(config: AlgorithmConfig) -> Sequence[Any]:
    """Return the recorded episodes of a config that are held out; [] without any.

    Raises:
        ConfigError: there are too few episodes to hold out some and learn from others.
    """
    return _parts(config)[1] if config.held_out and config.input_ is not None else []


def _parts(config: AlgorithmConfig) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split the recorded episodes at random, in the same way in each call and for each seed."""
    episodes = config.input_
    count = max(round(config.held_out * len(episodes)), 1)
    if count >= len(episodes):
        raise ConfigError(
            "offline_data.held_out",
            expected="episodes to learn from",
            found=f"{config.held_out} of {len(episodes)} episodes held out",
            do="lower it, or give more episodes",
        )
    order = np.random.default_rng(0).permutation(len(episodes))
    return _at(episodes, np.sort(order[count:])), _at(episodes, np.sort(order[:count]))


def _at(episodes: Sequence[Any], places: npt.NDArray[np.int64]) -> Sequence[Any]:
    """Return the episodes at some places, those of a data set as a data set."""
    if isinstance(episodes, EpisodeDataset):
        return episodes.take(places)
    return [episodes[place] for place in places.tolist()]


def apart_from_pieces(episodes: Sequence[Any], pipeline: Any) -> Sequence[Any]:
    """Return copies of episodes that are drawn again later, if a piece of the pipeline may change what it gets.

    Args:
        episodes: Single-agent or multi-agent ones.
        pipeline: The learner pipeline that they go to.
    """
    if any(piece.mutates_episodes or piece.reads is None for piece in pipeline):
        return [episode.slice(slice(None)) for episode in episodes]
    return episodes


def held_out_losses(learner: Learner, episodes: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Return the means of losses and metrics over the steps of episodes, by module; nothing is changed.

    Args:
        learner: Its modules, its update rules and a copy of its pipeline are used.
        episodes: Single-agent or multi-agent ones.
    """
    connector = copy.deepcopy(learner.connector)
    connector.freeze()
    sums: dict[str, Counter[str]] = {}
    with random_state_apart(0):
        for part in batches_of(episodes, _AT_ONCE):
            apart = apart_from_pieces(part, connector)
            batch = connector(rl_module=learner.module, batch={}, episodes=apart, shared_data={}, metrics=None)
            for module_id, values in learner.measure(batch).items():
                count = values.pop("num_rows")
                sums.setdefault(module_id, Counter()).update({"num_rows": count})
                sums[module_id].update({name: value * count for name, value in values.items()})
    return {
        module_id: {name: total if name == "num_rows" else total / totals["num_rows"] for name, total in totals.items()}
        for module_id, totals in sums.items()
    }


def check_shapes(episodes: Sequence[Any], spaces: tuple[Any, Any]) -> None:
    """Raise an error if recorded steps have other shapes than those of an environment.

    Args:
        episodes: Single-agent ones.
        spaces: Of the environment's observations and actions.

    Raises:
        ConfigError: the shapes or the nesting differ.
    """
    first = next(episode for episode in episodes if len(episode))
    steps = {"observations": first.get_observations(0), "actions": first.get_actions(0)}
    for (name, row), space in zip(steps.items(), spaces):
        found = map_struct(np.shape, row)
        expected = map_struct(lambda leaf: leaf.shape, get_base_struct_from_space(space))
        if found != expected:
            raise ConfigError(
                f"offline_data.input_, {name}",
                expected=f"the shape that the environment's have: {expected}",
                found=f"{found} in episode {first.id_}",
                do="give data of the same environment, or leave one of both out",
            )


def check_scale(config: AlgorithmConfig, space: Any) -> None:
    """Warn if recorded actions seem to be the environment's own numbers, where modules act in -1 to 1.

    The first steps are looked at. A Gaussian policy that acted in -1 to 1 also leaves them, and then the bounds too.
    Episodes with `actions_for_env` have the module's own actions.

    Args:
        config: Its episodes are single-agent ones.
        space: Of the environment's actions.
    """
    squashes, steps, rows = config.heads == "soft_actor_critic", 0, []
    boxes, form = flatten(get_base_struct_from_space(space))
    if not (squashes or config.normalize_actions) or not any(isinstance(box, gym.spaces.Box) for box in boxes):
        return
    for episode in training_episodes(config):
        if Columns.ACTIONS_FOR_ENV in episode.extra_model_outputs:
            return
        rows.append(flatten(episode.get_actions(slice(None))))
        steps += len(episode)
        if steps >= _AT_ONCE:
            break
    if any(rows_form != form for _, rows_form in rows):
        return
    for place, (box, path) in enumerate(zip(boxes, paths_of(form))):
        values = np.concatenate([np.ravel(leaves[place]) for leaves, _ in rows])
        if values.dtype.kind != "f" or not isinstance(box, gym.spaces.Box) or not box.is_bounded():
            continue
        low, high = values.min(), values.max()
        if max(-low, high) <= 1 + _ROUNDED or not (squashes or (box.low.min() <= low and high <= box.high.max())):
            continue
        do = "convert them with epibatch.core.spaces.normalize_action, with the environment's action space"
        if not squashes:
            settings = "environment(normalize_actions=False, clip_actions=True)"
            do = f"set {settings} if they are the environment's own numbers, or {do}"
        warning = EpibatchWarning(
            f"offline_data.input_, column 'actions'{path and f' {path}'}",
            expected="-1 to 1, as modules act" + ("" if squashes else " with normalize_actions"),
            found=f"{low:.3g} to {high:.3g}, where the environment takes {box}",
            do=do,
        )
        warnings.warn(warning, stacklevel=2)
        return


class RecordedEpisodes:
    """Draws whole episodes of a data set, each once per pass, in a new order in each pass.

    Args:
        config: The algorithm's: `input_`, `train_batch_size`, `seed`.
    """

    is_late = False

    def __init__(self, config: AlgorithmConfig) -> None:
        episodes = training_episodes(config)
        self._episodes, self._num_steps = episodes, config.total_train_batch_size
        self._lengths = episodes.lengths if isinstance(episodes, EpisodeDataset) else list(map(len, episodes))
        self._random = np.random.default_rng(random_stream(config.seed, "offline_data"))
        self._order = np.zeros(0, np.int64)

    def sample(self) -> Sequence[Any]:
        """Return as many episodes as have `train_batch_size` steps together."""
        drawn: list[int] = []
        steps = 0
        while steps < self._num_steps:
            if not len(self._order):
                self._order = self._random.permutation(len(self._episodes))
            number = int(self._order[0])
            self._order = self._order[1:]
            drawn.append(number)
            steps += int(self._lengths[number])
        return _at(self._episodes, np.array(drawn))

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


def whole_episodes(episodes: Sequence[Any]) -> Iterator[Any]:
    """Yield episodes so that each ends: one whose next part does not follow is truncated, in a copy.

    Args:
        episodes: Single-agent or multi-agent ones, or parts of them in the order of time.
    """
    following = episodes[0]
    for place in range(1, len(episodes) + 1):
        episode, following = following, episodes[place] if place < len(episodes) else None
        goes_on = following is not None and following.id_ == episode.id_ and _begin_of(following) == _end_of(episode)
        if episode.is_done or goes_on:
            yield episode
        elif isinstance(episode, MultiAgentEpisode):
            cut = copy.deepcopy(episode)
            cut.truncate()
            yield cut
        else:
            cut = copy.copy(episode)
            cut.is_truncated = True
            yield cut


def _begin_of(episode: Any) -> int:
    return int(episode.env_t_started if isinstance(episode, MultiAgentEpisode) else episode.t_started)


def _end_of(episode: Any) -> int:
    return int(episode.env_t if isinstance(episode, MultiAgentEpisode) else episode.t)


def num_rows(episode: Any) -> int:
    """Return the rows that an episode has in a replay buffer: one for each step of an agent, and its last one."""
    parts = [segment.episode for segment in episode.segments] if isinstance(episode, MultiAgentEpisode) else [episode]
    return sum(len(part) + 1 for part in parts)


class SpacesEnv(gym.Env[Any, Any]):
    """An environment of spaces alone, which stands where pipelines and modules are built without an environment.

    Args:
        observation_space: Its space of observations.
        action_space: Its space of actions.
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
    alone = {"num_envs_per_env_runner": 1, "gym_env_vectorize_mode": "sync", "gym_env_batch_size": None}
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
