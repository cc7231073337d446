"""Single environments that one process steps one after the other."""

from __future__ import annotations

from typing import Any, final

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from epibatch.core.errors import RunnerError, SpaceError
from epibatch.core.spaces import check_row

from .made_env import as_flag, as_reward

__all__ = ["SyncEnvs"]

_NUMBERS = frozenset({float, int, np.float64, np.float32})  # rewards of these types, and
_FLAGS = frozenset({bool, np.bool_})  # flags of these types need no further check


@final
class SyncEnvs(gym.vector.SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv`, with the same results and less overhead.

    The next call overwrites the returned observations. Meaningless values that Gymnasium's class would convert, such as
    the text "False" as a flag or an additional key in a Dict observation, are errors.

    Args:
        env_fns: Functions that make the environments.
        **settings: `observation_mode` and `autoreset_mode`, as of `SyncVectorEnv`.

    Attributes:
        failures: Errors of environments in the last call, by their numbers.
        raises: True if `step` raises the first of them; if not, `step` is `try_step`.

    Example:
        >>> envs = SyncEnvs([lambda: gym.make("CartPole-v1")] * 2)
        >>> envs.reset(seed=0)[0].shape, envs.step(np.array([0, 1]))[1]
        ((2, 4), array([1., 1.]))
        >>> envs.close()
    """

    raises = True

    def __init__(self, env_fns: Any, **settings: Any) -> None:
        super().__init__(env_fns, **{**settings, "copy": False})
        count, space = self.num_envs, self.single_observation_space
        self._count = count
        self._rows: list[Any] = [None] * count
        self._ended: set[int] = set()
        self._joined: Any = create_empty_array(space, n=count, fn=np.zeros)
        self._shape = space.shape
        self._nested = isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple))
        self.failures: dict[int, Exception] = {}
        joined = self._joined
        self._flat: Any = joined.reshape(-1) if isinstance(joined, np.ndarray) and joined.ndim == 2 else None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`.

        Args:
            seed: For the first environment, the others get the following numbers; or one for each.
            options: Passed to the environments, except for the mask: bool, [N].

        Raises:
            RunnerError: not one seed per environment, or a mask of another type or shape, or without any environment.
        """
        count = self.num_envs
        if seed is None or isinstance(seed, (int, np.integer)):
            seed = [None if seed is None else seed + i for i in range(count)]
        if len(seed) != count:
            raise _misfit("seed", f"a number, or one for each of {count} environments", f"{len(seed)} of them")
        own = dict(options) if options is not None else None
        mask = np.ones(count, np.bool_) if own is None else own.pop("reset_mask", np.ones(count, np.bool_))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (count,) or not mask.any():
            raise _misfit("options['reset_mask']", f"an array, bool of shape ({count},), True somewhere", repr(mask))
        infos: dict[str, Any] = {}
        wanted = np.flatnonzero(mask).tolist()
        self.failures = {}
        for i in wanted:
            try:
                self._rows[i], info = self.envs[i].reset(seed=seed[i], options=own)
            except Exception as error:
                self.failures[i] = error
                raise
            infos = self._add_info(infos, info, i)
        self._ended = self._ended.difference(wanted)
        joined = self._together()
        self._raise_first()
        return joined, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments.

        Args:
            actions: One per environment, as `action_space` says.

        Raises:
            RunnerError: in mode DISABLED, an environment has ended and was not reset.
            SpaceError: an observation of another nesting or shape than the observation space.
            EnvironmentContractError: a reward that is no number, or a flag that is neither True nor False.
        """
        result = self.try_step(actions)
        if self.raises:
            self._raise_first()
        return result

    def try_step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step as `step` does, but keep the results of the other environments if some fail.

        `failures` has the errors. An environment that failed has reward 0, no flags, and a meaningless observation. If
        it failed in the reset after its episode's end, only the reset observation is missing.
        """
        at_once = self.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP
        ended = self._ended
        if ended and self.autoreset_mode is gym.vector.AutoresetMode.DISABLED:
            raise RunnerError(
                "SyncEnvs.step, autoreset mode DISABLED",
                expected="that environments which have ended are reset first",
                found=f"environments {sorted(ended)} ended in the step before",
                do="call reset(options={'reset_mask': terminateds | truncateds})",
            )
        infos: dict[str, Any] = {}
        rows, self.failures, self._ended = self._rows, {}, set()
        rewards, flags = np.zeros(self._count), np.zeros((2, self._count), np.bool_)
        each = actions if type(actions) is np.ndarray else iterate(self.action_space, actions)
        for i, (env, action) in enumerate(zip(self.envs, each, strict=True)):
            try:
                if i in ended:
                    rows[i], info = env.reset()
                else:
                    rows[i], reward, terminated, truncated, info = env.step(action)
                    rewards[i] = reward if type(reward) in _NUMBERS else as_reward(_call(env), reward)
                    if terminated is not False or truncated is not False:
                        ends = _flags(env, terminated, truncated)
                        if ends != (False, False):
                            flags[:, i] = ends
                            self._ended.add(i)
                    if at_once and i in self._ended:
                        check_row(env.observation_space, rows[i], _place(env))
                        infos = self._add_info(infos, {"final_obs": rows[i], "final_info": info}, i)
                        rows[i], info = env.reset()
            except Exception as error:
                self.failures[i] = error
                if not infos.get("_final_obs", {i: False})[i]:  # else the end is noted, and its reset failed
                    rewards[i], flags[:, i] = 0.0, False
                continue
            if info:
                infos = self._add_info(infos, info, i)
        if at_once:
            self._ended = set()
        return self._together(None if at_once else flags), rewards, flags[0], flags[1], infos

    def _together(self, flags: Any = None) -> Any:
        """Return the newest observations of all environments; vectors of the space's shape are copied once."""
        try:
            rows = self._rows
            if self._flat is not None and [getattr(row, "shape", None) for row in rows].count(self._shape) == len(rows):
                np.concatenate(rows, out=self._flat)
                return self._joined
            if not self._nested or all(_as_long(self.single_observation_space, row) for row in rows):
                self._joined = concatenate(self.single_observation_space, rows, self._joined)
                return self._joined
        except Exception:
            if not self._replace_misfits(flags):
                raise
        else:
            self._replace_misfits(flags)
        self._joined = concatenate(self.single_observation_space, rows, self._joined)
        return self._joined

    def _replace_misfits(self, flags: Any) -> bool:
        """Note observations that do not fit the space as failures; replace each, and clear its environment's flags."""
        space, found = self.single_observation_space, []
        for i, (env, row) in enumerate(zip(self.envs, self._rows)):
            try:
                check_row(space, row, _place(env))
                concatenate(space, [row], create_empty_array(space, n=1))
            except Exception as error:
                problem = error if isinstance(error, SpaceError) else _unjoined(space, _place(env), error)
                self.failures.setdefault(i, problem)
                found.append(i)
        spare = next(iter(iterate(batch_space(space, 1), create_empty_array(space, n=1))))
        for i in found:
            self._rows[i] = spare
            if flags is not None:
                flags[:, i] = False
        return bool(found)

    def _raise_first(self) -> None:
        if self.failures:
            raise next(iter(self.failures.values()))


def _flags(env: Any, terminated: Any, truncated: Any) -> tuple[bool, bool]:
    if type(terminated) in _FLAGS and type(truncated) in _FLAGS:
        return terminated, truncated
    where = _call(env)
    return as_flag(where, "terminated", terminated), as_flag(where, "truncated", truncated)


def _as_long(space: Any, row: Any) -> bool:
    """True if a row has as many entries as its space, in all Dicts and Tuples; stacking finds other errors."""
    if not isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return True
    if not hasattr(row, "__len__") or len(row) != len(space.spaces):
        return False
    if isinstance(space, gym.spaces.Tuple):
        return all(map(_as_long, space.spaces, row))
    return all(key in row and _as_long(own, row[key]) for key, own in space.spaces.items())


def _call(env: Any) -> str:
    return f"{type(env.unwrapped).__name__}.step()"


def _place(env: Any) -> str:
    return f"observation of {type(env.unwrapped).__name__}"


def _unjoined(space: Any, where: str, error: Exception) -> SpaceError:
    found = f"{type(error).__name__}: {error}"
    do = "make the environment return values of its space"
    return SpaceError(where, expected=f"values of {space}", found=found, do=do)


def _misfit(argument: str, expected: str, found: str) -> RunnerError:
    return RunnerError(f"SyncEnvs.reset, {argument}", expected=expected, found=found, do=f"give {expected}")
