"""Budget, seeds and messages of environments that are made again after a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from epibatch.core.errors import RunnerError
from epibatch.core.restoring import check_count

FAILURE = "env_failure"
"""The key of the info in which an episode that a failure cut says why it ended."""

ResultT = TypeVar("ResultT")


class EnvRestarts:
    """Decides whether an environment that failed is made again.

    Args:
        config: Has `restart_failed_sub_environments`, `max_sub_environment_restarts_per_sample`,
            `max_sub_environment_restarts` and `failed_episodes`.
        draw_seed: Draws the seed of a new environment's reset from that environment's stream; None: it is not seeded.

    Attributes:
        enabled: True if environments are made again.
        count: Restarts of all environments so far.

    Examples:
        >>> from epibatch.algorithms import PPOConfig
        >>> config = PPOConfig().fault_tolerance(restart_failed_sub_environments=True)
        >>> restarts = EnvRestarts(config, draw_seed=lambda env: 7)
        >>> restarts.restart(0, ValueError("broken"), lambda seed: f"made with seed {seed}")
        'made with seed 7'
        >>> restarts.count
        1
    """

    def __init__(self, config: Any, draw_seed: Callable[[int], int | None]) -> None:
        self.enabled: bool = config.restart_failed_sub_environments
        self.count = 0
        self._per_call: int = config.max_sub_environment_restarts_per_sample
        self._in_all: int | None = config.max_sub_environment_restarts
        self._truncates = config.failed_episodes == "truncate"
        self._draw_seed = draw_seed
        self._in_call: Counter[int | None] = Counter()
        self._reported = 0

    def begin_call(self) -> None:
        """Begin another call of `sample()`, which has a budget of its own."""
        self._in_call.clear()

    def restart(self, env: int | None, error: Exception, make: Callable[[int | None], ResultT]) -> ResultT:
        """Make an environment again until that succeeds, or the budget is spent.

        Args:
            env: The environment's number; None: all of them at once.
            error: Its failure, with a message that names environment and call.
            make: Makes and resets it with a seed; None for all of them, which are seeded together.

        Raises:
            RunnerError: the budget is spent. If environments are not made again, `error` itself is raised.
        """
        while True:
            self._spend(env, error)
            try:
                return make(None if env is None else self._draw_seed(env))
            except Exception as another:
                error = another

    def _spend(self, env: int | None, error: Exception) -> None:
        if not self.enabled:
            raise error
        limits = {
            "max_sub_environment_restarts_per_sample": (
                self._in_call[env],
                self._per_call,
                "of one environment in a call",
            ),
            "max_sub_environment_restarts": (self.count, self._in_all, "of all environments of a runner"),
        }
        for setting, (count, most, kind) in limits.items():
            if most is not None and count >= most:
                raise RunnerError(
                    f"{'environments' if env is None else f'environment number {env}'}, sample()",
                    expected=f"at most {most} restarts {kind}",
                    found=f"another failure: {type(error).__name__}: {error}",
                    do="correct the environment; the episodes that ended are returned by the next call. The limit is "
                    + setting,
                ) from error
        self._in_call[env] += 1
        self.count += 1

    def info_of(self, error: Exception) -> dict[str, Any] | None:
        """Return what is added to the last info of the episode that a failure cut; None if the episode is dropped."""
        return {FAILURE: f"{type(error).__name__}: {error}"} if self._truncates else None

    def report(self) -> dict[str, int]:
        """Return the restarts since the last report and over the lifetime; nothing if there can be none."""
        if not self.enabled:
            return {}
        return {"num_env_restarts": self.take(), "num_env_restarts_lifetime": self.count}

    def take(self) -> int:
        """Return the restarts since the last report, and count this as one."""
        new, self._reported = self.count - self._reported, self.count
        return new

    def get_state(self) -> dict[str, int]:
        """Return the number of restarts."""
        return {"num_env_restarts_lifetime": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`, or a part of a runner's state that need not have it."""
        name = "num_env_restarts_lifetime"
        if name in state:
            self.count = self._reported = check_count(f"state of a runner, {name!r}", state[name])
