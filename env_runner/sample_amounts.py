"""The number of steps or episodes of a `sample()` call."""

from __future__ import annotations

import numpy as np

from epibatch.core.errors import RunnerArgumentError

from .runner_config import RunnerConfig

__all__ = ["explores", "sample_amounts"]


def sample_amounts(
    config: RunnerConfig,
    num_envs: int,
    worker_index: int,
    num_timesteps: int | None = None,
    num_episodes: int | None = None,
) -> tuple[int | None, int | None]:
    """Return the number of steps or of episodes to sample; without either the config's `batch_mode` decides.

    Args:
        config: Has the defaults.
        num_envs: How many environments step together.
        worker_index: Of the runner, for fragment lengths that differ between runners.
        num_timesteps: The caller's number of steps over all environments.
        num_episodes: The caller's number of whole episodes.

    Returns:
        `(num_timesteps, num_episodes)`, one of them None.

    Raises:
        RunnerArgumentError: both numbers, or one that is no int of at least 0.
    """
    given = {"num_timesteps": num_timesteps, "num_episodes": num_episodes}
    wrong = [n for n in given.values() if n is not None and not _is_amount(n)]
    if wrong or None not in given.values():
        raise RunnerArgumentError(
            "sample(...)",
            expected="one of num_timesteps and num_episodes, an int of at least 0",
            found=", ".join(f"{name}={value}" for name, value in given.items()),
            do="leave one of them out",
        )
    if num_timesteps is not None or num_episodes is not None:
        return num_timesteps, num_episodes
    if config.batch_mode == "complete_episodes":
        return None, num_envs
    return config.get_rollout_fragment_length(worker_index) * num_envs, None


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


def explores(explore: bool | None, default: bool) -> bool:
    """True if actions explore: the caller's value, or the default.

    Raises:
        RunnerArgumentError: neither True nor False nor None, such as the text "no", which would count as True.
    """
    if explore is None:
        return default
    if isinstance(explore, (bool, np.bool_)):
        return bool(explore)
    raise RunnerArgumentError(
        "explore",
        expected="True, False, or None for the config's",
        found=f"{type(explore).__name__} {explore!r}",
        do="pass explore=False to act greedily",
    )
