"""Recurrent layers that go on from another state within a sequence, against one pass per part."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from epibatch.core.errors import ColumnError
from epibatch.core.rl_module.resets import resetting

HIDDEN = 4


def layer_of(kind):
    torch.manual_seed(3)
    return {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](3, HIDDEN, batch_first=True)


def states_of(kind, *shape, seed):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(*shape, HIDDEN, generator=generator) for _ in range(2)]
    return tuple(made) if kind == "lstm" else made[0]


def row_of(states, *index):
    return tuple(one[index] for one in states) if isinstance(states, tuple) else states[index]


def part_by_part(layer, x, resets, states, at_resets):
    """Each row cut at its resets, each part run by itself."""
    outputs, last = [], []
    for row in range(len(x)):
        edges = [0, *torch.nonzero(resets[row]).flatten().tolist(), x.shape[1]]
        parts = []
        for number, (start, stop) in enumerate(pairwise(edges)):
            state = row_of(states, row) if number == 0 else row_of(at_resets, row, number - 1)
            begin = tuple(one[None, None] for one in state) if isinstance(state, tuple) else state[None, None]
            out, state = layer(x[row : row + 1, start:stop], begin)
            parts.append(out)
        outputs.append(torch.cat(parts, 1))
        last.append(torch.stack([one[0, 0] for one in state]) if isinstance(state, tuple) else state[0, 0])
    return torch.cat(outputs), torch.stack(last)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@given(st.data())
@settings(max_examples=10, deadline=None)
def test_equals_one_pass_per_part(kind, data):
    rows, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    marks = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    resets = torch.tensor(marks).view(rows, steps)
    resets[:, 0] = False
    most, layer = int(resets.sum(1).max()), layer_of(kind)
    x = torch.randn(rows, steps, 3, generator=torch.Generator().manual_seed(5), requires_grad=True)
    states, at = states_of(kind, rows, seed=1), states_of(kind, rows, most + data.draw(st.integers(0, 1)), seed=2)
    outputs, last = resetting(layer, x, resets, states, at)
    expected, ends = part_by_part(layer, x, resets, states, at)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    last = torch.stack(last, 1) if kind == "lstm" else last
    torch.testing.assert_close(last, ends, rtol=1e-5, atol=1e-6)
    weight = torch.arange(1.0, outputs.numel() + 1).view_as(outputs)
    ((own,), (right,)) = (torch.autograd.grad((one * weight).sum(), x) for one in (outputs, expected))
    torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("resets", [[[False, True, True]], [[True, False, False]]])
def test_resets_without_a_state_are_named(resets):
    layer = layer_of("gru")
    with pytest.raises(ColumnError, match="reset_states"):
        resetting(layer, torch.ones(1, 3, 3), torch.tensor(resets), torch.zeros(1, 4), torch.zeros(1, 1, 4))
