"""Random numbers that stay the same for a whole episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from epibatch.core.errors import ConfigError
from epibatch.core.restoring import check_count, check_like, restore_generator, restoring

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece

_SPARE = 64


class EpisodeNoise(Piece):
    """Adds a column of standard normal numbers, drawn when an episode begins and the same at each of its steps.

    It is what generalised state-dependent exploration needs (Raffin et al. 2022, "Smooth exploration for robotic
    reinforcement learning"): a module multiplies the numbers, shaped [features, actions], with its features, so that
    within an episode it acts the same in the same state. Each agent of several has its own numbers. It is a piece for
    acting; a loss needs the distribution of the actions, not the numbers.

    Counterparts: TorchRL's `gSDENoise`.

    Args:
        shape: Shape of an episode's numbers.
        column: Name of the column.

    Raises:
        ConfigError: a shape or a name that is none.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episodes = [SingleAgentEpisode(id_=name, observations=[0.0]) for name in ("a", "b")]
        >>> piece = EpisodeNoise(shape=[2, 1])
        >>> first, again = (piece(batch={}, episodes=episodes)["noise"] for _ in range(2))
        >>> bool((first["a",][0] == again["a",][0]).all()), bool((first["a",][0] == first["b",][0]).any())
        (True, False)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    needs_episodes: ClassVar[bool] = True
    shape: Sequence[int]
    column: str = "noise"

    def __post_init__(self) -> None:
        """Check the shape, and begin without episodes."""
        sizes: list[Any] = list(self.shape) if isinstance(self.shape, (list, tuple)) else [None]
        fits = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
        if not fits or not self.column:
            raise ConfigError(
                "EpisodeNoise",
                expected="the shape of an episode's numbers as a list, and the name of a column",
                found=f"shape={self.shape!r}, column={self.column!r}",
                do="pass shape=[64, 2], for 64 features and 2 actions",
            )
        self._rng = np.random.default_rng()
        self._known: dict[tuple[Any, ...], Any] = {}
        self._rows: dict[Any, tuple[list[Any], Any]] = {}
        self._most = 0

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The column."""
        return (self.column,)

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        self._rng = np.random.default_rng(seed)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        keys = group.keys
        cached = self._rows.get(group.module_id)
        if cached is None or cached[0] != keys:
            cached = self._rows[group.module_id] = list(keys), np.stack([self._of(key) for key in keys])
        columns[self.column] = EpisodeColumn(cached[1].copy())
        return columns

    def _of(self, key: tuple[Any, ...]) -> Any:
        """An episode's numbers; the keys that were asked for last are kept, far more than there are episodes."""
        numbers = self._known.pop(key, None)
        if numbers is None:
            numbers = self._rng.standard_normal(self.shape, np.float32)
        self._known[key] = numbers
        self._most = max(self._most, sum(len(keys) for keys, _ in self._rows.values()))
        while len(self._known) > 2 * self._most + _SPARE:
            del self._known[next(iter(self._known))]
        return numbers

    # -- state ---------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The random stream, and the numbers of the episodes that are known."""
        entries = [[list(key), numbers] for key, numbers in self._known.items()]
        return {"generator": self._rng.bit_generator.state, "known": entries, "most": self._most}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over stream and numbers.

        Raises:
            CheckpointError: a state of another kind, or numbers of another shape.
        """
        where = "EpisodeNoise.set_state"
        with restoring(where, "known"):
            by_key = {tuple(key): np.array(numbers) for key, numbers in state.get("known", [])}
        for key, numbers in by_key.items():
            check_like(f"{where}, numbers of {key}", numbers, np.zeros(self.shape, np.float32))
        rng, most = np.random.default_rng(0), check_count(f"{where}, 'most'", state.get("most", 0))
        if "generator" in state:
            restore_generator(where, rng, state["generator"])
        self.reset_state()
        self._rng = rng if "generator" in state else self._rng
        self._known, self._most = by_key, most

    def reset_state(self) -> None:
        """Forget the episodes."""
        self._known, self._rows, self._most = {}, {}, 0
