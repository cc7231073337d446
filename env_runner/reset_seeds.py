"""The seeds that a runner gives its environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.restoring import check_count, restore_generator

__all__ = ["ResetSeeds", "worker_seed"]

_WORKERS = 2  # the pipelines' streams are the children 0 and 1 of the same sequence


def worker_seed(seed: int | None, worker_index: int) -> int | None:
    """Return the seed of one of the runners that share a config: the config's for the first, else one drawn from it.

    A runner's environments get the numbers that follow its seed. Neighbouring seeds for neighbouring runners would let
    them play almost the same episodes.

    Example:
        >>> worker_seed(7, 0), worker_seed(7, 1) != worker_seed(8, 0), worker_seed(None, 1)
        (7, True, None)
    """
    if seed is None or worker_index == 0:
        return seed
    drawn = np.random.SeedSequence(seed, spawn_key=(_WORKERS, worker_index)).generate_state(1)[0]
    return int(drawn >> 2)  # with the numbers that follow it within the 31 bits that some environments take


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
