"""Takes one sequence of each chunk, anywhere."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from epibatch.core.errors import PipelineError
from epibatch.core.padding import check_seq_len
from epibatch.core.restoring import restore_generator

from .._engine.chunks import ChunkGroup
from .._engine.sequences import RandomCut
from ..columnar_piece import LearnerPiece


class RandomSubsequences(LearnerPiece):
    """Makes the train batch of a recurrent module of one random sub-sequence of each chunk.

    Every possible start has the same probability. A sub-sequence starts from the state that was recorded there.
    With `burn_in` in the module's `model_config` fewer rows carry loss. These rows are drawn, and the rows to burn in
    are those before them. Modules without state that learn beside a recurrent one keep all their rows.

    Put it at the place of a user's pieces, before those that make sequences. Without a seed it draws other rows in each
    process. `pipeline.seed(0)`, or the method `seed` of the piece, makes it repeatable; it is no argument. Its state
    resumes the random stream.

    Counterparts: TorchRL's `RandomCropTensorDict`.

    Args:
        length: Steps per sub-sequence; None: the module's `max_seq_len`.
        short: Handling of chunks that are too short: "pad" takes all their rows and pads them with zeros, which
            `loss_mask` leaves out; "drop" leaves them out.
        at: "random", or "end" for the last steps of each chunk, as replay buffers draw chunks.

    Raises:
        ConfigError: `length` or `short` is none of these, or the module has a `sequence_end` of its own.
        PipelineError: the only module has no state, or chunks have bootstrap rows.

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
        if group.stateful:
            generator = self._unseeded if self._generator is None else self._generator
            count = len(group.episodes)
            draws = generator.random(count) if self.at == "random" else np.ones(count)
            group.cut = RandomCut(draws, self.length, self.short)
        elif not group.several and group.rl_module is not None:
            raise PipelineError(
                "RandomSubsequences",
                expected="a recurrent module, whose train batch consists of sequences",
                found=f"{type(group.rl_module).__name__} without a state",
                do="leave the piece out; rows of a module without state are drawn by minibatches",
            )
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
