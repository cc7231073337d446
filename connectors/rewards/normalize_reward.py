"""Rewards scaled by running statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Interval

from epibatch.core import LEARNERS
from epibatch.core.advantages import discounted_sums
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, EpibatchWarning, StateError
from epibatch.core.shared_moments import HUGE, LARGEST, SharedMoments, merge_shared_moments, prior_moments, warn_of_huge

from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup, episode_ids
from .._engine.columns import Batch
from .._engine.gather import column_or_gather
from .module_statistics import ModuleStatistics

Floats = npt.NDArray[np.float64]
_SHAPES = {"rewards": [1]}
_OTHERS = "normalize_reward"
"""In shared_data, in a call of one of several learners: module id -> chunks of the other learners."""
_MOST = 10_000
"""Running episodes that are remembered; older ones were left, as by a reset of a runner."""


class _Seen:
    """Moments of what was seen, and the discounted returns of episodes that go on: id -> (step, return)."""

    def __init__(self, moments: SharedMoments, running: dict[str, tuple[int, float]]) -> None:
        self.moments, self.running = moments, running

    def to_state(self) -> dict[str, Any]:
        return {**self.moments.to_state(), "running": {id_: list(entry) for id_, entry in self.running.items()}}


class _OtherChunk(NamedTuple):
    """A chunk of another learner: its discounted return without earlier rewards, and that right before it."""

    id_: str
    started: int
    length: int
    total: float
    before: float  # by its lookback
    is_continued: bool  # the return before it may be that of the chunk before
    ended: bool


class NormalizeReward(ModuleStatistics):
    """Divides rewards by a running standard deviation: that of discounted returns, or their own.

    With a discount, the deviation is that of `gamma * return so far + reward` over all steps seen, so that future
    returns have a variance near 1 (Engstrom et al. 2020; Gymnasium's wrapper of the same name and VecNormalize do so).
    With `gamma=None` it is that of the rewards, and `center` also subtracts their mean. Each batch updates the
    statistics first and is then scaled by them. Each module has its own statistics.

    A chunk in the middle of an episode continues from its lookback, if that reaches the episode's start, or from the
    chunk that the piece saw before it. Otherwise only its lookback counts, because a discount makes earlier rewards
    small. Chunks of one id that overlap, such as samples of a replay buffer, are counted with a warning. If an earlier
    piece put rewards into the batch, these count.

    With `decay` a value counts `decay**n` once n later ones were seen; those of one batch count alike. The variance is
    unbiased, as in `MeanStdFilter`. A `prior` is counted as if so many values had been seen before.

    `merge_states` merges copies exactly, with `decay` as in `MeanStdFilter`; `freeze` stops counting. Learners that
    update together tell each other the returns of their chunks, so that the chunks of an episode may be on any of them.

    Counterparts: TorchRL's `RewardScaling`, `VecNorm`, `VecNormV2`.

    Args:
        update_stats: Whether to count; see `freeze`.
        gamma: Discount in [0, 1) of the returns; None: use the rewards themselves.
        center: Whether to subtract the mean of the rewards; without a discount only.
        clip: Limit of the absolute values of the result; None: no limit.
        epsilon: Added to the variance.
        decay: What each value leaves of the weight of earlier ones, in (0, 1]; 1: all count alike.
        prior: `(count, mean, std)` of such values, to begin with.

    Raises:
        ConfigError: invalid arguments.
        ColumnError: rewards that are NaN, infinite or above 1e100; the statistics stay as they were. (Above 1e15 the
            piece warns once.)

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [0, 1, 2, 3], "actions": [0, 0, 0], "rewards": [1.0, 2.0, 6.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> piece = NormalizeReward(gamma=None, center=True)
        >>> pipeline = LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])
        >>> pipeline(episodes=[episode])["rewards"].round(3)
        array([-0.756, -0.378,  1.134])
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.REWARDS,)
    gamma: Annotated[float, Interval(ge=0, lt=1)] | None = 0.99
    center: bool = False
    clip: Annotated[float, Gt(0)] | None = 10.0
    epsilon: Annotated[float, Interval(ge=0, lt=math.inf)] = 1e-8
    decay: Annotated[float, Interval(gt=0, le=1)] = 1.0
    prior: Any = None

    def __post_init__(self) -> None:
        """Check that there is something to centre, and the prior."""
        self._prior = None
        if self.prior is not None:
            self._prior = prior_moments("NormalizeReward", self.prior, lambda value: np.array([float(value)]))
        self._warned = self._warned_of_overlap = False
        if self.center and self.gamma is not None:
            expected, do = "False, or gamma=None: returns are scaled, not shifted", "pass such a value, or leave it out"
            raise ConfigError("NormalizeReward.center", expected=expected, found=repr(self.center), do=do)

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Count and scale the rewards of each group."""
        learners = call.shared_data.get(LEARNERS)
        if learners is not None and self.gamma is not None and self.learns:
            own: dict[Any, list[_OtherChunk]] = {}
            for key, columns in batch.groups.items():
                own.setdefault(call.groups[key].module_id, []).extend(self._chunks(columns, call.groups[key]))
            others: dict[Any, list[_OtherChunk]] = {}
            for index, chunks in learners.gather((learners.index, own)):
                for module_id in chunks if index != learners.index else ():
                    others.setdefault(module_id, []).extend(chunks[module_id])
            call.shared_data[_OTHERS] = others
        return super().run_all(batch, call)

    def _chunks(self, columns: dict[str, Any], group: ChunkGroup) -> list[_OtherChunk]:
        """Return what other learners need to know of this one's chunks."""
        column = column_or_gather(columns, group, Columns.REWARDS, "NormalizeReward")
        chunks, stop, ids = [], 0, episode_ids(group.episodes)
        ends: Any = group.reader.ends.any(0)
        for chunk, (count, length) in enumerate(zip(column.counts, group.lengths)):
            rewards = np.asarray(column.data[stop : stop + length], np.float64)
            stop += int(count)
            if length:
                id_, started = str(ids[chunk]), int(group.reader.starts[chunk])
                is_continued = bool(group.reader.lookbacks[chunk] < started)
                before = self._before(chunk, started, id_, {}, group)
                chunks.append(
                    _OtherChunk(id_, started, int(length), self._last(rewards), before, is_continued, bool(ends[chunk]))
                )
        return chunks

    def _last(self, rewards: Floats) -> float:
        """Return the discounted return at the end of rewards, with nothing before them."""
        return float(discounted_sums(rewards[::-1], [len(rewards)], self.gamma or 0.0)[0])

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Count the rewards, and scale them."""
        column = column_or_gather(columns, group, Columns.REWARDS, "NormalizeReward")
        rewards = np.asarray(column.data)
        _check(rewards, column.counts, group)
        statistics, bootstraps = self.statistics(group), np.empty(0, np.int64)
        if len(rewards) > group.lengths.sum():
            bootstraps = np.cumsum(column.counts) - 1  # no real step's
        if self.learns:
            real = np.delete(rewards, bootstraps) if len(bootstraps) else rewards
            statistics.moments.add(
                self._counted(real.astype(np.float64, copy=False), group, statistics)[:, None], None, self.decay
            )
            huge = np.abs(rewards) > HUGE
            if not self._warned and huge.any():
                self._warned = True
                where, value = _first(huge, rewards, column.counts, group)
                warn_of_huge(where, value, "rewards")
        total = statistics.moments.total
        total = total if self._prior is None else self._prior.merged([total])
        scaled = self._scaled(rewards.astype(np.float64), total)
        scaled[bootstraps] = 0.0
        kind = rewards.dtype if rewards.dtype.kind == "f" else np.float64
        columns[Columns.REWARDS] = column.with_data(scaled.astype(kind, copy=False))
        return columns

    def _warn_of_overlap(self, id_: str) -> None:
        if self._warned_of_overlap:
            return
        self._warned_of_overlap = True
        warning = EpibatchWarning(
            "NormalizeReward",
            expected="chunks of one id that follow one another; the discounted returns are kept by it",
            found=f"chunks of {id_!r} that overlap, so that steps count twice or the returns of two episodes mix",
            do="if these are parts of one episode, as of a replay buffer, nothing, or pass gamma=None; if they are "
            "several episodes, give each an id_ of its own",
        )
        warnings.warn(warning, stacklevel=2)

    def _scaled(self, rewards: Floats, moments: Any) -> Floats:
        """The rewards, shifted, divided and limited in place."""
        deviation = float(moments.std()[0])
        if moments and self.center:
            rewards -= moments.mean[0]
        if deviation:
            rewards /= math.sqrt(deviation**2 + self.epsilon)
        return rewards if self.clip is None else rewards.clip(-self.clip, self.clip, out=rewards)

    def _counted(self, rewards: Floats, group: ChunkGroup, statistics: _Seen) -> Floats:
        """Return the values to count: the rewards, or the discounted returns up to each step."""
        if self.gamma is None:
            return rewards
        lengths = group.lengths
        filled = np.flatnonzero(lengths)
        starts, ends = (np.cumsum(lengths) - lengths)[filled], np.cumsum(lengths)[filled] - 1
        rows = rewards.copy()
        others = group.shared_data.get(_OTHERS, {}).pop(group.module_id, ())
        order: list[Any] = sorted(
            [*range(len(filled)), *others],
            key=lambda each: each.started if isinstance(each, _OtherChunk) else int(group.reader.starts[filled[each]]),
        )
        before, ids = np.zeros(len(filled)), episode_ids(group.episodes)
        running = dict(statistics.running)
        done: Any = group.reader.ends.any(0)
        reached: dict[str, int] = {}
        for i in order:  # chunks of one episode in their order
            if isinstance(i, _OtherChunk):
                id_, started, ended, stop = i.id_, i.started, i.ended, i.started + i.length
                step, total = running.get(id_, (-1, 0.0))
                last = i.total + self.gamma**i.length * (total if i.is_continued and step == started else i.before)
            else:
                chunk, values = int(filled[i]), rewards[starts[i] : ends[i] + 1]
                id_, started, ended = str(ids[chunk]), int(group.reader.starts[chunk]), bool(done[chunk])
                before[i] = self._before(chunk, started, id_, running, group)
                last, stop = self._last(values) + self.gamma ** len(values) * before[i], started + len(values)
            running.pop(id_, None)
            if started < reached.get(id_, 0):
                self._warn_of_overlap(id_)
            if not ended:
                running[id_] = (stop, float(last))
                reached[id_] = stop
        statistics.running = dict(list(running.items())[-_MOST:])
        rows[starts] += self.gamma * before
        returns: npt.NDArray[np.float64] = discounted_sums(rows[::-1], lengths[::-1], self.gamma)[::-1]
        return returns

    def _before(
        self, chunk: int, started: int, id_: str, running: Mapping[str, tuple[int, float]], group: ChunkGroup
    ) -> float:
        """The discounted return of a chunk's episode right before it."""
        if not started:
            return 0.0
        lookback = group.reader.lookbacks[chunk]
        step, total = running.get(id_, (-1, 0.0))
        if step == started and lookback < started:
            return total
        if not lookback:
            return 0.0
        steps = np.arange(-min(lookback, started), 0)
        rewards = np.asarray(group.reader.at(Columns.REWARDS, np.full_like(steps, chunk), steps), np.float64)
        return float(discounted_sums(rewards[::-1], [len(rewards)], self.gamma or 0.0)[0])

    # -- statistics --------------------------------------------------------------------------------

    def nothing_known(self) -> _Seen:
        """No rewards seen."""
        return _Seen(SharedMoments.nothing(_SHAPES), {})

    def from_state(self, state: Any, where: str) -> _Seen:
        """Statistics of one module out of a state."""
        running = state.get("running") if isinstance(state, Mapping) else None
        if not isinstance(running, Mapping):
            raise StateError(
                where,
                expected="moments, and `running`: the discounted returns of episodes that go on",
                found=repr(state),
                do="pass what get_state or merge_states gave",
            )
        moments = SharedMoments.from_state(dict(state), where)
        moments.check(_SHAPES, where)
        return _Seen(moments, {str(id_): (int(step), float(total)) for id_, (step, total) in running.items()})

    def merged(self, states: list[Any], where: str) -> dict[str, Any]:
        """One state of several copies."""
        running: dict[str, list[Any]] = {}
        for state in states:
            for id_, entry in state["running"].items():
                if id_ not in running or entry[0] > running[id_][0]:  # other copies know an earlier step
                    running.pop(id_, None)
                    running[id_] = list(entry)
        return {**merge_shared_moments(states, where), "running": running}


def _check(rewards: Any, counts: Any, group: ChunkGroup) -> None:
    if rewards.ndim != 1 or rewards.dtype.kind not in "fiub":
        found, do = f"{rewards.dtype} of shape {rewards.shape[1:]}", "put LineariseRewards before it"
        raise ColumnError("NormalizeReward", expected="one number per step as rewards", found=found, do=do)
    odd = ~(np.abs(rewards) <= LARGEST)
    if odd.any():
        where, value = _first(odd, rewards, counts, group)
        raise ColumnError(
            where,
            expected=f"finite rewards of at most {LARGEST:g}; others would spoil the statistics for good",
            found=str(value),
            do="correct the environment, or replace such values with a piece before this one",
        )


def _first(odd: Any, rewards: Any, counts: Any, group: ChunkGroup) -> tuple[str, Any]:
    """Return where the first odd reward is, and the reward."""
    row = int(odd.argmax())
    chunk = int(np.searchsorted(np.cumsum(counts), row, side="right"))
    return f"NormalizeReward, {group.describe(chunk)}", rewards[row]
