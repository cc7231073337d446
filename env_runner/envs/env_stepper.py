"""Steps of a runner's environments: one result for every autoreset mode, and errors that name the environment."""

from __future__ import annotations

import copy
import inspect
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import iterate

from epibatch.core.errors import EnvironmentContractError, EpibatchWarning, RunnerError, add_context
from epibatch.core.random_streams import seed_of
from epibatch.core.structs import flatten, map_struct

from ...episodes.env_infos import ENV_INFOS, infos_by_env
from ...episodes.vector_checks import VectorChecks
from .env_calls import copied_info
from .env_checks import adapter_advice, autoreset_mode, mark_environment, reward_shape
from .env_restarts import EnvRestarts
from .env_workers import CONNECTION_ERRORS
from .tensor_envs import copied, device_of, infos_to_arrays, to_arrays, to_tensor, with_final_obs
from .vector_envs import AsyncEnvs, SyncEnvs, VectorAgentStep, VectorMultiAgentEnv

Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_TAKE_SEEDS = tuple(cls.reset for cls in (SyncEnvs, AsyncEnvs, gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv))
"""Resets of vector environments that take a seed for each environment."""

_TAKE_MASKS = (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv, AsyncEnvs)
"""Vector environments with resets of some environments, in every autoreset mode."""


def _check_others_unchanged(before: Any, after: Any, running: Flags) -> None:
    """Raise if a reset gave other observations of environments that go on.

    Raises:
        EnvironmentContractError: it reset these too.
    """
    for old, new in zip(flatten(before)[0], flatten(after)[0]):
        fits = np.shape(old) == np.shape(new)
        if not fits or not to_arrays((old == new) | ((old != old) & (new != new)))[running].all():  # NaN is NaN
            raise EnvironmentContractError(
                "resetting ended environments",
                expected="that options={'reset_mask': mask} resets only those, and gives the others' "
                "observations as they were",
                found="other observations of running environments: they were reset as well",
                do="heed the mask in the vector environment's reset, or use autoreset mode NEXT_STEP or SAME_STEP",
            )


_OF_INNER_RESETS = frozenset({"final_observation", "terminal_observation"})
_FIVE = "(observation, reward, terminated, truncated, info)"


@dataclass
class VectorStep:
    """Result of one vector step.

    Args:
        observations: The next observations, arrays of shape [N, ...]. For ended environments these are reset
            observations, unless those come a step later.
        rewards: Shape [N].
        terminateds: bool, [N].
        truncateds: bool, [N].
        infos: The step's infos.
        final_observations: Terminal observations, if `observations` hold reset ones instead.
        reset_infos: Infos of a separate reset of the ended environments.
        failure: The error of the reset of ended environments; the step itself is valid.
        failures: Errors of single environments, by their numbers. Their rows are no steps, except where `terminateds`
            or `truncateds` are set: there the reset after the end failed.
        restarted: Environments that failed in a step, but were made and reset again, so their rows of `observations`
            are reset ones. Each has what is to be added to the last info of its episode; None: the episode is dropped.
    """

    observations: Any
    rewards: Any
    terminateds: Any
    truncateds: Any
    infos: dict[str, Any]
    final_observations: Any = None
    reset_infos: dict[str, Any] | None = None
    failure: Exception | None = None
    failures: Mapping[int, Exception] = field(default_factory=dict)
    restarted: Mapping[int, dict[str, Any] | None] = field(default_factory=dict)


class EnvStepper:
    """Adapter of a vector environment; its errors name the environment that failed and the expected return value.

    Args:
        env: A `gymnasium.vector.VectorEnv`.
        name: Its name in error messages.
        restarts: Decides whether an environment that failed is made again.
        steps_of: Returns the steps of an environment's running episode; None: there is none, so it is being reset.
        arrays: True to convert tensors that the environment returns to arrays, and actions to tensors for it.

    Attributes:
        mode: When reset observations come: "next_step", "same_step" or "disabled".
        seconds: Spent in steps so far.
        broken: True if the environment must be made again before the next reset.
        num_seeds: How many seeds a reset takes: N, or 1 where only a single number is known to work.
        restarts_one: True if single environments fail, and can be made again.
        reward_shape: Shape of a reward, () for numbers.
    """

    def __init__(
        self,
        env: Any,
        name: Any,
        *,
        restarts: EnvRestarts,
        steps_of: Callable[[int], int | None],
        arrays: bool = True,
    ) -> None:
        self.env = env
        self._arrays = arrays
        self._device: Any = None  # where the environment's tensors are, if it has some
        self._restarts, self._steps_of = restarts, steps_of
        self.mode = autoreset_mode(env)
        self.seconds = 0.0
        self.broken = False
        self._name = name
        self._warned = False
        self._assumes_mode = self.mode == "next_step" and "autoreset_mode" not in (env.metadata or {})
        self._resetting: Flags | None = None  # with an assumed mode: which ended in the step before
        self._envs = env if isinstance(env, (SyncEnvs, AsyncEnvs)) else None
        if self._envs is not None:
            self._envs.raises = False
        self._at_work: Flags = np.zeros(env.num_envs, np.bool_)
        self._received: Sequence[Any] = ()
        self._takes_seeds = type(env).reset in _TAKE_SEEDS
        self.num_seeds: int = env.num_envs if self._takes_seeds else 1
        self.restarts_one = self._envs is not None
        checks = restarts.enabled and not self.restarts_one
        self.reward_shape = reward_shape(env) if self._envs is None else self._envs.reward_shape
        self._checks = VectorChecks(env.num_envs, env.single_observation_space, self.reward_shape) if checks else None

    def reset(self, seeds: list[int] | None, mask: Flags | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or some.

        Args:
            seeds: As many as `num_seeds`; they also seed the random actions. None leaves the random streams alone.
            mask: The environments to reset: bool, [N]; None: all.
        """
        seed: Any = seeds
        if seeds is not None:
            self.env.action_space.seed(seed_of(np.random.SeedSequence(seeds)))
            seed = seeds if self._takes_seeds else seeds[0] >> 1  # room for seed + i within 31 bits
        self._resetting = None
        try:
            self._wait_for_all()
            result = self.env.reset(seed=seed, **({} if mask is None else {"options": {"reset_mask": mask.copy()}}))
        except BaseException as error:  # Ctrl-C too: worker processes may be in the middle of a call
            self.interrupted()
            if not isinstance(error, Exception):
                raise
            self._raise_explained(error, "reset")
        observations, infos = self._unpacked(result, "reset", 2)
        try:
            return self._restart_failed_resets(observations, infos)
        except BaseException:  # Ctrl-C too
            self.interrupted()
            raise

    def _wait_for_all(self) -> None:
        """Drop the results of steps that were sent."""
        self._received = ()
        while self._at_work.any():
            self._at_work &= ~self.env.recv(self.env.num_envs)[-1]

    def exchange(self, actions: Any, mask: Flags | None, count: int) -> Flags:
        """Send actions to the environments whose processes are not at work, and wait until so many have answered.

        Args:
            actions: Those of all environments.
            mask: The environments that may begin a step: bool, [N]; None: all.
            count: The number to wait for, or all at work if these are fewer.

        Returns:
            The environments that have answered: bool, [N]; the next `step` returns their results.
        """
        started = time.perf_counter()
        answered: Flags
        begins: Flags = self.env.free if mask is None else mask & self.env.free
        try:
            if begins.any():
                self.env.send(actions, begins)
                self._at_work |= begins
            *self._received, answered = self.env.recv(count)
        except Exception as error:
            self._raise_explained(error, "step")
        self._at_work &= ~answered
        self.seconds += time.perf_counter() - started
        return answered

    def _restart_failed_resets(self, observations: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Make the environments again whose reset failed.

        Raises:
            RunnerError: the budget is spent.
        """
        for env, failure in dict(self._envs.failures if self._envs is not None else {}).items():
            observations, infos = self._restart(env, self.explained(failure, "reset", env), infos)
        return observations, infos

    def _restart(self, env: int, error: Exception, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Make an environment again; return all newest observations, and the infos with those of its reset.

        Raises:
            RunnerError: the budget is spent.
        """
        envs: Any = self._envs

        def make(seed: int | None) -> tuple[Any, dict[str, Any]]:
            try:
                result: tuple[Any, dict[str, Any]] = envs.restart(env, seed, infos)
            except Exception as another:
                raise self.explained(another, "reset", env) from another
            return result

        return self._restarts.restart(env, error, make)

    def check_masks(self, call: str) -> None:
        """Check that the vector environment can step, or reset, some of its environments.

        Args:
            call: "reset" or "step".

        Raises:
            RunnerError: it cannot.
        """
        if self._at_work.any():
            expected, do = "answered: gym_env_batch_size leaves some at work", f"{call} all of them"
        elif call == "step" and "mask" not in inspect.signature(self.env.step).parameters:
            expected, do = "step(actions, mask=None)", "use gym_env_vectorize_mode='sync' or 'async'"
        elif call == "reset" and self.mode != "disabled" and not isinstance(self.env.unwrapped, _TAKE_MASKS):
            expected = "one of epibatch or Gymnasium, or one with autoreset mode DISABLED, whose reset takes a mask"
            do = "use one of these"
        else:
            return
        name = type(self.env).__name__
        where = f"environment {self._name!r}, {call} of some environments"
        raise RunnerError(where, expected=f"a vector environment that has {expected}", found=name, do=do)

    def step(self, actions: Any, mask: Flags | None = None) -> VectorStep:
        """Step all environments, or those of a mask, and reset the ended ones if they do not do so themselves."""
        started = time.perf_counter()
        received, self._received = self._received, ()
        if mask is not None and not received:
            self.check_masks("step")
        if self._device is not None:
            actions = map_struct(partial(to_tensor, device=self._device), actions)
        try:
            result = received
            if not received:
                result = self.env.step(actions) if mask is None else self.env.step(actions, mask=mask.copy())
        except Exception as error:
            self._raise_explained(error, "step")
        step = VectorStep(*(result if self._envs is not None else self._unpacked(result, "step", 5)))
        if self._checks is not None:
            self._check(step)
        if self._assumes_mode:
            self._check_mode(step)
        if mask is not None and self._envs is None:
            step.rewards = np.array(step.rewards)
            step.rewards[~mask] = 0
            step.terminateds = np.logical_and(step.terminateds, mask)
            step.truncateds = np.logical_and(step.truncateds, mask)
        if self._envs is not None and self._envs.failures:
            self._restart_failed(step, dict(self._envs.failures), actions)
        if self.mode == "same_step":
            step.final_observations = (step.infos or {}).get("final_obs")
        elif self.mode == "disabled":
            self._reset_ended(step)
        elif step.infos and "final_obs" in step.infos:
            raise self._resets_at_once()
        if step.infos and not self._warned:
            self._warn_of_inner_resets(step)
        self.seconds += time.perf_counter() - started
        return step

    def _check(self, step: VectorStep) -> None:
        """Raise what the recorder would raise about wrong values, as an error of the environment."""
        checks: Any = self._checks
        try:
            checks.observations(step.observations)
            checks.check_step(step.rewards, step.terminateds, step.truncateds)
        except Exception as error:
            raise self.explained(error, "step") from None

    def _restart_failed(self, step: VectorStep, failures: dict[int, Exception], actions: Any) -> None:
        """Make the environments that failed again, as far as the budget reaches."""
        rows = list(iterate(self.env.action_space, actions))
        left, restarted = dict[int, Exception](), dict[int, Any]()
        for env, failure in failures.items():
            if left:  # the call ends with an error, and the next one resets
                left[env] = failure
                continue
            steps = None if step.terminateds[env] or step.truncateds[env] else self._steps_of(env)
            if steps is None:
                error = self.explained(failure, "reset", env)
            else:
                error = self.explained(failure, "step", env, steps, rows[env])
            try:
                step.observations, step.infos = self._restart(env, error, step.infos)
                if steps is not None:
                    restarted[env] = self._restarts.info_of(error)
            except Exception as spent:
                left[env] = spent
        step.failures, step.restarted = left, restarted

    def _reset_ended(self, step: VectorStep) -> None:
        done = np.logical_or(to_arrays(step.terminateds), to_arrays(step.truncateds))
        if done.shape == (self.env.num_envs, 1):  # as simulators of tensors return them
            done = done[:, 0]
        if not done.any():
            return
        step.final_observations = map_struct(copied, step.observations)  # the reset may reuse the arrays
        step.reset_infos = {}
        if step.failures:  # all will be reset
            return
        try:
            observations, infos = self._reset_done(done)
            if not done.all():
                _check_others_unchanged(step.final_observations, observations, ~done)
            step.observations, infos = self._restart_failed_resets(observations, infos)
            step.reset_infos = self._owned(infos)
        except Exception as error:
            step.failure = error

    def _reset_done(self, done: Flags) -> tuple[Any, dict[str, Any]]:
        """Reset the ended environments of a vector environment that does not do so itself.

        Args:
            done: Which ones ended: bool, [N].

        Returns:
            The observations of all environments, and the infos of the resets.

        Raises:
            RunnerError: the reset fails.
        """
        try:
            observations, infos = self.env.reset(options={"reset_mask": np.array(done)})
            if self._arrays and self._envs is None:
                observations, infos = to_arrays(observations), infos_to_arrays(infos, self.env.num_envs)
        except Exception as error:
            raise RunnerError(
                "resetting ended environments",
                expected="a vector environment whose reset takes options={'reset_mask': mask}",
                found=f"{type(error).__name__}: {error}",
                do="use autoreset mode NEXT_STEP or SAME_STEP",
            ) from error
        return observations, infos

    def _check_mode(self, step: VectorStep) -> None:
        """Warn if the row of a reset has a reward or a flag: the environment reset in the step before then."""
        ended = np.logical_or(step.terminateds, step.truncateds)
        rewards = np.reshape(step.rewards, (len(ended), -1)) != 0
        if self._resetting is not None and (self._resetting & (ended | rewards.any(1))).any():
            self._assumes_mode = False
            warning = EpibatchWarning(
                f"environment {self._name!r}, autoreset mode",
                expected="reset observations one step after the end, without reward and flags: NEXT_STEP, which is "
                "assumed as its metadata name no mode",
                found="a reward or a flag in the step after an end, which is not recorded",
                do="set metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.SAME_STEP and give 'final_obs', if "
                "it resets in the same step; or NEXT_STEP",
            )
            warnings.warn(warning, stacklevel=2)
        self._resetting = ended

    def _warn_of_inner_resets(self, step: VectorStep) -> None:
        """Warn if infos have a key that environments have which reset inside step(); a warning may be an error."""
        if ENV_INFOS not in step.infos and _OF_INNER_RESETS.isdisjoint(step.infos):
            return
        infos = [step.infos, *(info for info in infos_by_env(step.infos) if isinstance(info, dict))]
        keys = sorted({key for key in _OF_INNER_RESETS if any(key in info for info in infos)})
        if not keys:
            return
        self._warned = True
        try:
            warnings.warn(
                f"environment {self._name!r} has {keys[0]!r} in its infos, as environments do that reset inside "
                "step(). If this one does, what it returns at an episode's end is the next episode's observation, but "
                "counts as the terminal one: let step() return the terminal observation and wait for reset(), or set "
                "env_resets_itself.",
                stacklevel=3,
            )
        except Warning as warning:  # it is raised once the episodes that ended are kept
            step.failure = warning

    def _owned(self, infos: Any) -> Any:
        """Return infos with copies of what a user's vector environment may overwrite."""
        return copied_info(infos) if self._arrays and self._envs is None and infos else infos

    def interrupted(self) -> None:
        """Note that a call was interrupted; worker processes cannot continue after it."""
        is_gymnasiums = isinstance(self.env.unwrapped, gym.vector.AsyncVectorEnv)
        self.broken = (
            is_gymnasiums or bool(self.env.closed) or (isinstance(self._envs, AsyncEnvs) and self._envs.broken)
        )

    def close(self) -> None:
        """Close an environment that may not respond any more."""
        env = self.env.unwrapped
        if not isinstance(env, gym.vector.AsyncVectorEnv):
            self.env.close()
            return
        try:
            with warnings.catch_warnings():  # about the interrupted call
                warnings.simplefilter("ignore")
                self.env.close(terminate=self.broken)
        except CONNECTION_ERRORS:
            for process, pipe in zip(env.processes, env.parent_pipes):
                process.terminate()
                process.join()
                pipe.close()
            env.closed = True

    def _unpacked(self, result: Any, call: str, count: int) -> Any:
        if isinstance(result, tuple) and len(result) == count and isinstance(result[-1], (dict, type(None))):
            if count == 5 and self.mode == "same_step" and result[-1]:
                result = (*result[:-1], with_final_obs(result[0], result[-1]))
            if self._arrays and (self._device is not None or count == 2):
                result = self._as_arrays(result)
            return (*result[:-1], self._owned(result[-1]))
        names = "observations, infos" if count == 2 else "observations, rewards, terminateds, truncateds, infos"
        found = [type(value).__name__ for value in result] if isinstance(result, tuple) else type(result).__name__
        raise EnvironmentContractError(
            f"environment {self._name!r}, {call}() of the vector environment",
            expected=f"{count} values: {names}, the last a dict",
            found=f"{len(found)} values: {', '.join(found)}" if isinstance(found, list) else found,
            do="return what gymnasium.vector.VectorEnv says" + adapter_advice(self.env),
        )

    def _as_arrays(self, result: Any) -> Any:
        """Return the values of a reset or step as arrays, if the environment has tensors."""
        if len(result) == 2:
            self._device = device_of(result[0])
        if self._device is None:
            return result
        observations, *numbers = to_arrays(result[:-1])
        infos = infos_to_arrays(result[-1], self.env.num_envs)
        if numbers:
            rewards, *flags = numbers
            numbers = [rewards, *(np.asarray(flag) != 0 for flag in flags)]
        return (observations, *numbers, infos)

    def _resets_at_once(self) -> EnvironmentContractError:
        return EnvironmentContractError(
            f"environment {self._name!r}",
            expected="reset observations one step after the end: its metadata say or imply NEXT_STEP",
            found="'final_obs' in its infos: it resets in the same step",
            do="set metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.SAME_STEP",
        )

    def _number_of(self, error: Exception) -> int | None:
        """Return the number of the environment that raised an error, if that is known."""
        if self._envs is not None:
            return next((env for env, failure in self._envs.failures.items() if failure is error), None)
        pipes = getattr(self.env.unwrapped, "parent_pipes", ())  # Gymnasium closes that of a worker that failed
        return next((env for env, pipe in enumerate(pipes) if pipe is None), None)

    def _raise_explained(self, error: Exception, call: str) -> NoReturn:
        explained = self.explained(error, call, self._number_of(error))
        if explained is error:
            raise error
        raise explained from error

    def explained(
        self, error: Exception, call: str, env: int | None = None, steps: int | None = None, action: Any = None
    ) -> Exception:
        """Return an error that says which environment failed, and what it must return if that may be the cause.

        Args:
            error: What was raised.
            call: "reset" or "step".
            env: The environment's number; None: not known.
            steps: The steps that its episode has taken; None: not known.
            action: The action of the step.
        """
        mark_environment(error)
        where = f"environment {self._name!r}"
        where += f", number {env} of {self.env.num_envs}," if env is not None and self.env.num_envs > 1 else ""
        where += "" if steps is None else f"{',' * (where[-1] != ',')} {steps} steps into its episode,"
        where += f" failed in {call}()" + ("" if action is None else f" with action {action}") + ":"
        if isinstance(error, CONNECTION_ERRORS) and isinstance(self.env.unwrapped, gym.vector.AsyncVectorEnv):
            return RunnerError(
                where,
                expected="an answer from every worker process",
                found=f"{type(error).__name__}: a worker process has ended",
                do="see what it printed, and find the cause with gym_env_vectorize_mode='sync'; the next sample() "
                "starts new processes",
            )
        if type(error) in (ValueError, TypeError):
            values = "(observation, info)" if call == "reset" else _FIVE
            space = self.env.single_observation_space
            where += f"\n  expected: {values} with observations of {space}\n  found, by the vector environment:"
        add_context(error, where)
        return error


class MultiAgentStepper:
    """Steps multi-agent environments for a runner.

    Args:
        env: The environments.
        restarts: Decides whether an environment that failed is made again.

    Attributes:
        seconds: Spent in steps so far.
        num_seeds: Seeds that a reset takes: N, or 1 for a vector environment.
        restarts_one: True: single environments fail, and can be made again.
    """

    restarts_one = True

    def __init__(self, env: VectorMultiAgentEnv, *, restarts: EnvRestarts) -> None:
        self._takes_seeds = env.mode != "vector_entry_point"
        self.env, self.num_seeds = env, env.num_envs if self._takes_seeds else 1
        self._restarts = restarts
        self._received: VectorAgentStep | None = None
        self.seconds = 0.0
        spaces = {agent: copy.deepcopy(space) for agent, space in env.action_spaces.items()}
        self._action_space = gym.spaces.Dict(spaces)

    @property
    def rng(self) -> np.random.Generator:
        """The random generator of random actions."""
        return self._action_space.np_random

    @property
    def broken(self) -> bool:
        """True if the environments must be made again before the next reset."""
        return self.env.closed or self.env.broken

    def reset(
        self, seeds: list[int] | None, mask: Flags | None = None
    ) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
        """Reset all environments, or some.

        Args:
            seeds: For each environment. They also seed the random actions. None leaves the random streams as they are.
            mask: The environments to reset: bool, [N]; None: all.
        """
        if seeds is not None:
            self._action_space.seed(seed_of(np.random.SeedSequence(seeds)))
        seed: Any = seeds
        if seeds is not None and not self._takes_seeds:
            seed = seeds[0] >> 1  # room for seed + i within 31 bits
        observations, infos, failures = self.env.try_reset(seed=seed, mask=mask)
        for env, error in failures.items():
            observations[env], infos[env] = self.restart(env, error)
        return observations, infos

    def restart(self, env: int, error: Exception) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Make an environment that failed again; return the observations and infos of its reset, by agent.

        Args:
            env: Its number.
            error: Its failure.

        Raises:
            RunnerError: the budget is spent. If environments are not made again, `error` itself is raised.
        """
        return self._restarts.restart(env, error, partial(self.env.restart, env))

    def check_masks(self, call: str) -> None:
        """Check that no environment is at work.

        Raises:
            RunnerError: one is.
        """
        if self.env.at_work.any():
            raise RunnerError(
                f"{call} of some environments",
                expected="environments that have answered",
                found="some at work, as gym_env_batch_size leaves them",
                do=f"{call} all of them",
            )

    def exchange(self, actions: Any, mask: Flags | None, count: int) -> Flags:
        """Send actions and wait for some answers, as `EnvStepper.exchange`."""
        started = time.perf_counter()
        self._received, answered = self.env.exchange(actions, mask, count)
        self.seconds += time.perf_counter() - started
        return answered

    def step(self, actions: Sequence[dict[Any, Any]], mask: Flags | None = None) -> VectorAgentStep:
        """Step all environments, or those of a mask, and reset those that have ended."""
        started = time.perf_counter()
        received, self._received = self._received, None
        step = received or self.env.try_step(actions, mask)
        self.seconds += time.perf_counter() - started
        return step

    def random_actions(self, agents: Sequence[Collection[Any]]) -> list[dict[Any, Any]]:
        """Draw an action from its space for each agent that acts next.

        Args:
            agents: The agents that act next, for each environment.
        """
        spaces = self._action_space.spaces
        return [{agent: spaces[agent].sample() for agent in group} for group in agents]

    def interrupted(self) -> None:
        """Do nothing: the environments themselves note an interrupted call."""

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
