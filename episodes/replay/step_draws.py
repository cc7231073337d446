"""Drawing of parts of episodes, from all stores that hold steps."""

from __future__ import annotations

from functools import partial

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ReplayError
from epibatch.core.restoring import restore_on_error

from ..store import Flags, Ints
from .held_steps import HeldSteps
from .sampled_episodes import SampledEpisodes
from .sampled_transitions import SampledTransitions

_TRIES = 8
"""Rounds of drawing before all steps are looked at."""


class StepDraws:
    """Draws parts of episodes, each from a step that is drawn uniformly.

    A replay buffer draws so, and so does a data set.

    Args:
        lanes: The steps, in the lanes of a buffer, say.
        generator: Gives the numbers of the draws.
        batch_size_B: Items of a draw that says nothing else.
        batch_length_T: Steps of an item, fewer where its episode ends before; 0 or 1 for single steps.
        keep_infos: True if the steps have infos.
        owner: What draws, for messages; default: the class.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> from epibatch.episodes.replay import EpisodeReplayBuffer
        >>> buffer = EpisodeReplayBuffer(capacity=100)
        >>> buffer.add(SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 3.0],
        ...                               terminated=True, len_lookback_buffer=0))
        >>> len(StepDraws(buffer.lanes, np.random.default_rng(0)).sample(4))
        4
    """

    def __init__(
        self,
        lanes: HeldSteps,
        generator: np.random.Generator,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        keep_infos: bool = False,
        owner: str | None = None,
    ) -> None:
        self.lanes, self.keep_infos = lanes, keep_infos
        self.batch_size_B, self.batch_length_T = batch_size_B, batch_length_T
        self._rng, self._where = generator, f"{owner or type(self).__name__}.sample"
        self._sampled = 0
        self._given = 0  # the number of the first step that no draw of new steps has given

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        gamma: float = 0.99,
        beta: float = 0.0,
        include_infos: bool = False,
        include_extra_model_outputs: bool = True,
        sample_episodes: bool = True,
        to_numpy: bool = True,
        lookback: int = 0,
        min_batch_length_T: int = 0,
        burn_in: int = 0,
        max_age: int | None = None,
        only_new: bool = False,
    ) -> SampledEpisodes:
        """Draw parts of episodes, each from a step drawn uniformly, with replacement.

        Args:
            num_items: How many; default: `batch_size_B`.
            batch_size_B: The same, in RLlib's word.
            batch_length_T: Steps of each, fewer where its episode ends before; default: 1 with `n_step`, else the
                buffer's.
            n_step: Return one-step episodes that stand for so many steps, with columns `n_step`, `discounts` and
                `weights`; see `SampledTransitions`. A pair (low, high): a number from low to high, drawn for each.
                Leave it out if the pipeline has `NStepReturns`. Sequences take 1 only.
            gamma: Discount of the rewards of `n_step` steps, in [0, 1].
            beta: Exponent of the weights that undo the preference of a prioritised draw, in the batch's column
                `weights`: 0 leaves it as it is, 1 undoes it. The highest weight of a draw is 1. Uniform draws prefer
                nothing.
            include_infos: True: the episodes have their infos, if the buffer was made with `keep_infos=True`.
            include_extra_model_outputs: False: the episodes have no model outputs.
            sample_episodes: True. RLlib's False returns arrays without a pipeline.
            to_numpy: Accepted for ported code: columns are arrays anyway.
            lookback: Steps that each needs before its start, if the episode had them: what pieces read.
            min_batch_length_T: Steps that each has at least.
            burn_in: Steps before these that each has too, as far as its episode goes back, to compute the state of a
                recurrent module (Kapturowski et al. 2019, R2D2). Parts that would be shorter than `batch_length_T`,
                since their episode ends, begin earlier then.
            max_age: Draw only of so many steps that were added last; None: of all.
            only_new: True: give each step once, in the order of adding, without drawing. Parts begin where the one
                before ends; `num_items` is the highest number of parts, None: all. Those that were overwritten before
                are left out.

        Raises:
            ReplayError: an argument out of its range; no step of the buffer is such a start; longer parts than a lane
                of the buffer holds; or no new step.
        """
        check_least(self._where, 1, num_items=num_items, batch_size_B=batch_size_B, max_age=max_age)
        check_least(
            self._where,
            0,
            batch_length_T=batch_length_T,
            lookback=lookback,
            min_batch_length_T=min_batch_length_T,
            burn_in=burn_in,
        )
        length = max(batch_length_T or (self.batch_length_T if n_step is None else 1), 1)
        bounds = n_step if isinstance(n_step, (tuple, list)) else [1 if n_step is None else n_step] * 2
        if len(bounds) != 2:
            raise self._refusal("n_step", "a number or a pair of numbers", str(n_step), "pass (low, high)")
        low, high = bounds
        check_least(self._where, 1, n_step=low)
        check_least(self._where, low, n_step=high)
        if num_items is not None and batch_size_B is not None:
            raise self._refusal("num_items", "one number of items", "batch_size_B too", "leave one out")
        if not sample_episodes:
            raise self._refusal(
                "sample_episodes", "True", "False", "give the episodes to a learner pipeline for arrays"
            )
        if length > 1 and high > 1:
            raise self._refusal("n_step", "1 for sequences", str(n_step), "put NStepReturns into the pipeline instead")
        if not 0 <= gamma <= 1:
            raise self._refusal("gamma", "a number in [0, 1]", repr(gamma), "pass the discount of the algorithm")
        if not beta >= 0:
            raise self._refusal("beta", "a number of at least 0", repr(beta), "pass 0 to leave the draw as it is")
        if include_infos and not self.keep_infos:
            raise self._refusal("include_infos", "a buffer that keeps infos", "none", "make it with keep_infos=True")
        if only_new and (max_age is not None or min_batch_length_T > 1 or burn_in or lookback or beta):
            others = "no max_age, min_batch_length_T, burn_in, lookback or beta"
            raise self._refusal("only_new", others, "one of them", "leave it out")
        self._check_length(max(length, min_batch_length_T))
        count = num_items or batch_size_B
        lengths: Ints | int = length
        if only_new:
            places, lengths = self._new(count, length)
        else:
            generator = self._rng.bit_generator
            with restore_on_error(partial(setattr, generator, "state", generator.state)):
                places = self._draw(count or self.batch_size_B, lookback, min_batch_length_T, max_age)
        hidden = set() if include_extra_model_outputs else set(self.lanes.outputs)
        if not include_infos:
            hidden.add(Columns.INFOS)
        if n_step is None or length > 1:
            drawn = SampledEpisodes(self.lanes, places, lengths, hidden, burn_in, lookback)
        else:
            steps = low if low == high else self._rng.integers(low, high + 1, len(places))
            drawn = SampledTransitions(self.lanes, places, steps, gamma, lookback, hidden)
        self._sampled += int(drawn.lengths.sum())
        self._weigh(drawn, beta)
        return drawn

    def _refusal(self, argument: str, expected: str, found: str, do: str) -> ReplayError:
        return ReplayError(f"{self._where}, {argument}", expected=expected, found=found, do=do)

    def _check_length(self, steps: int) -> None:
        """Refuse parts that are longer than any that may be held; for subclasses."""

    def _weigh(self, drawn: SampledEpisodes, beta: float) -> None:
        """Give a draw its weights; for subclasses that prefer some steps."""

    def _new(self, count: int | None, length: int) -> tuple[Ints, Ints]:
        """The starts and lengths of parts of the steps that were not given yet, at most so many."""
        places = self._newest(self.lanes.num_steps_added - self._given)
        numbers = self.lanes.numbers_of(places)
        fresh = np.flatnonzero(numbers >= self._given)
        if not len(fresh):
            raise ReplayError(
                self._where,
                expected="steps that were not given yet",
                found=f"none among {self.lanes.num_steps} steps",
                do="add episodes before the next draw with only_new=True",
            )
        order = fresh[np.argsort(numbers[fresh])]
        places, numbers = places[order], numbers[order]
        begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        within = np.arange(len(places)) - np.repeat(begins, np.diff(begins, append=len(places)))
        starts = np.flatnonzero(within % length == 0)
        stops = np.append(starts[1:], len(places))[:count]
        self._given = int(numbers[stops[-1] - 1]) + 1
        return places[starts[:count]], stops - starts[:count]

    def _newest(self, num_steps: int) -> Ints:
        """Places among which the newest steps are; each row that is no step comes after a step."""
        return self.lanes.newest(2 * num_steps + 1)

    def parts_at(self, places: Ints, batch_length_T: int | None = None) -> SampledEpisodes:
        """Draw the parts of episodes that begin at some places: int64 [C]; the length is as for `sample`."""
        length = self.batch_length_T if batch_length_T is None else batch_length_T
        drawn = SampledEpisodes(self.lanes, places, max(length, 1))
        self._sampled += int(drawn.lengths.sum())
        return drawn

    def may_begin(self, places: Ints, lookback: int = 0, min_batch_length_T: int = 1, oldest: int = 0) -> Flags:
        """A mask of the places that a draw may begin with, see `sample`, of steps from a number on: bool [R]."""
        lanes = self.lanes
        fits = lanes.numbers_of(places) >= oldest
        if lookback or min_batch_length_T > 1:
            life = lanes.lives_of(places)
            fits &= places - life.first >= np.minimum(lookback, life.t)
            fits &= life.last - places >= min_batch_length_T
        return fits

    def _candidates(self, count: int) -> Ints:
        """Draw so many places, with replacement; those that are no steps are drawn again."""
        return self.lanes.places((self._rng.random(count) * self.lanes.num_rows).astype(np.int64))

    def _among(self, places: Ints, count: int) -> Ints:
        """Draw so many of these places."""
        return places[self._rng.integers(0, len(places), count)]

    def _draw(self, count: int, lookback: int, shortest: int, max_age: int | None) -> Ints:
        lanes = self.lanes
        if not self.lanes.num_steps:
            raise ReplayError(
                self._where, expected="steps to draw from", found="an empty buffer", do="add episodes before"
            )
        oldest = 0 if max_age is None else max(lanes.num_steps_added - max_age, 0)
        found: list[Ints] = []
        missing = count
        for _ in range(0 if oldest else _TRIES):
            if not missing:
                break
            places = self._candidates(missing + missing // 8 + 8)
            found.append(places[self.may_begin(places, lookback, shortest, oldest)][:missing])
            missing -= len(found[-1])
        if missing:  # there are few such steps, or none
            every = self._newest(lanes.num_steps_added - oldest)
            every = every[self.may_begin(every, lookback, shortest, oldest)]
            if not len(every):
                raise ReplayError(
                    self._where,
                    expected=f"a step with {lookback} steps before it or since its episode's start, and "
                    f"{max(shortest, 1)} of its episode from it on",
                    found=f"none among {self.lanes.num_steps} steps",
                    do="add episodes, or ask for shorter parts",
                )
            found.append(self._among(every, missing))
        return np.concatenate(found)


def check_least(where: str, least: int, **numbers: int | None) -> None:
    """Refuse numbers below a bound, and what is no whole number; None is allowed.

    Args:
        where: What they are arguments of, for the message.
        least: The bound.
        **numbers: Their names and values.

    Raises:
        ReplayError: one is refused.
    """
    for name, value in numbers.items():
        if value is not None and not (isinstance(value, (int, np.integer)) and value >= least):
            raise ReplayError(
                f"{where}, {name}", expected=f"a whole number of at least {least}", found=repr(value), do="change it"
            )
