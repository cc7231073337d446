"""How much a `sample()` call is asked for."""

from __future__ import annotations

import numpy as np

from epibatch.core.errors import RunnerArgumentError, explain

from .runner_config import RunnerConfig

__all__ = ["sample_amounts"]


def sample_amounts(
    config: RunnerConfig,
    num_envs: int,
    worker_index: int,
    num_timesteps: int | None = None,
    num_episodes: int | None = None,
) -> tuple[int | None, int | None]:
    """The number of steps or of episodes to sample; without either the config's `batch_mode` decides.

    Args:
        config: Says what is sampled by default.
        num_envs: How many environments step together.
        worker_index: Of the runner, for fragment lengths that differ between runners.
        num_timesteps: What the caller asked for, in steps over all environments.
        num_episodes: What the caller asked for, in whole episodes.

    Returns:
        `(num_timesteps, num_episodes)`, one of them None.

    Raises:
        RunnerArgumentError: both numbers, or one that is no int of at least 0.
    """
    given = {"num_timesteps": num_timesteps, "num_episodes": num_episodes}
    wrong = [n for n in given.values() if n is not None and (not isinstance(n, (int, np.integer)) or n < 0)]
    if wrong or None not in given.values():
        raise RunnerArgumentError(
            explain(
                "sample(...)",
                expected="one of num_timesteps and num_episodes, an int of at least 0",
                found=", ".join(f"{name}={value}" for name, value in given.items()),
                do="leave one of them out",
            )
        )
    if num_timesteps is not None or num_episodes is not None:
        return num_timesteps, num_episodes
    if config.batch_mode == "complete_episodes":
        return None, num_envs
    return config.get_rollout_fragment_length(worker_index) * num_envs, None
