"""Recurrent layers over sequences in which another episode begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from epibatch.core.errors import ColumnError

__all__ = ["resetting"]


def resetting(layer: nn.RNNBase, x: torch.Tensor, resets: torch.Tensor, states: Any, at_resets: Any) -> tuple[Any, Any]:
    """Run an LSTM, GRU or RNN layer that goes on from another state at each reset.

    Rows without a reset are one pass, and the parts between resets, as sequences of their own, another.

    Args:
        layer: Of one direction and one level, with `batch_first=True`.
        x: [B, T, ...], the layer's input.
        resets: bool [B, T], True where the state is replaced before the timestep; never at a row's first.
        states: [B, H] to start rows from, or (h, c) for an LSTM.
        at_resets: [B, R, H], or (h, c): the states at each row's resets in order, R at least the most of any row.

    Returns:
        The layer's outputs [B, T, H], and the state after each row's last timestep, in the form of `states`.

    Raises:
        ColumnError: there are fewer states than resets, or a row begins with a reset.

    Examples:
        >>> layer = nn.GRU(1, 1, batch_first=True)
        >>> x, zero = torch.ones(1, 4, 1), torch.zeros(1, 1)
        >>> outputs, _ = resetting(layer, x, torch.tensor([[False, False, True, False]]), zero, zero[None])
        >>> bool((outputs[0, :2] == outputs[0, 2:]).all())
        True
    """
    pair = isinstance(states, tuple)
    starts, at = (states, at_resets) if pair else ((states,), (at_resets,))
    resets = resets.to(torch.bool)
    max_resets = int(resets.sum(1).max()) if len(resets) else 0
    if max_resets > at[0].shape[1] or bool(resets[:, 0].any()):
        raise ColumnError(
            "columns 'resets' and 'reset_states'",
            expected="a state for each reset of a row, and no reset at its first timestep, which has 'state_in'",
            found=f"up to {max_resets} resets and {at[0].shape[1]} states",
            do="let AddTimeDimToBatchAndZeroPad and AddStatesFromEpisodesToBatch make both",
        )
    has_reset = resets.any(1)
    without, having = (torch.nonzero(mask).flatten() for mask in (~has_reset, has_reset))
    outputs, last = [], []
    if len(without):
        begin = tuple(state[without][None] for state in starts)
        out, end = layer(x[without], begin if pair else begin[0])
        outputs.append(out)
        last.append([state[0] for state in (end if pair else (end,))])
    if len(having):
        out, ends = _run_segments(
            layer, x[having], resets[having], [state[having] for state in starts], [state[having] for state in at]
        )
        outputs.append(out)
        last.append(ends)
    order = torch.argsort(torch.cat([without, having]))
    merged = tuple(torch.cat(parts)[order] for parts in zip(*last))
    return torch.cat(outputs)[order], merged if pair else merged[0]


def _run_segments(
    layer: nn.RNNBase, x: torch.Tensor, resets: torch.Tensor, starts: Any, at: Any
) -> tuple[Any, list[Any]]:
    """Run rows part by part; return the outputs, and the states after each row's last timestep."""
    rows, steps = resets.shape
    number = resets.cumsum(1)  # of the part within its row
    first = torch.cumsum(number[:, -1] + 1, 0) - number[:, -1] - 1  # of each row's parts among all
    parts = first[:, None] + number
    lengths = torch.bincount(parts.flatten())
    begins = torch.cumsum(lengths, 0) - lengths
    within = torch.arange(rows * steps, device=x.device).view(rows, steps) - begins[parts]
    inputs = x.new_zeros(len(lengths), int(lengths.max()), *x.shape[2:])
    inputs[parts, within] = x
    places = resets.nonzero(as_tuple=True)
    indices = (places[0], number[places] - 1)  # of the states at resets
    initial = tuple(
        _initial_states(start, restart[indices], first, parts[places])[None] for start, restart in zip(starts, at)
    )
    packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    pair = len(initial) > 1
    outputs, last = layer(packed, initial if pair else initial[0])
    outputs = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])[0][parts, within]
    return outputs, [state[0][parts[:, -1]] for state in (last if pair else (last,))]


def _initial_states(
    start: torch.Tensor, restarts: torch.Tensor, first: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    """The state of each part: a row's first part starts from the row's own, the others from those at its resets."""
    states = start.new_empty(len(first) + len(others), *start.shape[1:])
    states[first] = start
    states[others] = restarts.to(start.dtype)
    return states
