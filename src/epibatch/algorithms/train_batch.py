"""The episodes of one training iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from epibatch.core.errors import RunnerError

__all__ = ["count_agent_steps", "count_steps", "sample_train_batch"]


def count_steps(episodes: Sequence[Any]) -> int:
    """Steps of all chunks together, lookback excluded.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> columns = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [0.0, 0.0]}
        >>> count_steps([SingleAgentEpisode(**columns, len_lookback_buffer=0)] * 3)
        6
    """
    lengths = getattr(episodes, "lengths", None)
    return int(lengths().sum()) if lengths is not None else sum(len(episode) for episode in episodes)


def count_agent_steps(episodes: Sequence[Any]) -> int:
    """Steps of all agents in multi-agent chunks together."""
    return sum(episode.agent_steps() for episode in episodes)


def sample_train_batch(runner: Any, wanted: int, count: Callable[[Sequence[Any]], int] = count_steps) -> Sequence[Any]:
    """Chunks with so many steps, or a few more; one `sample()` unless fragments are shorter.

    Args:
        runner: what samples.
        wanted: steps, at least.
        count: how they are counted: `count_steps` (env steps) or `count_agent_steps`.

    Raises:
        RunnerError: a sample has no steps.
    """
    episodes: Sequence[Any] = runner.sample()
    steps = count(episodes)
    # A runner also counts observations that end no step, so that a sample may have a few steps less than asked for.
    rest = count is count_agent_steps and runner.config.batch_mode == "truncate_episodes"
    while steps < wanted:
        more = runner.sample(num_timesteps=wanted - steps) if rest else runner.sample()
        new = count(more)
        if new == 0:
            raise RunnerError(
                "Algorithm.train",
                expected=f"{wanted} {'agent' if count is count_agent_steps else 'env'} steps",
                found=f"{steps}, and a sample without any",
                do="check that the environment's steps succeed",
            )
        episodes = [*episodes, *more]
        steps += new
    return episodes
