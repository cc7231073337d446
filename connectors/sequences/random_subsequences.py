"""Takes one sub-sequence of each chunk, anywhere."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError
from epibatch.core.padding import check_seq_len
from epibatch.core.restoring import restore_generator
from epibatch.core.sequence_ends import random_spans
from epibatch.core.structs import convert_to_numpy

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.sequences import RandomCut
from ..columnar_piece import LearnerPiece


class RandomSubsequences(LearnerPiece):
    """Learns from one random sub-sequence of each chunk.

    Every possible start has the same probability. A recurrent module's sub-sequence starts from the state that was
    recorded there. With `burn_in` in the module's `model_config` fewer rows carry loss. These rows are drawn, and the
    rows to burn in are those before them. A module without state keeps all rows, and `loss_mask` is True in the
    sub-sequence alone; minibatches leave out the others. With advantages, a recurrent module's batch also has all rows,
    so that the advantages are those of whole chunks.

    Put it at the place of a user's pieces, before those that make sequences. Without a seed it draws other rows in each
    process. `pipeline.seed(0)`, or the method `seed` of the piece, makes it repeatable; it is no argument. Its state
    resumes the random stream.

    Counterparts: TorchRL's `RandomCropTensorDict`.

    Args:
        length: Steps per sub-sequence; None: the module's `max_seq_len`. A module without state needs a length; beside
            other modules it keeps the loss of all rows without one.
        short: Handling of chunks that are too short: "pad" takes all their rows and pads them with zeros, which
            `loss_mask` leaves out; "drop" leaves them out.
        at: "random", or "end" for the last steps of each chunk, as replay buffers draw chunks.

    Raises:
        ConfigError: `length` or `short` is none of these, or the module has a `sequence_end` of its own.
        PipelineError: the only module has no state, and there is no `length`.

    Examples:
        >>> piece = RandomSubsequences(length=8)
        >>> piece.seed(0)
    """

    takes_tensors: ClassVar[bool] = True
    length: int | None = None
    short: Literal["pad", "drop"] = "pad"
    at: Literal["random", "end"] = "random"

    def __post_init__(self) -> None:
        """Check the length."""
        if self.length is not None:
            self.length = check_seq_len(self.length, "RandomSubsequences, length")
        self._generator: np.random.Generator | None = None
        self._unseeded = np.random.default_rng()

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        self._generator = np.random.default_rng(seed)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Draw where each chunk's sub-sequence lies."""
        if not group.stateful and self.length is None:
            if group.several or group.rl_module is None:
                return columns
            raise PipelineError(
                "RandomSubsequences",
                expected="a length, as a module without state has no max_seq_len",
                found=f"{type(group.rl_module).__name__} and length=None",
                do="give the length of a sub-sequence in steps",
            )
        generator = self._unseeded if self._generator is None else self._generator
        count = len(group.episodes)
        draws = generator.random(count) if self.at == "random" else np.ones(count)
        if group.stateful:
            group.cut = RandomCut(draws, self.length, self.short)
        elif self.length is not None:
            begin, stop = random_spans(group.lengths, self.length, draws, self.short)
            counts = group.counts
            rows = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            mask = (rows >= np.repeat(begin, counts)) & (rows < np.repeat(stop, counts))
            if Columns.LOSS_MASK in columns:
                mask &= convert_to_numpy(columns[Columns.LOSS_MASK].data)
            columns[Columns.LOSS_MASK] = EpisodeColumn(mask, counts, item_per_row=True)
        return columns

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The state of the random stream, if the piece was seeded."""
        return {} if self._generator is None else {"generator": self._generator.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a random stream."""
        if "generator" in state:
            generator = np.random.default_rng(0)
            restore_generator("RandomSubsequences.set_state", generator, state["generator"])
            self._generator = generator
