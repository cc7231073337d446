"""The seeds that a runner gives its environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.restoring import check_count, restore_generator

__all__ = ["ResetSeeds"]


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
