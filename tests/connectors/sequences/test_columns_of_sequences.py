"""Jagged and packed sequences, and columns of one row per sequence: against torch's packing and the episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from epibatch.algorithms import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import ConcatenateColumns, RenameColumns
from epibatch.connectors.observations import Affine
from epibatch.connectors.rewards import RewardScaling
from epibatch.connectors.sequences import BurnIn, JaggedSequences, PackSequences
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, UnknownNameError
from epibatch.env_runner import make_multi_agent
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


@pytest.mark.parametrize(
    ("piece", "order"),
    [(JaggedSequences(), [0, 1, 2, 3, 4]), (PackSequences(columns=["extra", "obs"]), [0, 4, 1, 2, 3])],
)
def test_nested_columns_and_some_columns_only(played, piece, order):
    module = played.module()
    extra = {("e0",): [{"x": i, "y": (float(i),)} for i in range(5)]}
    pipeline = played.pipeline(behind=[piece.clone()])
    batch = pipeline(rl_module=module, batch={"extra": extra}, episodes=played.episodes(module, [5]))
    for column in (batch["extra"]["x"], batch["extra"]["y"][0]):
        assert column.data.tolist() == order
    if isinstance(piece, PackSequences):
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
@pytest.mark.parametrize(
    ("piece", "end"),
    [(BurnIn, "overlap"), (JaggedSequences, "overlap"), (JaggedSequences, "continue"), (PackSequences, "overlap")],
)
def test_they_keep_the_contract_however_sequences_end(played, piece, end):
    """The end "pad" is held with all built-in pieces."""
    played.check(piece, sequence_end=end, burn_in=2 if piece is BurnIn else 0)


LENGTHS = [9, 1, 4, 6]


class Doubled(ColumnTransform):
    """Takes rows of [4, 5], sees to it that it gets them, and doubles them."""

    takes_tensors = True
    columns: Any = "memory/h"

    def transform(self, x: Any) -> Any:
        assert tuple(x.shape[1:]) == (4, 5)
        return x * 2


def views() -> TrajectoryViews:
    memory = View("state_out", "-4:-1", per_sequence=True, mask=True)
    return TrajectoryViews(views={"memory": memory}, as_learner_connector=True)


def batch_of(played: Any, module: Any, episodes: Any, *behind: Any, **options: Any) -> dict[str, Any]:
    """A batch with the states of the last four steps, sequences being of four steps, too."""
    pipeline = played.pipeline(behind=behind, **options)
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    batch: dict[str, Any] = pipeline(rl_module=module, batch={}, episodes=episodes)
    return batch


def memory_before(episode: Any, row: int) -> tuple[Any, Any]:
    """The recorded h of the four steps before a row, and which of these steps there are."""
    found, there = np.zeros((4, 5), np.float32), np.zeros(4, bool)
    for place, step in enumerate(range(row - 4, row)):
        if step >= 0:
            found[place], there[place] = episode.get_extra_model_outputs("state_out", step)["h"], True
    return found, there


def firsts(episodes: Any, steps: int = 4) -> list[tuple[Any, int]]:
    """The episode and the first row of each sequence."""
    return [(episode, row) for episode in episodes for row in range(0, len(episode), steps)]


def check(batch: Any, expected: list[tuple[Any, int]], factor: float = 1.0, name: str = "memory") -> None:
    rows = [memory_before(episode, row) for episode, row in expected]
    assert batch[name]["h"].shape == (len(rows), 4, 5)
    np.testing.assert_array_equal(batch[name]["h"].numpy(), factor * np.stack([row for row, _ in rows]))
    np.testing.assert_array_equal(batch[f"{name}_mask"].numpy(), np.stack([there for _, there in rows]))


@pytest.mark.parametrize("piece", [None, JaggedSequences, PackSequences])
def test_memory_keeps_its_rows_beside_sequences_that_are_jagged_or_packed(played: Any, piece: Any) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    batch = batch_of(played, module, episodes, *([piece()] if piece else []))
    check(batch, firsts(episodes))
    if piece is JaggedSequences:
        assert batch["obs"].shape == (sum(LENGTHS), 3)


def test_sequences_of_a_bootstrap_row_alone_are_left_out_of_packed_memory(played: Any) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    assert batch_of(played, module, episodes, ppo=True)["memory"]["h"].shape[0] == 8  # 4 steps, and one row behind
    check(batch_of(played, module, episodes, PackSequences(), ppo=True), firsts(episodes))


def test_packing_memory_is_refused_by_name(played: Any) -> None:
    module = played.module()
    with pytest.raises(UnknownNameError, match=r"found: +'memory'"):
        batch_of(played, module, played.episodes(module, [5]), PackSequences(columns=["memory"]))


def test_burning_in_takes_memory_at_the_first_row_that_is_left(played: Any) -> None:
    seen = []

    class Remembering(type(played.module())):
        """Notes the memory that it is given, on its way to burn states in."""

        def forward_train(self, batch: Any, **kwargs: Any) -> Any:
            seen.append((batch["memory"]["h"], batch["memory_mask"], batch["obs"].shape[:2]))
            return super().forward_train(batch, **kwargs)

    options = {"fcnet_hiddens": [6], "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4, "burn_in": 2}
    module = Remembering(observation_space=played.obs_space, action_space=played.act_space, model_config=options)
    episodes = played.episodes(module, LENGTHS)
    seen.clear()
    batch = batch_of(played, module, episodes, burn_in=True)
    expected = firsts(episodes, steps=2)
    check(batch, expected)  # sequences of two steps are left, each with what was in front of it
    burned = [(episode, row) for episode, row in expected if row]
    ((memory, mask, shape),) = seen  # a sequence that others stand in front of is burned in from two rows before it
    assert shape == (len(burned), 2)
    check({"memory": {"h": memory}, "memory_mask": mask}, [(episode, row - 2) for episode, row in burned])


@pytest.mark.parametrize("where", ["arrays", "tensors"])
def test_transforms_see_rows_of_a_sequence_and_no_time_axis(played: Any, where: str) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    pipeline = played.pipeline(behind=[Doubled(), JaggedSequences()] if where == "tensors" else [JaggedSequences()])
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    if where == "arrays":
        pipeline.insert_after("TrajectoryViews", Doubled())
    check(pipeline(rl_module=module, batch={}, episodes=episodes), firsts(episodes), factor=2.0)


def test_memory_that_was_changed_cannot_be_taken_anew_when_states_are_burned_in(played: Any) -> None:
    module = played.module(burn_in=2)
    pipeline = played.pipeline(burn_in=True)
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    pipeline.insert_before("BurnIn", Doubled())
    with pytest.raises(ColumnError, match=r"column 'memory'[\s\S]*put that piece after BurnIn"):
        pipeline(rl_module=module, batch={}, episodes=played.episodes(module, [9]))


def test_renamed_memory_is_memory_still(played: Any) -> None:
    module, names = played.module(), {"memory": "m", "obs": "seen", "memory_mask": "m_mask"}
    episodes = played.episodes(module, LENGTHS)
    batch = batch_of(played, module, episodes, RenameColumns(names=names), JaggedSequences())
    check(batch, firsts(episodes), name="m")
    assert batch["seen"].shape == (sum(LENGTHS), 3)


def test_what_is_joined_of_columns_per_sequence_is_one_too_and_others_are_refused(played: Any) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    joined = ConcatenateColumns(columns=["memory/h", "memory/c"], to="m", axis=-1, keep=True)
    batch = batch_of(played, module, episodes, joined, JaggedSequences())
    assert torch.equal(batch["m"], torch.cat([batch["memory"]["h"], batch["memory"]["c"]], -1))
    mixed = ConcatenateColumns(columns=["memory/h", "obs"], to="m", axis=-1, keep=True)
    with pytest.raises(ColumnError, match="'memory' and 'obs', whose rows are of others"):
        batch_of(played, module, episodes, mixed)


@pytest.mark.parametrize("burn_in", [0, 1])
@pytest.mark.parametrize("shared", [True, False])
def test_memory_of_several_agents_is_that_in_front_of_the_first_row_of_each_sequence(
    shared: bool, burn_in: int
) -> None:
    """The row is found by its observation, in all agents' parts of the episodes."""
    model = {"use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4 + burn_in, "burn_in": burn_in}
    memory = View("state_out", "-4:-1", per_sequence=True, mask=True)
    other = "p" if shared else "q"
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2}).debugging(seed=0)
    config.rl_module(model_config=model, view_requirements={"memory": memory})
    config.multi_agent(policies=sorted({"p", other}), policy_mapping_fn={"0": "p", "*": other})
    algo = config.build_algo()
    chunks = algo.env_runner.sample(num_timesteps=60)
    pipeline = algo.learner.connector
    plain = pipeline(rl_module=algo.learner.module, batch={}, episodes=chunks)
    pipeline.append(JaggedSequences())
    batch = pipeline(rl_module=algo.learner.module, batch={}, episodes=chunks)
    algo.stop()
    rows = {}
    for segment in (segment for chunk in chunks for segment in chunk.segments):
        for row, obs in enumerate(segment.episode.get_observations()):
            rows.setdefault(obs.tobytes(), (segment.episode, row))
    for module_id, own in batch.items():
        firsts_seen = plain[module_id]["obs"][:, 0].numpy()
        check(own, [rows[obs.tobytes()] for obs in firsts_seen])
        assert len(own["obs"]) == int(own["seq_lens"].sum())
