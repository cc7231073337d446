"""Cuts chunks of a call into sequences, by the module's settings or as an earlier piece has drawn them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.padding import SequenceLayout
from epibatch.core.rl_module.module_facts import SequenceSettings, sequence_settings
from epibatch.core.sequence_ends import (
    joined_layout,
    random_layout,
    sequence_layout,
)
from epibatch.core.structs import flatten

from .chunks import ChunkGroup
from .columns import EpisodeColumn

_OUTPUT_STATES = (Columns.STATE_OUT, Columns.NEXT_STATE_OUT)


class RandomCut(NamedTuple):
    """One random sub-sequence of each chunk.

    Args:
        draws: float [chunks], uniform in [0, 1).
        length: Rows per sequence; None: the module's `max_seq_len`.
        short: What becomes of chunks that are too short, "pad" or "drop".
    """

    draws: npt.NDArray[np.float64]
    length: int | None
    short: str

    def settings(self, rl_module: Any, steps: int | None = None) -> SequenceSettings:
        """The module's settings, with this length.

        Raises:
            ConfigError: the module asks for sequences that end in a way of their own, or burns in too much for them.
        """
        found = sequence_settings(rl_module, self.length if steps is None else steps)
        if found.end == "pad":
            return found
        raise ConfigError(
            "RandomSubsequences",
            expected="sequence_end 'pad' in the module's model_config; each chunk has one sequence here",
            found=repr(found.end),
            do="leave sequence_end out, or RandomSubsequences",
        )


def layout_of(group: ChunkGroup, steps: int | None = None) -> SequenceLayout:
    """Return the positions of the rows of a call's chunks in its sequences.

    Args:
        group: About a recurrent module.
        steps: Rows per sequence, where the batch has its time axis already.

    Raises:
        ConfigError: the module's settings are wrong.
    """
    cached, counts = group.sequences, group.counts
    if cached is not None and (cached.counts is counts or np.array_equal(cached.counts, counts)):
        return cached
    group.sequences = _layout(group, steps) if group.cut is None else _random(group, group.cut)
    return group.sequences


def leading_axes(group: ChunkGroup, name: str, column: Any) -> int:
    """Return the number of axes before those of a row: 2 in sequences `[B, T, ...]`, otherwise 1.

    Args:
        group: The chunks.
        name: The column's name.
        column: An `EpisodeColumn`, or arrays or tensors that are batched already.
    """
    if not group.stateful or group.ragged or group.is_per_sequence(name) or name in _OUTPUT_STATES:
        return 1
    if not isinstance(column, EpisodeColumn):
        return 2
    if group.rows is None or group.sequences is None or column.holds_objects:
        return 1
    leaves = flatten(column.data)[0]
    return 2 if leaves and leaves[0].shape[:2] == group.sequences.mask.shape else 1


def step_places(group: ChunkGroup, *, leading: int = 1) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows of a train batch that are steps of the episodes, not bootstrap rows or padding.

    Args:
        group: The chunks.
        leading: Axes before those of a row, as `leading_axes` says.

    Returns:
        bool [rows]; of rows that are laid out [B, T]. None: all are steps.
    """
    layout = layout_of(group) if leading > 1 else None if group.stateful else group.sequences
    if group.ragged or (layout is None and not group.plus_one):
        return None
    steps = np.ones(int(group.counts.sum()), np.bool_)
    if group.plus_one:
        steps[np.cumsum(group.counts) - 1] = False
    found = steps if layout is None else steps[layout.source].reshape(layout.mask.shape) & layout.mask
    return None if found.all() else found


def merged_sequences(
    layouts: Sequence[SequenceLayout | None], order: npt.NDArray[np.int64], module_id: Any
) -> SequenceLayout | None:
    """The sequences of several groups of one module's chunks, or None as long as there are none.

    Args:
        layouts: Of each group.
        order: How to take their chunks, one group after the other, in the order of the module's: int64 [chunks].
        module_id: Their module.

    Raises:
        ConfigError: sequences that hold several chunks; those of other groups would stand in between.
    """
    found = [layout for layout in layouts if layout is not None]
    if len(found) < len(layouts):
        return None
    if any(layout.resets is not None for layout in found):
        raise ConfigError(
            f"module {module_id!r}, sequence_end",
            expected="one of pad, drop, truncate, overlap, since its agents have different spaces",
            found="'continue'",
            do="use sequence_end 'overlap', or a module for each kind of agent",
        )
    return joined_layout(found, order)


def _layout(group: ChunkGroup, steps: int | None) -> SequenceLayout:
    settings = sequence_settings(group.rl_module, steps)
    return sequence_layout(
        group.counts, settings.max_seq_len, end=settings.end, burn_in=settings.burn_in, bootstrapped=group.plus_one
    )


def _random(group: ChunkGroup, cut: RandomCut) -> SequenceLayout:
    settings = cut.settings(group.rl_module)
    own: dict[str, Any] = {"burn_in": settings.burn_in, "short": cut.short, "bootstrapped": group.plus_one}
    return random_layout(group.counts, settings.max_seq_len, cut.draws, **own)
