"""Seeds of the resets of a runner's environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.random_streams import random_stream, runner_stream, seed_of
from epibatch.core.restoring import check_count, check_like, restore_generator, restoring
from epibatch.core.state_codec import require_mapping

_WHERE = "state of a runner, 'reset_seeds'"


def environment_seeds(seed: int, num_envs: int, worker_index: int = 0) -> list[int]:
    """Return the seeds of a runner's environments at their first reset.

    An environment that is made by hand and reset with one of them repeats the runner's first episode, if it gets the
    same actions.

    Args:
        seed: The config's.
        num_envs: N.
        worker_index: The runner's number.

    Returns:
        N seeds of 31 bits. Environment i has the same one whatever N is.

    Raises:
        ConfigError: a seed or worker index that is no whole number of at least 0.

    Examples:
        >>> environment_seeds(7, 3), environment_seeds(8, 1), environment_seeds(7, 1, worker_index=1)
        ([751416801, 29763231, 1489665414], [736031211], [1651255010])
    """
    seeds = ResetSeeds(num_envs)
    seeds.seed(runner_stream(seed, worker_index))
    return seeds.next(num_envs) or []


class ResetSeeds:
    """Seeds of resets, which each environment draws from a stream of its own.

    The first reset after `seed` is seeded, and every reset for which new seeds were drawn. At others the environments'
    own random generators go on.

    Args:
        num_envs: N.

    Examples:
        >>> seeds = ResetSeeds(2)
        >>> seeds.seed(np.random.SeedSequence(7))
        >>> first = seeds.next(2)
        >>> seeds.draw(0) in first
        False
    """

    def __init__(self, num_envs: int) -> None:
        self._seeded = self._pending = False
        self._counts = [0] * num_envs
        self._begin(np.random.SeedSequence())

    def _begin(self, stream: np.random.SeedSequence) -> None:
        self._entropy, self._counts = stream.generate_state(4).tolist(), [0] * len(self._counts)

    def seed(self, stream: np.random.SeedSequence) -> None:
        """Draw the first seeds for the next reset from a runner's stream."""
        self._begin(random_stream(stream, "environments"))
        self._seeded = self._pending = True

    def next(self, count: int) -> list[int] | None:
        """Return the first environments' seeds of the next reset; None: that reset is not seeded."""
        return [self._newest_of(env) for env in range(count)] if self._pending else None

    def _newest_of(self, env: int) -> int:
        return seed_of(np.random.SeedSequence(self._entropy, spawn_key=(env, self._counts[env])))

    def used(self) -> None:
        """Note that a reset succeeded; after a failed reset the next one gets its seeds."""
        self._pending = False

    def draw(self, env: int) -> int | None:
        """Draw the seed of a single environment; None if the runner has no seed."""
        self._counts[env] += 1
        return self._newest_of(env) if self._seeded else None

    def draw_all(self) -> None:
        """Draw new seeds of all environments for the next reset, also if the runner has no seed."""
        self._counts = [count + 1 for count in self._counts]
        self._pending = True

    def draw_if_seeded(self) -> None:
        """Draw new seeds for the next reset, of new environments, if the runner has a seed."""
        if self._seeded:
            self.draw_all()

    def get_state(self) -> dict[str, Any]:
        """Return the stream, how many seeds each environment drew from it, and whether the next reset is seeded."""
        state = {"entropy": list(self._entropy), "drawn": list(self._counts), "pending": self._pending}
        return {"reset_seeds": state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`; environments that it does not have begin their streams.

        Earlier versions had one generator for all environments. Its state is then the beginning of their streams.
        """
        saved = require_mapping(_WHERE, state["reset_seeds"])
        if "bit_generator" in saved:
            generator = np.random.default_rng(0)
            restore_generator(_WHERE, generator, saved)
            self._begin(np.random.SeedSequence(generator.bit_generator.state["state"]["state"]))
            self._pending = state.get("next_reset_seed") is not None
            return
        with restoring(_WHERE, "entropy, drawn"):
            entropy, counts = ([check_count(_WHERE, number) for number in saved[key]] for key in ("entropy", "drawn"))
        check_like(_WHERE, saved["pending"], True)
        count = len(self._counts)
        self._entropy, self._counts, self._pending = entropy, [*counts, *[0] * count][:count], saved["pending"]
