"""Packed sequences, against torch's own packing and against padded sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from epibatch.connectors.sequences import PackSequences
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, UnknownNameError
from epibatch.core.registry import build_piece
from epibatch.learner import Minibatches


@pytest.mark.parametrize("lengths", [[9, 1, 4], [3], [1, 1], [8, 8]])
def test_columns_are_packed_as_torch_packs_them(played, lengths):
    module = played.module()
    episodes = played.episodes(module, lengths)
    padded, packed = played.batch(module, episodes), played.batch(module, episodes, behind=[PackSequences()])
    assert packed.keys() == padded.keys()
    for name in ("obs", "actions", "rewards", "loss_mask", "action_logp"):
        right = pack_padded_sequence(padded[name], padded["seq_lens"], batch_first=True, enforce_sorted=False)
        found = packed[name]
        assert isinstance(found, PackedSequence)
        assert torch.equal(found.batch_sizes, right.batch_sizes)
        back, sizes = pad_packed_sequence(found, batch_first=True, total_length=4)
        assert torch.equal(back, padded[name]) and torch.equal(sizes, padded["seq_lens"])
        assert len(found.data) == sum(lengths)
    assert packed["loss_mask"].data.all()
    for name in ("h", "c"):
        assert torch.equal(packed["state_in"][name], padded["state_in"][name])


def test_a_recurrent_layer_takes_them_with_their_states(played):
    module = played.module()
    episodes = played.episodes(module, [9, 1, 4])
    padded, packed = played.batch(module, episodes), played.batch(module, episodes, behind=[PackSequences()])
    layer = nn.LSTM(3, 5, batch_first=True)
    states = [padded["state_in"][name][None] for name in ("h", "c")]
    outputs, (h, _) = layer(packed["obs"], tuple(states))
    right, _ = layer(padded["obs"], tuple(states))
    back, _ = pad_packed_sequence(outputs, batch_first=True, total_length=4)
    mask = padded["loss_mask"]
    torch.testing.assert_close(back[mask], right[mask])
    last = right[torch.arange(len(right)), padded["seq_lens"] - 1]
    torch.testing.assert_close(h[0], last)


def test_bootstrap_rows_and_sequences_of_nothing_else_are_left_out(played):
    module = played.module()
    episodes = played.episodes(module, [4, 6])  # five rows: the second sequence of the first is the bootstrap row alone
    padded = played.batch(module, episodes, ppo=True)
    packed = played.batch(module, episodes, ppo=True, behind=[PackSequences()])
    assert padded["seq_lens"].tolist() == [4, 0, 4, 2]
    assert packed["seq_lens"].tolist() == [4, 4, 2]
    kept = torch.tensor([0, 2, 3])
    assert torch.equal(packed["state_in"]["c"], padded["state_in"]["c"][kept])
    back, _ = pad_packed_sequence(packed["advantages"], batch_first=True, total_length=4)
    assert torch.equal(back, padded["advantages"][kept])
    assert len(packed["obs"].data) == 10 and packed["loss_mask"].data.all()


def test_nested_columns_and_some_columns_only(played):
    module = played.module()
    extra = {("e0",): [{"x": i, "y": (float(i),)} for i in range(5)]}
    pipeline = played.pipeline(behind=[PackSequences(columns=["extra", "obs"])])
    batch = pipeline(rl_module=module, batch={"extra": extra}, episodes=played.episodes(module, [5]))
    assert batch["extra"]["x"].data.tolist() == [0, 4, 1, 2, 3]
    assert batch["extra"]["y"][0].data.tolist() == [0.0, 4.0, 1.0, 2.0, 3.0]
    assert isinstance(batch["obs"], PackedSequence)
    assert batch["rewards"].shape == batch["loss_mask"].shape == (2, 4)


def test_in_a_file():
    assert build_piece({"piece": "pack_sequences", "columns": ["obs"]}).columns == ["obs"]


def test_what_does_not_fit_is_named(played):
    module = played.module()
    episodes = played.episodes(module, [6])
    with pytest.raises(BatchLayoutError, match="JaggedSequences"):
        played.batch(played.module(sequence_end="continue"), episodes, behind=[PackSequences()])
    for name in ("ops", "state_in"):
        with pytest.raises(UnknownNameError, match=f"'{name}'"):
            played.batch(module, episodes, behind=[PackSequences(columns=[name])])
    for columns in ("obs", [1]):
        with pytest.raises(ConfigError, match="list of column names"):
            PackSequences(columns=columns)


def test_minibatches_and_the_default_network_refuse_them(played):
    module = played.module()
    batch = played.batch(module, played.episodes(module, [6, 3]), behind=[PackSequences()])
    with pytest.raises(BatchLayoutError, match="PackSequences"):
        Minibatches(batch, size=4)
    with pytest.raises(ColumnError, match="PackedSequence"):
        module.forward_train(batch)


@pytest.mark.parametrize("end", ["pad", "drop", "truncate", "overlap"])
def test_it_keeps_the_contract(played, end):
    played.check(PackSequences, sequence_end=end)
