"""Time axis and zero padding for recurrent modules."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
)
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, AddOneTsToEpisodesAndTruncate
from epibatch.core.errors import ColumnError, EpibatchError


def learner_pieces():
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
    ]


def padded(values, max_seq_len):
    """Rows of at most `max_seq_len` steps, zeros at the right: the plain loop."""
    result = []
    for start in range(0, len(values), max_seq_len):
        row = list(values[start : start + max_seq_len])
        result.append(row + [np.zeros_like(values[0])] * (max_seq_len - len(row)))
    return np.array(result)


@pytest.mark.parametrize("multi", [True, False])
@pytest.mark.parametrize(("length", "max_seq_len"), [(7, 4), (4, 4), (1, 4), (8, 4), (5, 1), (3, 20)])
def test_learner_columns_are_split_and_zero_padded_per_episode(lab, length, max_seq_len, multi):
    episodes = [lab.episode("a", length), lab.episode("b", 2, offset=100)]
    module = lab.module(state=2, max_seq_len=max_seq_len, multi=multi)
    columns = lab.columns("learner", learner_pieces(), episodes, rl_module=module)
    for id_, offset, steps in (("a", 0, length), ("b", 100, 2)):
        times = np.arange(steps) + offset
        expected = {
            "obs": padded(np.stack([times, times + 10], -1).astype(np.float32), max_seq_len),
            "actions": padded(times % 2, max_seq_len),
            "rewards": padded(times + 0.5, max_seq_len),
            "terminateds": padded(np.zeros(steps, bool), max_seq_len),
            "truncateds": padded(np.zeros(steps, bool), max_seq_len),
            "action_logp": padded(-times.astype(np.float32), max_seq_len),
            "loss_mask": padded(np.ones(steps, bool), max_seq_len),
        }
        for column, value in expected.items():
            found = columns[column][id_,]
            assert np.array_equal(found, value), column
            assert found.dtype == value.dtype, column
        assert columns["seq_lens"][id_,].tolist() == [
            min(max_seq_len, steps - start) for start in range(0, steps, max_seq_len)
        ]
    assert set(columns) == {*expected, "seq_lens"}


def test_seven_steps_in_rows_of_four(lab):
    columns = lab.columns("learner", learner_pieces(), [lab.episode("a", 7)], rl_module=lab.module(2, 4, multi=True))
    assert columns["seq_lens"]["a",].tolist() == [4, 3]
    assert columns["loss_mask"]["a",].tolist() == [[True] * 4, [True] * 3 + [False]]
    assert columns["rewards"]["a",].tolist() == [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5, 6.5, 0.0]]


def test_nested_columns_are_padded_leaf_by_leaf(lab):
    episodes = [lab.episode("a", 3)]
    extra = {("a",): [{"x": np.arange(i, i + 2), "y": float(i)} for i in range(3)]}
    columns = lab.columns(
        "learner", learner_pieces(), episodes, rl_module=lab.module(2, 2, multi=True), batch={"extra": extra}
    )
    assert columns["extra"]["a",]["x"].tolist() == [[[0, 1], [1, 2]], [[2, 3], [0, 0]]]
    assert columns["extra"]["a",]["y"].tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_env_side_adds_a_time_axis_of_one(lab):
    episodes = [lab.episode("a", 0, numpy=False), lab.episode("b", 3, numpy=False)]
    pieces = [AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad()]
    seen = lab.see("env_to_module", pieces, episodes, rl_module=lab.module(state=2))
    assert [items[0].tolist() for items in seen["obs"].values()] == [[[0.0, 10.0]], [[3.0, 13.0]]]
    assert set(seen) == {"obs"}


@pytest.mark.parametrize("kind", ["env_to_module", "learner"])
def test_stateless_modules_get_no_time_axis(lab, kind):
    episodes = [lab.episode("a", 3, numpy=kind == "learner")]
    if kind == "learner":
        columns = lab.columns(kind, learner_pieces(), episodes, rl_module=lab.module(multi=True))
        assert columns["obs"]["a",].shape == (3, 2)
        assert not {"seq_lens", "loss_mask"} & set(columns)
    else:
        pieces = [AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad()]
        seen = lab.see(kind, pieces, episodes, rl_module=lab.module())
        assert seen["obs"]["a",][0].shape == (2,)


def test_nothing_happens_when_states_are_there_already(lab):
    episodes = [lab.episode("a", 3)]
    mine = {"state_in": {("a",): [{"h": np.zeros(2)}]}}
    columns = lab.columns("learner", learner_pieces(), episodes, rl_module=lab.module(2, 4, multi=True), batch=mine)
    assert columns["obs"]["a",].shape == (3, 2)
    assert "seq_lens" not in columns


def test_infos_are_never_padded(lab):
    episodes = [lab.episode("a", 3)]
    infos = {("a",): [{"t": 0}, {"t": 1}, {"t": 2}]}
    seen = lab.see(
        "learner", learner_pieces(), episodes, rl_module=lab.module(2, 2, multi=True), batch={"infos": infos}
    )
    assert seen["infos"]["a",] == [{"t": 0}, {"t": 1}, {"t": 2}]


def test_padding_keeps_two_chunks_of_one_episode_apart(lab):
    episodes = [lab.episode("x_y", 3), lab.episode("x_y", 2, t_started=3, lookback=1)]
    pieces = [*learner_pieces(), BatchIndividualItems()]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(2, 4))
    assert np.asarray(batch["rewards"]).tolist() == [[0.5, 1.5, 2.5, 0.0], [3.5, 4.5, 0.0, 0.0]]
    assert np.asarray(batch["seq_lens"]).tolist() == [3, 2]


@pytest.mark.parametrize("value", [None, 0, -3])
def test_a_recurrent_module_must_say_its_max_seq_len(lab, value):
    module = lab.module(2, max_seq_len=value)
    with pytest.raises((EpibatchError, ValueError), match="max_seq_len"):
        lab.run("learner", learner_pieces(), [lab.episode("a", 3)], rl_module=module)


@pytest.mark.parametrize("delta", [-1, 1, 5])
def test_a_column_with_another_number_of_rows_is_named(lab, delta):
    episodes = [lab.episode("first", 3), lab.episode("second", 4)]
    counts = {("first",): 3, ("second",): 4 + delta}
    mine = {"extra": {key: list(np.zeros(count)) for key, count in counts.items()}}
    with pytest.raises(EpibatchError, match="extra") as raised:
        lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(2, 4, multi=True), batch=mine)
    message = str(raised.value)
    assert "second" in message
    assert str(4 + delta) in message


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="max_len"):
        AddTimeDimToBatchAndZeroPad(max_len=3)


@pytest.mark.parametrize("end", ["pad", "drop", "truncate", "overlap", "continue"])
@pytest.mark.parametrize("bootstrapped", [False, True])
def test_a_loss_mask_of_ones_own_and_that_of_the_sequences_both_hold(lab, end, bootstrapped):
    episodes = [lab.episode("a", 7), lab.episode("b", 2, offset=100)]
    module = lab.module(state=2, max_seq_len=4)
    module.model_config["sequence_end"], module.handles_resets = end, True
    own = {("a",): [t % 3 != 0 for t in range(7)], ("b",): [False, True]}
    pieces = [AddOneTsToEpisodesAndTruncate()] * bootstrapped + learner_pieces()
    with_own, without = (
        lab.run("learner", [*pieces, BatchIndividualItems()], episodes, rl_module=module, batch=batch)
        for batch in ({"loss_mask": own}, {})
    )
    times = without["obs"][..., 0]
    wanted = np.where(times >= 100, times == 101, times % 3 != 0)
    assert without["loss_mask"].any()
    np.testing.assert_array_equal(with_own["loss_mask"], without["loss_mask"] & wanted)
    assert with_own["loss_mask"].dtype == bool and with_own["loss_mask"].sum() < without["loss_mask"].sum()


@pytest.mark.parametrize("weights", [[0.5, 1.0, 1.0], [1, 0, 1]])
def test_a_loss_mask_that_is_no_bools_is_named(lab, weights):
    batch = {"loss_mask": {("a",): weights}}
    with pytest.raises(ColumnError, match=r"column 'loss_mask'[\s\S]*one bool per row[\s\S]*a column of another name"):
        lab.run("learner", learner_pieces(), [lab.episode("a", 3)], rl_module=lab.module(state=2), batch=batch)
