"""The episodes of one training iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import RunnerError, explain

from ..episodes.episode_facts import count_steps

if TYPE_CHECKING:
    from ..env_runner import SingleAgentEnvRunner

__all__ = ["sample_train_batch"]


def sample_train_batch(runner: SingleAgentEnvRunner, wanted: int) -> Sequence[Any]:
    """Chunks with so many env steps, or a few more; one `sample()` unless fragments are shorter.

    Args:
        runner: what samples.
        wanted: env steps, at least.

    Raises:
        RunnerError: a sample has no steps.
    """
    episodes: Sequence[Any] = runner.sample()
    steps = count_steps(episodes)
    while steps < wanted:
        more = runner.sample()
        new = count_steps(more)
        if new == 0:
            raise RunnerError(
                explain(
                    "Algorithm.train",
                    expected=f"{wanted} env steps",
                    found=f"{steps}, and a sample without any",
                    do="check that the environment's steps succeed",
                )
            )
        episodes = [*episodes, *more]
        steps += new
    return episodes
