"""A data set: recorded episodes that are read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError
from epibatch.core.kept_property import kept_property

from ..episodes import SingleAgentEpisode
from ..episodes.chunk_table import ChunkTable
from ..episodes.replay.held_steps import Name
from ..episodes.replay.sampled_episodes import LazyIds, SampledEpisodes
from ..episodes.replay.step_draws import StepDraws
from ..episodes.store import Ints
from .episode_rows import ChosenEpisodes, EpisodeRows

_NAMES = ("agent_id", "module_id", "multi_agent_episode_id")


class EpisodeDataset(ChunkTable):
    """Episodes of one agent with fixed content: a sequence of them, which pipelines read by index.

    Nothing is copied that is not asked for: rows stay in their files, or arrays, and an item is a new episode object
    with copies of its rows. `filter`, `split` and `shard` return data sets over the same rows.

    `read_episodes` makes data sets.

    Args:
        rows: The rows of all episodes.
        chosen: The numbers of the episodes that the data set has, in their order there: int64 [E]; None: all.

    Attributes:
        observation_space: Space of the observations as recorded; None: not known.
        action_space: Space of the actions as recorded; None: not known.
        env: Name of the environment; None: not known.
        path: The folder that all its episodes are in; None: it has some of them, or is in memory.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> from epibatch.offline import read_episodes
        >>> data = read_episodes([SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0],
        ...                                          terminated=True, len_lookback_buffer=0)])
        >>> len(data), data.num_steps, data.returns.tolist(), data[0].get_actions().tolist()
        (1, 2, [3.0], [5, 6])
    """

    def __init__(self, rows: EpisodeRows, chosen: Ints | None = None) -> None:
        self._rows = rows
        self._chosen = np.arange(len(rows.facts.first)) if chosen is None else chosen
        self.observation_space, self.action_space, self.env = rows.observation_space, rows.action_space, rows.env
        self.path = rows.path if chosen is None else None
        facts = rows.facts if chosen is None else rows.facts.of(chosen)
        super().__init__(
            [rows.store],
            facts.first + facts.lookback,
            facts.steps,
            lookbacks=facts.lookback,
            starts=facts.t_started,
            terminateds=facts.terminated > 0,
            truncateds=facts.truncated > 0,
            lack_final_obs=facts.lacks_final_obs > 0,
            ids=LazyIds(len(self._chosen), lambda i: self.about(i)["id"]),
        )
        self._generator = np.random.default_rng()

    @kept_property
    def _steps(self) -> ChosenEpisodes:
        order = np.argsort(self._chosen, kind="stable")
        facts = self._rows.facts.of(self._chosen[order])
        return ChosenEpisodes(self._rows.store, facts, lambda i: self._name_of(int(order[i])))

    def __reduce__(self) -> Any:
        return EpisodeDataset, (self._rows, None if self.path else self._chosen)

    def about(self, chunk: int) -> dict[str, Any]:
        """Return the names of an episode, by its number, with `infos` (None: all are empty) and `custom_data`."""
        return self._rows.about(int(self._chosen[chunk]))

    def _episode(self, chunk: int) -> SingleAgentEpisode:
        episode = super()._episode(chunk)
        episode.observation_space, episode.action_space = self.observation_space, self.action_space
        episode.custom_data.update(self.about(chunk)["custom_data"])
        return episode

    def _name_of(self, chunk: int) -> Name:
        about = self.about(chunk)
        return Name(about["id"], about.get("agent_id"), about.get("multi_agent_episode_id"))

    def _agent_of(self, chunk: int) -> dict[str, Any]:
        about = self.about(chunk)
        return {name: about.get(name) for name in _NAMES}

    def _rows_of(self, chunk: int, name: str, low: int, count: int) -> Any:
        if name != Columns.INFOS:
            return super()._rows_of(chunk, name, low, count)
        infos = self.about(chunk)["infos"]
        if infos is None:
            return None
        rows = np.empty(count + 1, np.object_)
        rows[:] = infos[-count - 1 :]  # those of the episode's whole lookback come before
        return rows

    @property
    def num_steps(self) -> int:
        """The number of steps of all episodes."""
        return int(self.lengths.sum())

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """The sum of the rewards of each episode: float64 [E]."""
        return self._rows.returns()[self._chosen]

    # -- parts of it ---------------------------------------------------------------------------------

    def filter(self, keep: Callable[[SingleAgentEpisode], bool] | npt.ArrayLike) -> EpisodeDataset:
        """Return the data set of some of the episodes.

        Args:
            keep: A mask, bool [E], such as `data.returns > 100`; or a function of an episode, for which each one is
                made.

        Raises:
            DataError: a mask of another length, or no episode is left.
        """
        mask = np.array([bool(keep(episode)) for episode in self]) if callable(keep) else np.asarray(keep)
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise DataError(
                "EpisodeDataset.filter",
                expected=f"bools of shape ({len(self)},)",
                found=f"{mask.dtype} of shape {mask.shape}",
                do="compare something that there is of each episode: data.returns > 100",
            )
        return self._part("filter", np.flatnonzero(mask))

    def split(self, share: float, *, seed: int | Sequence[int] | None = None) -> tuple[EpisodeDataset, EpisodeDataset]:
        """Return two data sets, of which the first has a share of the episodes, drawn, and the second has the others.

        Args:
            share: The share, between 0 and 1.
            seed: Seed of the draw; None: another one each time.

        Raises:
            DataError: one of them would be empty.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        count = round(share * len(self)) if 0 < share < 1 else 0
        first, second = (self._part("split", np.sort(part)) for part in (order[:count], order[count:]))
        return first, second

    def shard(self, index: int, count: int) -> EpisodeDataset:
        """Return the data set of every `count`-th episode, from a number on: what one of so many workers reads.

        Args:
            index: The worker's number, from 0 to `count` - 1.
            count: The number of workers.

        Raises:
            DataError: there are fewer episodes than workers, or there is no worker of that number.
        """
        numbers = np.arange(len(self))
        return self._part("shard", numbers[index::count] if 0 <= index < count <= len(self) else numbers[:0])

    def take(self, numbers: npt.ArrayLike) -> EpisodeDataset:
        """Return the data set of some of the episodes, in an order of yours.

        Args:
            numbers: Their numbers, from 0 on, one also several times: int [n].

        Raises:
            DataError: none, or one that is not there.
        """
        chosen = np.asarray(numbers)
        fits = chosen.ndim == 1 and chosen.dtype.kind in "iu" and ((chosen >= 0) & (chosen < len(self))).all()
        return self._part("take", chosen if fits else np.zeros(0, np.int64))

    def _part(self, method: str, numbers: Ints) -> EpisodeDataset:
        if not len(numbers):
            raise DataError(
                f"EpisodeDataset.{method}",
                expected="a data set with an episode",
                found=f"none of {len(self)} episodes",
                do="choose other arguments, or look at data.lengths and data.returns",
            )
        return EpisodeDataset(self._rows, self._chosen[numbers])

    def sample(
        self,
        num_items: int,
        *,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        gamma: float = 0.99,
        lookback: int = 0,
        min_batch_length_T: int = 0,
        burn_in: int = 0,
        include_extra_model_outputs: bool = True,
        generator: np.random.Generator | None = None,
    ) -> SampledEpisodes:
        """Draw parts of episodes, each from a step drawn uniformly, with replacement, as a replay buffer does.

        Args:
            num_items: How many.
            batch_length_T: Steps of each, fewer where its episode ends before; default: 1.
            n_step: As in `EpisodeReplayBuffer.sample`, like the others.
            gamma: Likewise.
            lookback: Likewise.
            min_batch_length_T: Likewise.
            burn_in: Likewise.
            include_extra_model_outputs: Likewise.
            generator: Gives the numbers of the draw; None: one of its own, with another seed each time.

        Raises:
            ReplayError: an argument out of its range, or no step is such a start.
        """
        draws = StepDraws(self._steps, generator or self._generator, owner="EpisodeDataset")
        return draws.sample(
            num_items,
            batch_length_T=batch_length_T,
            n_step=n_step,
            gamma=gamma,
            lookback=lookback,
            min_batch_length_T=min_batch_length_T,
            burn_in=burn_in,
            include_extra_model_outputs=include_extra_model_outputs,
        )
