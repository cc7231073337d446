"""The seeds that a runner gives its environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.restoring import check_count, restore_generator

__all__ = ["ResetSeeds", "env_seeds", "worker_seed"]

_WORKERS, _ENVS = 2, 3  # the pipelines' streams are the children 0 and 1 of the same sequence


def worker_seed(seed: int | None, worker_index: int) -> int | None:
    """The seed of one of the runners that share a config: that of the config for the first, else one drawn from it.

    Example:
        >>> worker_seed(7, 0), worker_seed(7, 1) != worker_seed(8, 0), worker_seed(None, 1)
        (7, True, None)
    """
    return seed if seed is None or worker_index == 0 else _drawn(seed, (_WORKERS, worker_index), 1)[0]


def env_seeds(seed: int, count: int) -> list[int]:
    """A seed for each of `count` environments: the given one for the first, and others drawn from it.

    Neighbouring numbers for neighbouring environments would let runs with the seeds 1 and 2 share almost all of them.

    Example:
        >>> env_seeds(7, 3)[:2] == env_seeds(7, 2), env_seeds(7, 1), set(env_seeds(7, 9)) & set(env_seeds(8, 9))
        (True, [7], set())
    """
    return [seed, *_drawn(seed, (_ENVS,), count - 1)]


def _drawn(seed: int, key: tuple[int, ...], count: int) -> list[int]:
    drawn = np.random.SeedSequence(seed, spawn_key=key).generate_state(count) if count else ()
    return [int(number) >> 1 for number in drawn]  # some environments take 31 bits


class ResetSeeds:
    """Which seed the next reset gets: the first one the runner's, later ones None unless one was drawn.

    Args:
        seed: The runner's; None: nothing is seeded.

    Attributes:
        next: For the next reset.

    Example:
        >>> seeds = ResetSeeds(7)
        >>> seeds.next
        7
        >>> seeds.used()
        >>> seeds.next is None
        True
    """

    def __init__(self, seed: int | None) -> None:
        self.next = seed
        self._seeded = seed is not None
        self._stream = np.random.default_rng(seed)

    def used(self) -> None:
        """Note that a reset succeeded; one that fails leaves its seed to the next."""
        self.next = None

    def draw(self) -> None:
        """Give the next reset a new seed, from a stream of this runner's own."""
        self.next = int(self._stream.integers(2**31))

    def draw_if_seeded(self) -> None:
        """Seed the next reset, of new environments, if the runner has a seed and none is waiting."""
        if self._seeded and self.next is None:
            self.draw()

    def get_state(self) -> dict[str, Any]:
        """The stream's position, and the seed that is waiting."""
        return {"reset_seeds": self._stream.bit_generator.state, "next_reset_seed": self.next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave."""
        following = state.get("next_reset_seed")
        if following is not None:
            following = check_count("state of a runner, 'next_reset_seed'", following)
        restore_generator("state of a runner, 'reset_seeds'", self._stream, state["reset_seeds"])
        self.next = following
