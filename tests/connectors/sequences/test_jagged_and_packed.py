"""Ragged and packed sequences against torch's own packing and against the rows of the episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from epibatch.connectors.observations import Affine
from epibatch.connectors.rewards import RewardScaling
from epibatch.connectors.sequences import BurnIn, JaggedSequences, PackSequences
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, UnknownNameError
from epibatch.learner import Minibatches


@pytest.mark.parametrize("lengths", [[9, 1, 4], [3], [1, 1], [8, 8]])
def test_rows_are_those_of_the_episodes_bit_by_bit(played, lengths):
    module = played.module()
    episodes = played.episodes(module, lengths)
    padded, batch = played.batch(module, episodes), played.batch(module, episodes, behind=[JaggedSequences()])
    assert batch.keys() == {*padded, "seq_offsets"}
    obs = np.concatenate([episode.get_observations()[:-1] for episode in episodes])
    rewards = np.concatenate([episode.get_rewards() for episode in episodes]).astype(np.float32)
    assert batch["obs"].numpy().tobytes() == obs.tobytes()
    assert batch["rewards"].numpy().tobytes() == rewards.tobytes()
    assert batch["loss_mask"].all()
    edges = batch["seq_offsets"]
    assert edges.dtype == torch.int64 and edges[0] == 0 and edges[-1] == sum(lengths)
    assert torch.equal(edges.diff(), batch["seq_lens"])
    for b, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist())):
        assert torch.equal(batch["obs"][start:stop], padded["obs"][b, : stop - start])


def test_a_nested_tensor_shows_the_same_memory(played):
    module = played.module()
    batch = played.batch(module, played.episodes(module, [9, 1, 4]), behind=[JaggedSequences()])
    nested = torch.nested.nested_tensor_from_jagged(batch["obs"], batch["seq_offsets"])
    assert [len(own) for own in nested.unbind()] == batch["seq_lens"].tolist()
    assert nested.values().data_ptr() == batch["obs"].data_ptr()
    padded = played.batch(module, played.episodes(module, [9, 1, 4]))["obs"]
    assert torch.equal(nested.to_padded_tensor(0.0, (len(padded), 4, 3)), padded)


def test_bootstrap_rows_are_left_out_and_resets_stay(played):
    module = played.module()
    episodes = played.episodes(module, [4, 6])
    batch = played.batch(module, episodes, ppo=True, behind=[JaggedSequences()])
    assert len(batch["advantages"]) == 10 and batch["seq_offsets"].tolist() == [0, 4, 4, 8, 10]
    continued = played.batch(played.module(sequence_end="continue"), episodes, behind=[JaggedSequences()])
    assert continued["resets"].tolist() == [False] * 10  # the second episode begins with a sequence
    continued = played.batch(played.module(sequence_end="continue"), episodes[::-1], behind=[JaggedSequences()])
    assert torch.nonzero(continued["resets"]).tolist() == [[6]]


@pytest.mark.parametrize("ppo", [False, True])
def test_transforms_behind_see_rows_without_a_time_axis(played, ppo):
    """Rows of [R, 3], and rewards of steps alone, so that none is left at 0."""
    module = played.module()
    episodes = played.episodes(module, [9, 1, 4])
    plain = played.batch(module, episodes, ppo=ppo, behind=[JaggedSequences()])
    pieces = [JaggedSequences(), Affine(columns="obs", scale=[1.0, 2.0, 3.0]), RewardScaling(loc=10.0)]
    for piece in pieces:
        piece.training_only = True  # meant, although advantages were made of what it changes
    batch = played.batch(module, episodes, ppo=ppo, behind=pieces)
    assert torch.equal(batch["obs"], plain["obs"] * torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(batch["rewards"], plain["rewards"] + 10)


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


@pytest.mark.parametrize("piece", [JaggedSequences(), PackSequences(columns=["extra", "obs"])])
def test_nested_columns_and_some_columns_only(played, piece):
    module = played.module()
    extra = {("e0",): [{"x": i, "y": (float(i),)} for i in range(5)]}
    pipeline = played.pipeline(behind=[piece.clone()])
    batch = pipeline(rl_module=module, batch={"extra": extra}, episodes=played.episodes(module, [5]))
    if isinstance(piece, JaggedSequences):
        assert batch["extra"]["x"].tolist() == [0, 1, 2, 3, 4] == batch["extra"]["y"][0].tolist()
        return
    assert batch["extra"]["x"].data.tolist() == [0, 4, 1, 2, 3]
    assert batch["extra"]["y"][0].data.tolist() == [0.0, 4.0, 1.0, 2.0, 3.0]
    assert isinstance(batch["obs"], PackedSequence)
    assert batch["rewards"].shape == batch["loss_mask"].shape == (2, 4)


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


@pytest.mark.parametrize(("piece", "words"), [(JaggedSequences, "batch, time"), (PackSequences, "PackedSequence")])
def test_minibatches_and_the_default_network_refuse_them(played, piece, words):
    module = played.module()
    batch = played.batch(module, played.episodes(module, [6, 3]), behind=[piece()])
    with pytest.raises(BatchLayoutError, match=piece.__name__):
        Minibatches(batch, size=4)
    with pytest.raises(ColumnError, match=words):
        module.forward_train(batch)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["overlap", "continue"])
@pytest.mark.parametrize("piece", [BurnIn, JaggedSequences, PackSequences])
def test_they_keep_the_contract_however_sequences_end(played, piece, end):
    """The end "pad" is held with all built-in pieces."""
    if piece is JaggedSequences or end == "overlap":
        played.check(piece, sequence_end=end, burn_in=2 if piece is BurnIn else 0)
