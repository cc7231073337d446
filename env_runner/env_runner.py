"""The base class of runners: sample(), resets and seeds, failures, metrics, state."""

from __future__ import annotations

import contextlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import EnvironmentContractError, EpibatchWarning, RunnerArgumentError, RunnerError
from epibatch.core.restoring import check_count
from epibatch.core.runtime import evaluation_mode
from epibatch.core.structs import map_struct

from ..episodes.multi_agent_episode import MultiAgentEpisode
from ..episodes.single_agent_episode import SingleAgentEpisode
from .acting.acting_modules import explores
from .callbacks import EpisodeCallbacks
from .envs.env_checks import is_of_environment
from .envs.vector_envs import checked_mask
from .runner_state import CarriedOver, Pending, Running
from .vector_runner import VectorRunner

if TYPE_CHECKING:
    from .runner_config import AnyRunnerConfig

_PATIENCE, _PATIENCE_OF_ONE = 100_000, 5_000
"""Steps of all environments, and of each, without the end of an episode before `sample()` warns."""

SKIP_ENV_STEP = "skip_env_step"
"""In `shared_data` of an env-to-module call: bool [episodes], whose environments skip the next step; or a function of
a list of episodes that returns this, which is asked at each step until the environment steps."""

_OF_EPISODES = (Columns.INFOS, Columns.T, Columns.EPS_ID, Columns.AGENT_ID, "env_t")
"""Columns that arrays by time and environment leave out."""

EpisodeT = TypeVar("EpisodeT", bound=SingleAgentEpisode | MultiAgentEpisode)


class EnvRunner(VectorRunner, Generic[EpisodeT]):
    """Steps N environments with a module between two connector pipelines, and records episodes.

    A subclass makes the parts and implements the step. Its recorder and stepper have the methods of
    `VectorRecorder` and `EnvStepper` that are called here. Methods that are named like a runner's events, such as
    `on_episode_step`, are called with the arguments that they have in `Callbacks`.

    Args:
        config: Environment, pipelines and module.
        worker_index: Distinguishes the runners of one algorithm; each has a seed of its own.

    """

    needs_env: ClassVar[bool] = True
    """False if the runner makes episodes without the config's `env`."""

    def __init__(self, *, config: AnyRunnerConfig, worker_index: int = 0, **kwargs: Any) -> None:
        super().__init__(config=config, worker_index=worker_index)
        self._recorder = self._make_recorder()
        self._soft_horizon: int | None = config.horizon if config.soft_horizon else None
        self._patience: float = max(_PATIENCE, _PATIENCE_OF_ONE * self.num_envs)
        self._required_lookback: int | None = 0
        self._carried = CarriedOver[EpisodeT]()
        self._pending = Pending()
        self._callbacks = EpisodeCallbacks(
            self, self._recorder, self._new_episode, lambda *event: self._make_on_episode_callback(*event)
        )
        self._report_environment()

    # -- the parts -----------------------------------------------------------------------------

    @abstractmethod
    def _make_recorder(self) -> Any:
        """Make the recorder of episodes."""

    @abstractmethod
    def _new_episode(self, id_: str | None = None) -> EpisodeT:
        """Make an episode without observations."""

    @property
    def num_edits(self) -> int:
        """Number of edits of the two pipelines that were followed by a step."""
        return self._policy.num_edits

    def pipelines_edited(self) -> None:
        """Count an edit that steps of other runners follow."""
        self._policy.num_edits += 1

    # -- sampling ------------------------------------------------------------------------------

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | str | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> Sequence[EpisodeT]:
        """Step the environments and return the recorded episodes.

        Args:
            num_timesteps: Take at least this many steps over all environments, in whole vector
                steps. Running episodes are cut and continue at the next call.
            num_episodes: Reset, then return exactly this many whole episodes; the next call resets
                again. Without either number the config's `batch_mode` decides. With `keep_running_episodes` the
                running episodes go on in the next call instead, and it only resets if they were cut before. More
                episodes may end in a step than this number; the next call returns these first.
            explore: Whether actions explore: True, or "sample", draws them; False, or "mode", takes the most likely;
                "mean" takes the distribution's mean, and "random" is `random_actions`. Default: the config's. Steps of
                earlier calls stay as they are.
            random_actions: Act at random instead of with the module. Such steps have no model outputs, so
                switching between the two is like `force_reset`. Environments get draws from their action space;
                the stored actions are those of the module that would have given these.
            force_reset: Drop running episodes, and ended ones that earlier calls did not need, and reset first.

        If an environment fails, its error is raised here. The next call first returns the episodes that had ended, also
        those that ended in the failed step. They count towards its number: `sample(num_timesteps=1)` returns them
        without a step. So no more is held back than one call asks for.

        Returns:
            Ended episodes in the order of their ends, then the chunks of running ones.

        Raises:
            RunnerArgumentError: both numbers, or a negative one.
            RunnerError: the runner was stopped, its environment cannot reset single environments, or another call has
                not returned yet: from a callback, or in another thread.
        """
        with self._only_call("sample"):
            return self._sample(num_timesteps, num_episodes, explore, random_actions, force_reset)

    def step(
        self, *, mask: Any = None, explore: bool | str | None = None, random_actions: bool = False
    ) -> Sequence[EpisodeT]:
        """Take one vector step of all environments, or of some, and return the recorded chunks.

        The first call, and one after a failure, resets all environments before. An environment that is left out keeps
        its episode, its observation and the action that the module chose for it.

        Args:
            mask: The environments to step: bool [N]; None: all. Those that a piece asks to skip are left out too.
            explore: Whether actions explore; default: the config's.
            random_actions: As in `sample()`.

        Returns:
            A chunk of one step for each environment that took one, those of ended episodes first, with the terminal
            observation. An environment that the step only reset (autoreset mode NEXT_STEP) has none. After a failed
            call the episodes that had ended come first. Those that `sample(num_episodes=...)` did not need stay for it.

        Raises:
            RunnerError: a mask of another type or shape, a vector environment that cannot step some environments, or
                as `sample()`.
        """
        with self._only_call("step"):
            mask = self._checked_mask(mask, "step")
            return self._sample(1, None, explore, random_actions, False, partial(self._step, mask=mask))

    def _roll(
        self,
        max_steps: int,
        breaks: tuple[bool, bool],
        explore: bool | str | None,
        random_actions: bool,
        first_have_ended: Callable[[int], bool],
    ) -> None:
        """Reset, and take vector steps for `rollout`; the next call resets again.

        Args:
            max_steps: Vector steps, at most.
            breaks: Whether to stop after the first end, and when each environment's first episode has ended.
            explore: As for `sample`.
            random_actions: As for `sample`.
            first_have_ended: Called after the reset and each step with the number of steps so far. It returns True if
                each environment's first episode has ended.
        """
        if not is_amount(max_steps) or not max_steps or all(breaks):
            raise RunnerArgumentError(
                "rollout(...)",
                expected="max_steps, an int of at least 1, and at most one way to break",
                found=f"max_steps={max_steps!r}, (break_when_any_done, break_when_all_done)={breaks!r}",
                do="leave one of them out",
            )
        kind: Any = explores(explore, self.config.explore)
        random_actions = random_actions or kind == "random"
        with self._only_call("rollout"), evaluation_mode(self.module):
            self._restarts.begin_call()
            self._running = Running.NONE
            self._reset(kind)
            first_have_ended(0)
            for step in range(1, max_steps + 1):
                ended, all_ended = self._step(kind, random_actions), first_have_ended(step)
                if (breaks[0] and ended) or (breaks[1] and all_ended):
                    break
            self._running = Running.NONE

    def reset(self, *, mask: Any = None, explore: bool | str | None = None) -> None:
        """Reset all environments, or some; their running episodes are dropped, and those of the others go on.

        Args:
            mask: The environments to reset: bool [N]; None: all. Before the first step all are reset.
            explore: What the env-to-module pipeline gets; default: the config's.

        Raises:
            RunnerError: a mask of another type or shape, a vector environment that cannot reset some environments, or
                as `sample()`.
        """
        with self._only_call("reset"):
            mask = self._checked_mask(mask, "reset")
            kind: Any = explores(explore, self.config.explore)
            self._restarts.begin_call()
            with evaluation_mode(self.module):
                if mask is None or self._running is Running.NONE:
                    self._running = Running.NONE  # also if the reset fails
                    self._reset(kind)
                elif mask.any():
                    self._reset_some(mask, np.flatnonzero(mask).tolist(), kind)

    def _checked_mask(self, mask: Any, call: str) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Return a mask that leaves out an environment; None if there is none."""
        if mask is None:
            return None
        checked = checked_mask(mask, self.num_envs, f"{type(self).__name__}.{call}")
        if checked.all():
            return None
        self._stepper.check_masks(call)
        return checked

    def _sample(
        self,
        num_timesteps: int | None,
        num_episodes: int | None,
        explore: bool | str | None,
        random_actions: bool,
        force_reset: bool,
        step: Callable[[bool, bool], int] | None = None,
    ) -> Sequence[EpisodeT]:
        """Return episodes as `sample()` does; with `step`, which is one step, in place of `num_timesteps` of them."""
        num_timesteps, num_episodes = self._amounts(num_timesteps, num_episodes)
        kind: Any = explores(explore, self.config.explore)
        random_actions = random_actions or kind == "random"
        self._restarts.begin_call()
        if num_timesteps == 0 or num_episodes == 0:
            return []
        goes_on = num_episodes is None or (self.config.keep_running_episodes and self._running is Running.WHOLE)
        begins_again = force_reset or random_actions != self._policy.is_random
        if begins_again and not self._carried.of_failure:
            self._carried.episodes = []
        if begins_again or not goes_on:
            self._running = Running.NONE
        self._policy.is_random = random_actions
        earlier, left, missing = self._split_carried(num_timesteps, num_episodes, is_step=step is not None)
        episodes: Sequence[EpisodeT] = []
        if missing > 0:
            with evaluation_mode(self.module):
                if self._running is Running.NONE:
                    self._reset(kind)
                if num_episodes is not None:
                    episodes, surplus = self._sample_episodes(missing, kind, random_actions)
                    left = [*left, *surplus]
                else:
                    if step is None:
                        self._take_steps(missing, kind, random_actions)
                    else:
                        step(kind, random_actions)
                    if self._running is Running.WHOLE:  # a callback may have asked for a reset
                        self._running = Running.CUT
                    episodes = self._harvest()
        if earlier:
            episodes = [*earlier, *episodes]
        self._carry([*episodes, *left] if left else episodes)  # until callbacks have had them
        partial: set[str] = self._recorder.partial
        self._carried.partial |= partial
        self._callbacks.sample_end(episodes)
        self._carried = CarriedOver(left, partial=self._carried.partial if left else partial)
        return episodes

    def _amounts(self, num_timesteps: Any, num_episodes: Any) -> tuple[int | None, int | None]:
        """Return the number of steps or of episodes to sample; without either the config's `batch_mode` decides."""
        check_amounts(num_timesteps, num_episodes)
        if num_timesteps is not None or num_episodes is not None:
            return num_timesteps, num_episodes
        if self.config.batch_mode == "complete_episodes":
            return None, self.num_envs
        return self.config.get_rollout_fragment_length(self.worker_index) * self.num_envs, None

    def _split_carried(
        self, num_timesteps: int | None, num_episodes: int | None, *, is_step: bool
    ) -> tuple[Sequence[EpisodeT], Sequence[EpisodeT], int]:
        """Split the episodes of earlier calls into those to return and to keep; return the number missing."""
        carried = self._carried.episodes
        if is_step:
            return (carried, [], 1) if self._carried.of_failure else ([], carried, 1)
        if num_episodes is None:
            return carried, [], (num_timesteps or 0) - (self._steps_of(carried) if carried else 0)
        complete = [episode for episode in carried if episode.id_ not in self._carried.partial][:num_episodes]
        ids = {id(episode) for episode in complete}
        return complete, [episode for episode in carried if id(episode) not in ids], num_episodes - len(complete)

    def _steps_of(self, episodes: Sequence[Any]) -> int:
        """Return the steps of episodes that `num_timesteps` counts."""
        return sum(len(episode) for episode in episodes)

    def _take_steps(self, num_timesteps: int, explore: bool, random_actions: bool) -> None:
        goal = self._steps_counted() + num_timesteps
        self._recorder.reserve(-(-num_timesteps // self.num_envs) + 8)
        while self._steps_counted() < goal:
            self._step(explore, random_actions)

    def _sample_episodes(
        self, num_episodes: int, explore: bool, random_actions: bool
    ) -> tuple[Sequence[EpisodeT], Sequence[EpisodeT]]:
        """Return so many whole episodes, and those that the next call is to return."""
        ended, last = 0, self._metrics.steps
        while ended < num_episodes:
            new = self._step(explore, random_actions)
            if new:
                ended, last = ended + new, self._metrics.steps
            else:
                self.warn_if_endless(self._metrics.steps - last)
        if not self.config.keep_running_episodes:
            self._running = Running.NONE
        return self._harvest_ended(num_episodes)

    def warn_if_endless(self, steps: int) -> None:
        """Warn, once, if very many steps passed without the end of an episode.

        Args:
            steps: Environment steps since the last end, over all environments.
        """
        if steps < self._patience:
            return
        self._patience = math.inf
        warning = EpibatchWarning(
            f"{type(self).__name__}.sample, complete episodes",
            expected="episodes that end",
            found=f"none that ended in the last {steps:,} steps of {self.num_envs} environments",
            do="wait if episodes are this long; or truncate them, env_runners(horizon=...), or cut them, "
            "batch_mode='truncate_episodes'",
        )
        warnings.warn(warning, stacklevel=5)

    def _steps_counted(self) -> int:
        """Return the steps so far that `num_timesteps` counts."""
        return self._metrics.steps

    @abstractmethod
    def _harvest(self) -> Sequence[EpisodeT]:
        """Return ended episodes and chunks of running ones, which continue."""

    @abstractmethod
    def _harvest_ended(self, count: int) -> tuple[Sequence[EpisodeT], Sequence[EpisodeT]]:
        """Return the first `count` ended episodes, and the others if running ones go on; else drop these."""

    @property
    def lookback(self) -> int:
        """Steps that chunks keep from before their start."""
        if self._required_lookback is None:
            history: int = self._recorder.history
            return history
        read = (pipeline.lookback_needed for pipeline in self.pipelines.values())
        return int(max(self.config.episode_lookback_horizon, self._required_lookback, *read))

    def require_lookback(self, steps: int | None) -> None:
        """Keep at least this many earlier steps in chunks from now on.

        Args:
            steps: The steps that the learner pipeline reads; None: not known yet, so keep all.
        """
        self._required_lookback = steps

    def _reset(self, explore: bool) -> None:
        if self._stepper.broken:
            self._remake_env()
            self._report_environment()
        self._callbacks.before_reset(range(self.num_envs))
        try:
            observations, infos = self._stepper.reset(self._reset_seeds.next(self._stepper.num_seeds))
        except Exception as error:
            observations, infos = self._restart_all(error)
        self._recorder.reset(observations, infos)
        self._reset_seeds.used()
        self._metrics.forget()
        self._pending.chosen = self._pending.skips = None
        self._pending.conditions = {}
        self._run_env_to_module(explore)
        self._callbacks.after_reset(range(self.num_envs))
        self._running = Running.WHOLE

    def _reset_some(self, mask: np.ndarray[Any, np.dtype[np.bool_]], envs: list[int], explore: bool) -> None:
        """Reset some environments; actions for the observations of the others are chosen before."""
        try:
            self._note_skips()
            if self._pending.skips is not None:
                self._pending.skips &= ~mask
            for env in envs:
                self._pending.conditions.pop(env, None)
            self._choose_actions(explore, self._policy.is_random, kept=np.flatnonzero(~mask).tolist())
            self._callbacks.before_reset(envs)
            observations, infos = self._stepper.reset(None, mask)
            self._recorder.reset(observations, infos, mask=mask)
            self._metrics.forget(envs)
            self._run_env_to_module(explore, envs)
            self._callbacks.after_reset(envs)
        except BaseException:
            self._rescue()
            raise

    def _remake_env(self) -> None:
        """Replace interrupted worker processes; those of a seeded runner are seeded again."""
        with contextlib.suppress(Exception):  # what is broken may not close either
            self._stepper.close()
        self.env = self.make_env()
        seconds, self._stepper = self._stepper.seconds, self._make_stepper()
        self._stepper.seconds = seconds
        self._reset_seeds.draw_if_seeded()

    def _restart_all(self, error: Exception) -> tuple[Any, Any]:
        """Make a vector environment again that failed as a whole; return observations and infos of its reset.

        Raises:
            Exception: `error`, if single environments fail and are made again on their own, or none is.
        """

        def make(_: int | None) -> tuple[Any, Any]:
            self._remake_env()
            observations, infos = self._stepper.reset(self._reset_seeds.next(self._stepper.num_seeds))
            self._reset_seeds.used()
            return observations, infos

        if self._stepper.restarts_one or not (is_of_environment(error) or isinstance(error, EnvironmentContractError)):
            raise error
        result = self._restarts.restart(None, error, make)
        self._report_environment()
        return result

    def _report_environment(self) -> None:
        """Report new environments; if a callback raises, they are closed, and the next reset makes others."""
        try:
            self._show_environment()
            self._callbacks.environment_created()
        except BaseException:
            self._stepper.close()
            self._stepper.interrupted()
            raise

    @abstractmethod
    def _run_env_to_module(self, explore: bool, envs: list[int] | None = None) -> None:
        """Run the env-to-module pipeline on the newest observations of all environments, or of those that have one."""

    @abstractmethod
    def _choose_actions(self, explore: bool, random_actions: bool, kept: Sequence[int] = ()) -> Any:
        """Return the actions for the newest observations, and those chosen before where no step was taken since.

        Args:
            explore: Whether actions explore.
            random_actions: Choose at random.
            kept: Environments that are not stepped now, and keep their actions for a later step.
        """

    def _observe_through_pipeline(
        self, episodes: Sequence[EpisodeT], explore: bool, shared: dict[str, Any]
    ) -> dict[str, Any]:
        """Run the env-to-module pipeline on the episodes' newest observations; return its batch."""
        batch: dict[str, Any] = self._env_to_module(
            rl_module=self.module,
            batch={},
            episodes=episodes,
            explore=explore,
            shared_data=shared,
            metrics=self._metrics.logged,
        )
        self._pending.edits = self._env_to_module.num_edits
        return batch

    def _step(
        self, explore: bool, random_actions: bool, mask: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    ) -> int:
        """Take one vector step, of all environments or some; return the number of episodes that ended."""
        pending = self._pending
        edits = pending.edits, self._module_to_env.num_edits
        if edits != self._policy.edits:
            self._policy.edited(edits)
        try:
            if SKIP_ENV_STEP in pending.shared:
                self._note_skips()
            if pending.conditions:
                self._ask_conditions(mask)
            if pending.skips is not None:
                skips, pending.skips = pending.skips, None if mask is None else pending.skips & ~mask
                if skips.any():
                    mask = ~skips if mask is None else mask & ~skips
            if mask is not None and not mask.any():
                return 0
            return self._take_step(explore, random_actions, mask)
        except BaseException:  # Ctrl-C too: an interrupted step must not be recorded
            self._rescue()
            raise

    def _note_skips(self) -> None:
        """Add the environments that pieces asked to skip in the newest call to those not left out yet."""
        pending = self._pending
        skip = pending.shared.pop(SKIP_ENV_STEP, None)
        if skip is None:
            return
        envs = list(range(self.num_envs)) if pending.envs is None else pending.envs
        if callable(skip):
            pending.conditions.update(dict.fromkeys(envs, skip))
        else:
            self._skip(envs, skip)

    def _skip(self, envs: Sequence[int], skip: Any) -> None:
        """Add some of these environments to those not left out yet."""
        asked = np.zeros(self.num_envs, np.bool_)
        do = "write one for each episode of the piece's call: True for those whose environments skip the next step"
        asked[envs] = checked_mask(skip, len(envs), f"shared_data[{SKIP_ENV_STEP!r}], written by a piece", do)
        asked[self._recorder.waiting] = False  # their episodes have ended: a reset is not skipped
        skips = self._pending.skips
        self._pending.skips = asked if skips is None else skips | asked

    def _ask_conditions(self, mask: np.ndarray[Any, np.dtype[np.bool_]] | None) -> None:
        """Ask of each environment that is to step whether it skips this one; those that do are asked again.

        Raises:
            RunnerError: all have skipped so many steps that the call might never return.
        """
        pending, asked = self._pending, self._pending.conditions
        asked = {env: condition for env, condition in asked.items() if mask is None or mask[env]}
        for condition in {id(condition): condition for condition in asked.values()}.values():
            envs = [env for env, other in asked.items() if other is condition]
            self._skip(envs, condition([self._recorder.episodes[env] for env in envs]))
        skips = pending.skips
        for env in asked:
            if skips is None or not skips[env]:
                del pending.conditions[env]
        pending.skipped = pending.skipped + 1 if skips is not None and skips.all() else 0
        if pending.skipped > _PATIENCE:
            pending.conditions.clear()
            raise RunnerError(
                f"shared_data[{SKIP_ENV_STEP!r}], a function that a piece wrote",
                expected="an environment that steps",
                found=f"all {self.num_envs} environments skipped, {_PATIENCE:,} vector steps in a row",
                do="let the function return False some time: the episodes do not change while it is asked",
            )

    @abstractmethod
    def _take_step(self, explore: bool, random_actions: bool, mask: np.ndarray[Any, np.dtype[np.bool_]] | None) -> int:
        """Act, step the environments, record, and run the env-to-module pipeline; return how many episodes ended."""

    @abstractmethod
    def _observe_ended(self, ended: Sequence[Any], explore: bool) -> None:
        """Run the env-to-module pipeline on the terminal observations of chunks that ended."""

    def _fail(self, failure: Exception, ended: Sequence[Any], cut: Sequence[Any], explore: bool) -> NoReturn:
        """Report chunks that ended to pieces and callbacks, then raise the environment's error again."""
        others = {*range(self.num_envs)}.difference(chunk.env for chunk in ended)  # the next call resets them
        try:
            self._observe_ended(ended, explore)
            restarted = {chunk.env for chunk in cut}
            self._callbacks.stepped(ended, (), begun=False, failed=others, cut=cut, restarted=restarted)
        finally:
            raise failure

    def _make_on_episode_callback(self, which: str, idx: int, episodes: Any) -> None:
        """Call the callbacks of an event of the episode at `idx`; RLlib's name."""
        self._callbacks.make(which, idx, episodes)

    def _rescue(self) -> None:
        """Keep ended episodes for the next call, which will reset."""
        self._running = Running.NONE
        self._stepper.interrupted()
        self._carry([*self._carried.episodes, *self._recorder.abort()])

    def _carry(self, episodes: Sequence[EpisodeT]) -> None:
        """Keep episodes for the next call."""
        self._carried.episodes, self._carried.of_failure = episodes, True

    # -- metrics and state ---------------------------------------------------------------------

    def take_metrics(self) -> dict[str, Any]:
        """Return what was counted and logged since the last metrics as data for `add_metrics` of another runner."""
        seconds, self._stepper.seconds = self._stepper.seconds, 0.0
        return {"sampling": self._metrics.take(), "env_restarts": self._restarts.take(), "env_step_timer": seconds}

    def add_metrics(self, data: dict[str, Any]) -> None:
        """Count what `take_metrics` of another runner gave, as if it were this runner's.

        Raises:
            ConfigError: the runners log a key with other options; all but what they logged is counted.
        """
        self._restarts.count += data["env_restarts"]
        self._stepper.seconds += data["env_step_timer"]
        self._metrics.add_from(data["sampling"])

    def checkpoint_reset(self) -> None:
        super().checkpoint_reset()
        if self.config.keep_running_episodes:
            self._carried.episodes = []  # a restored run does not have those that ended too early for their call either

    def _state_parts(self) -> dict[str, Callable[[], Any]]:
        return {**super()._state_parts(), "required_lookback": lambda: self._required_lookback}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if "reset_seeds" in state:
            self._carried.episodes = []

    def _restore(self, state: dict[str, Any], is_complete: bool) -> None:
        super()._restore(state, is_complete)
        if "required_lookback" in state:
            steps = state["required_lookback"]
            name = "state of a runner, 'required_lookback'"
            self._required_lookback = None if steps is None else check_count(name, steps)

    def catch_up(self, weights: Any, *, weights_seq_no: int, num_edits: int, num_env_steps: int) -> None:
        """Take over weights and counts of the runner that this one samples for in another process.

        Args:
            weights: What the module's `get_state` gave; None: those that it has.
            weights_seq_no: Their sequence number, also if it is lower than before.
            num_edits: Edits of the pipelines so far.
            num_env_steps: Environment steps of all runners over the lifetime, by which exploration is scheduled.
        """
        if weights is not None:
            self.module.set_state(weights)
        self._policy.weights_seq_no, self._policy.num_edits = weights_seq_no, num_edits
        if self._policy.edits not in (None, (self._env_to_module.num_edits, self._module_to_env.num_edits)):
            self._policy.num_edits -= 1  # the step that shows the edit counts it
        self._metrics.continue_from(num_env_steps)

    def replace_parts(self, *, config: Any, pipelines: dict[str, Any], module: Any, spaces: dict[str, Any]) -> None:
        """Go on with another config, pipelines and module; running episodes go on too, as after an edit.

        Args:
            config: From now on the runner's; its environments stay those that it has.
            pipelines: `env_to_module` and `module_to_env`.
            module: The module.
            spaces: Those of the modules, by name; the environments' are left out of account.
        """
        self.config, self.pipelines, self.module = config, pipelines, module
        self._env_to_module, self._module_to_env = pipelines["env_to_module"], pipelines["module_to_env"]
        environments = {name: self.spaces[name] for name in ("__env__", "__env_single__")}
        self.spaces = {**spaces, **environments}
        self._show_environment()

    def _show_environment(self) -> None:
        for pipeline in self.pipelines.values():
            pipeline.on_environment(self.env)


def placed_steps(
    steps: dict[str, Any], places: Sequence[tuple[int, int]], shape: tuple[int, int], time_major: bool
) -> dict[str, Any]:
    """Return flat columns of steps as arrays by time and environment, zero where there is no step, with `mask`.

    Args:
        steps: Columns [R, ...], as of `episodes_to_columns`; nothing if there are none.
        places: The row and the environment of each step, R of them.
        shape: T and N.
        time_major: True for arrays [T, N, ...], False for [N, T, ...].
    """
    if not steps:
        return {}
    rows, envs = zip(*places)

    def placed(leaf: Any) -> Any:
        out = np.zeros((*shape, *leaf.shape[1:]), leaf.dtype)
        out[rows, envs] = leaf
        return out if time_major else out.swapaxes(0, 1)

    columns = {name: map_struct(placed, column) for name, column in steps.items() if name not in _OF_EPISODES}
    return {**columns, "mask": placed(np.ones(len(rows), np.bool_))}


def is_amount(value: object) -> bool:
    """True if a value is a whole number of at least 0."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


def check_amounts(num_timesteps: Any, num_episodes: Any) -> None:
    """Check the two numbers that `EnvRunner.sample` takes.

    Raises:
        RunnerArgumentError: both are given, or one is no whole number of at least 0.
    """
    amounts = {"num_timesteps": num_timesteps, "num_episodes": num_episodes}
    invalid = [n for n in amounts.values() if n is not None and not is_amount(n)]
    if invalid or None not in amounts.values():
        raise RunnerArgumentError(
            "sample(...)",
            expected="one of num_timesteps and num_episodes, an int of at least 0",
            found=", ".join(f"{name}={value}" for name, value in amounts.items()),
            do="leave one of them out",
        )
