"""The runners of an algorithm: one in this process, or several in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .make_runner import make_runner


class EnvRunnerGroup:
    """The runners of an algorithm.

    Args:
        config: Environment, pipelines, module and the number of runners.

    Attributes:
        local_env_runner: The runner of this process.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> group = EnvRunnerGroup(config=PPOConfig().environment("CartPole-v1"))
        >>> sum(len(episode) for episode in group.sample(num_timesteps=20))
        20
        >>> group.stop()
    """

    def __init__(self, *, config: Any) -> None:
        self.local_env_runner = make_runner(config, 0)

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> Sequence[Any]:
        """Step the environments of all runners and return the recorded episodes; see `EnvRunner.sample`."""
        episodes: Sequence[Any] = self.local_env_runner.sample(
            num_timesteps=num_timesteps,
            num_episodes=num_episodes,
            explore=explore,
            random_actions=random_actions,
            force_reset=force_reset,
        )
        return episodes

    def stop(self) -> None:
        """Close the environments of all runners."""
        self.local_env_runner.stop()
