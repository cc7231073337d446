"""Single environments that one process steps one after the other."""

from __future__ import annotations

from typing import Any, final

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from epibatch.core.errors import RunnerError, explain

__all__ = ["SyncEnvs"]


@final
class SyncEnvs(gym.vector.SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv`, with the same results and less work around that of the environments.

    The observations that it returns are overwritten by the next call.

    Args:
        env_fns: Functions that make the environments.
        **settings: `observation_mode` and `autoreset_mode`, as of `SyncVectorEnv`.

    Example:
        >>> envs = SyncEnvs([lambda: gym.make("CartPole-v1")] * 2)
        >>> envs.reset(seed=0)[0].shape, envs.step(np.array([0, 1]))[1]
        ((2, 4), array([1., 1.]))
        >>> envs.close()
    """

    def __init__(self, env_fns: Any, **settings: Any) -> None:
        super().__init__(env_fns, **{**settings, "copy": False})
        count, space = self.num_envs, self.single_observation_space
        self._count = count
        self._rows: list[Any] = [None] * count
        self._ended: set[int] = set()
        self._joined: Any = create_empty_array(space, n=count, fn=np.zeros)
        self._shape = space.shape
        joined = self._joined
        self._flat: Any = joined.reshape(-1) if isinstance(joined, np.ndarray) and joined.ndim == 2 else None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`.

        Args:
            seed: For the first environment, the others get the following numbers; or one for each.
            options: Handed to the environments, but for the mask: bool, [N].

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
        for i in wanted:
            self._rows[i], info = self.envs[i].reset(seed=seed[i], options=own)
            infos = self._add_info(infos, info, i)
        self._ended = self._ended.difference(wanted)
        return self._together(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments.

        Args:
            actions: One per environment, as `action_space` says.

        Raises:
            RunnerError: in mode DISABLED, an environment has ended and was not reset.
        """
        at_once = self.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP
        ended = self._ended
        if ended and self.autoreset_mode is gym.vector.AutoresetMode.DISABLED:
            raise _not_reset(sorted(ended))
        infos: dict[str, Any] = {}
        rows, rewards = self._rows, np.zeros(self._count)
        terminateds, truncateds = np.zeros(self._count, np.bool_), np.zeros(self._count, np.bool_)
        each = actions if type(actions) is np.ndarray else iterate(self.action_space, actions)
        for i, (env, action) in enumerate(zip(self.envs, each, strict=True)):
            if i in ended:
                rows[i], info = env.reset()
            else:
                rows[i], rewards[i], terminateds[i], truncateds[i], info = env.step(action)
                if at_once and (terminateds[i] or truncateds[i]):
                    infos = self._add_info(infos, {"final_obs": rows[i], "final_info": info}, i)
                    rows[i], info = env.reset()
            if info:
                infos = self._add_info(infos, info, i)
        done = np.logical_or(terminateds, truncateds)
        some = b"\1" in done.tobytes() and not at_once  # the cheapest way to ask for any
        self._ended = set(np.flatnonzero(done).tolist()) if some else set()
        return self._together(), rewards, terminateds, truncateds, infos

    def _together(self) -> Any:
        """The newest observations of all environments; one copy of vectors that are of the space's shape."""
        rows = self._rows
        if self._flat is not None and [getattr(row, "shape", None) for row in rows].count(self._shape) == len(rows):
            np.concatenate(rows, out=self._flat)
        else:
            self._joined = concatenate(self.single_observation_space, rows, self._joined)
        return self._joined


def _misfit(argument: str, expected: str, found: str) -> RunnerError:
    return RunnerError(explain(f"SyncEnvs.reset, {argument}", expected=expected, found=found, do=f"give {expected}"))


def _not_reset(ended: list[int]) -> RunnerError:
    return RunnerError(
        explain(
            "SyncEnvs.step, autoreset mode DISABLED",
            expected="that environments which have ended are reset first",
            found=f"environments {ended} ended in the step before",
            do="call reset(options={'reset_mask': terminateds | truncateds})",
        )
    )
