"""Steps of vector environments: one result for every autoreset mode, and errors that name the environment."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EnvironmentContractError, RunnerError, add_context
from epibatch.core.structs import map_struct

from .autoreset import autoreset_mode, reset_done
from .made_env import FAILURE, mark_environment
from .sync_envs import SyncEnvs

__all__ = ["EnvStepper", "VectorStep"]

_OF_INNER_RESETS = frozenset({"final_observation", "terminal_observation"})
_FIVE = "(observation, reward, terminated, truncated, info)"

_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class VectorStep(NamedTuple):
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
    """

    observations: Any
    rewards: Any
    terminateds: Any
    truncateds: Any
    infos: dict[str, Any]
    final_observations: Any = None
    reset_infos: dict[str, Any] | None = None
    failure: RunnerError | None = None
    failures: Mapping[int, Exception] = {}


class EnvStepper:
    """Adapter of a vector environment; its errors name the environment that failed and the expected return value.

    Args:
        env: A `gymnasium.vector.VectorEnv`.
        name: Its name in error messages.
        seconds: Spent in steps of an environment that this one replaces.

    Attributes:
        mode: When reset observations come: "next_step", "same_step" or "disabled".
        seconds: Spent in steps so far.
        broken: True if the environment must be made again before the next reset.
    """

    def __init__(self, env: Any, name: Any, *, seconds: float = 0.0) -> None:
        self.env = env
        self.mode = autoreset_mode(env)
        self.seconds = seconds
        self.broken = False
        self._name = name
        makes_infos = (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)  # new ones in every step
        self._keeps_infos = not isinstance(env.unwrapped, makes_infos)
        self._warned = False
        self._sync = env if isinstance(env, SyncEnvs) else None
        if self._sync is not None:
            self._sync.raises = False

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments.

        Args:
            seed: For the first environment; the others get the following numbers. It also seeds
                the random actions. None leaves the random streams as they are.
        """
        if seed is not None:
            self.env.action_space.seed(seed)
        try:
            result = self.env.reset(seed=seed)
        except BaseException as error:  # Ctrl-C too: worker processes may be in the middle of a call
            self.interrupted()
            if not isinstance(error, Exception):
                raise
            explained = self.explained(error, "reset", self._number_of(error))
            if explained is error:
                raise
            raise explained from error
        observations, infos = self._unpacked(result, "reset", 2)
        if infos and FAILURE in infos:
            self.interrupted()
            env, failure = next(iter(_reported(infos).items()))
            raise self.explained(failure, "reset", env)
        return observations, infos

    def step(self, actions: Any) -> VectorStep:
        """Step all environments, and reset the ended ones if they do not do so themselves."""
        started = time.perf_counter()
        try:
            result = self.env.step(actions)
        except Exception as error:
            explained = self.explained(error, "step", self._number_of(error))
            if explained is error:
                raise
            raise explained from error
        plain = type(result) is tuple and len(result) == 5 and type(result[4]) is dict and not self._keeps_infos
        step = VectorStep(*(result if plain else self._unpacked(result, "step", 5)))
        if self._sync is not None and self._sync.failures:
            step = step._replace(failures=self._sync.failures)
        elif step.infos and FAILURE in step.infos:
            step = step._replace(failures=_reported(step.infos))
        if self.mode == "same_step":
            step = step._replace(final_observations=(step.infos or {}).get("final_obs"))
        elif self.mode == "disabled":
            step = self._with_reset(step)
        elif step.infos and "final_obs" in step.infos:
            raise self._resets_at_once()
        if step.infos and not _OF_INNER_RESETS.isdisjoint(step.infos) and not self._warned:
            self._warn_of_inner_resets(sorted(_OF_INNER_RESETS.intersection(step.infos)))
        self.seconds += time.perf_counter() - started
        return step

    def _with_reset(self, step: VectorStep) -> VectorStep:
        done = np.logical_or(step.terminateds, step.truncateds)
        if not done.any():
            return step
        final = map_struct(np.array, step.observations)  # the reset may reuse the environment's arrays
        if step.failures:  # all will be reset
            return step._replace(final_observations=final, reset_infos={})
        try:
            observations, infos = reset_done(self.env, done, final)
        except RunnerError as error:
            return step._replace(final_observations=final, reset_infos={}, failure=error)
        return step._replace(observations=observations, final_observations=final, reset_infos=self._owned(infos))

    def _warn_of_inner_resets(self, keys: list[str]) -> None:
        self._warned = True
        warnings.warn(
            f"environment {self._name!r} has {keys[0]!r} in its infos, as environments do that reset inside step(). If "
            "this one does, what it returns at an episode's end is the next episode's observation, but counts as the "
            "terminal one: let step() return the terminal observation and wait for reset().",
            stacklevel=2,
        )

    def _owned(self, infos: Any) -> Any:
        """Return infos with copies of the arrays that the environment may overwrite."""
        return map_struct(_copied, infos) if self._keeps_infos and infos else infos

    def interrupted(self) -> None:
        """Note that a call was interrupted; worker processes cannot continue after it."""
        self.broken = isinstance(self.env.unwrapped, gym.vector.AsyncVectorEnv) or bool(self.env.closed)

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
        except _GONE:
            for process, pipe in zip(env.processes, env.parent_pipes):
                process.terminate()
                process.join()
                pipe.close()
            env.closed = True

    def _unpacked(self, result: Any, call: str, count: int) -> Any:
        if isinstance(result, tuple) and len(result) == count and isinstance(result[-1], (dict, type(None))):
            return (*result[:-1], self._owned(result[-1])) if self._keeps_infos else result
        names = "observations, infos" if count == 2 else "observations, rewards, terminateds, truncateds, infos"
        found = [type(value).__name__ for value in result] if isinstance(result, tuple) else type(result).__name__
        raise EnvironmentContractError(
            f"environment {self._name!r}, {call}() of the vector environment",
            expected=f"{count} values: {names}, the last a dict",
            found=f"{len(found)} values: {', '.join(found)}" if isinstance(found, list) else found,
            do="return what gymnasium.vector.VectorEnv says",
        )

    def _resets_at_once(self) -> EnvironmentContractError:
        return EnvironmentContractError(
            f"environment {self._name!r}",
            expected="reset observations one step after the end: its metadata say or imply NEXT_STEP",
            found="'final_obs' in its infos: it resets in the same step",
            do="set metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.SAME_STEP",
        )

    def _number_of(self, error: Exception) -> int | None:
        """Return the number of the environment that raised an error, if that is known."""
        if self._sync is not None:
            return next((env for env, own in self._sync.failures.items() if own is error), None)
        pipes = getattr(self.env.unwrapped, "parent_pipes", ())  # Gymnasium closes that of a worker that failed
        return next((env for env, pipe in enumerate(pipes) if pipe is None), None)

    def explained(self, error: Exception, call: str, env: int | None = None, steps: int | None = None) -> Exception:
        """Return an error that says which environment failed, and what it must return if that may be the cause.

        Args:
            error: What was raised.
            call: "reset" or "step".
            env: The environment's number; None: not known.
            steps: The steps that its episode has taken; None: not known.
        """
        mark_environment(error)
        where = f"environment {self._name!r}"
        where += f", number {env} of {self.env.num_envs}," if env is not None and self.env.num_envs > 1 else ""
        where += "" if steps is None else f"{',' * (where[-1] != ',')} {steps} steps into its episode,"
        where += f" failed in {call}():"
        if isinstance(error, _GONE) and isinstance(self.env.unwrapped, gym.vector.AsyncVectorEnv):
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


def _reported(infos: dict[str, Any]) -> dict[int, Exception]:
    """Take the failures that worker processes reported out of infos."""
    errors, there = infos.pop(FAILURE), infos.pop(f"_{FAILURE}")
    return {env: errors[env] for env in np.flatnonzero(there).tolist()}


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
