"""Time axis, zero padding and states for recurrent modules."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
)
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, AddOneTsToEpisodesAndTruncate
from epibatch.core.errors import ColumnError, EpibatchError, LookbackError


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


def test_nested_columns_are_padded_leaf_by_leaf(lab):
    episodes = [lab.episode("a", 3)]
    extra = {("a",): [{"x": np.arange(i, i + 2), "y": float(i)} for i in range(3)]}
    columns = learned(lab, episodes, lab.module(2, 2, multi=True), learner_pieces(), batch={"extra": extra})
    assert columns["extra"]["a",]["x"].tolist() == [[[0, 1], [1, 2]], [[2, 3], [0, 0]]]
    assert columns["extra"]["a",]["y"].tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_nothing_happens_when_states_are_there_already(lab):
    episodes = [lab.episode("a", 3)]
    mine = {"state_in": {("a",): [{"h": np.zeros(2)}]}}
    columns = lab.columns("learner", learner_pieces(), episodes, rl_module=lab.module(2, 4, multi=True), batch=mine)
    assert columns["obs"]["a",].shape == (3, 2)
    assert "seq_lens" not in columns


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
    with pytest.raises(EpibatchError, match=rf"extra[\s\S]*second[\s\S]*{4 + delta}"):
        lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(2, 4, multi=True), batch=mine)


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


def pieces_with_states():
    return [*learner_pieces(), AddStatesFromEpisodesToBatch(as_learner_connector=True)]


def learned(lab, episodes, module=None, pieces=None, **keywords):
    """Columns by key after the pieces that make sequences and states."""
    module = module or lab.module(2, 3, multi=True)
    return lab.columns("learner", pieces or pieces_with_states(), episodes, rl_module=module, **keywords)


def first_entries(state):
    return np.asarray(state["h"])[:, 0].tolist()


def env_states(lab, episodes, module, **keywords):
    pieces = [AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad(), AddStatesFromEpisodesToBatch()]
    seen = lab.see("env_to_module", pieces, episodes, rl_module=module, **keywords)
    return [items[0]["h"].tolist() for items in seen["state_in"].values()]


def test_a_continued_chunk_without_lookback_is_an_error(lab):
    chunk = lab.episode("some_id", 5, t_started=10, lookback=0, state=2)
    with pytest.raises(LookbackError, match="some_id"):
        lab.run("learner", pieces_with_states(), [chunk], rl_module=lab.module(2, 3, multi=True))


def test_episodes_without_states_begin_with_the_initial_state(lab):
    columns = learned(lab, [lab.episode("a", 2)])
    assert first_entries(columns["state_in"]["a",]) == [-1.0]


def test_next_states_come_along_with_next_observations(lab):
    chunk = lab.episode("a", 5, state=2)
    mine = {"new_obs": {("a",): list(chunk.get_observations(slice(1, 6)))}}
    columns = learned(lab, [chunk], batch=mine)
    # one step later than state_in: the states after steps 0 and 3
    assert first_entries(columns["next_state_in"]["a",]) == [0.25, 3.25]


@pytest.mark.parametrize("end", [None, "terminated"])
def test_env_side_refuses_a_cut_chunk_without_its_newest_state(lab, end):
    chunk = lab.episode("some_id", 0, t_started=1, end=end, state=2, numpy=False)
    with pytest.raises(LookbackError, match="some_id"):
        env_states(lab, [chunk], lab.module(2))


def test_an_initial_state_of_a_wider_type_casts_nothing_but_itself(lab, monkeypatch):
    def filled(shape, dtype=float, **keywords):
        return np.full(shape, 1e300 if dtype == np.float64 else 0, dtype)  # what memory may hold

    module = lab.module(2, 3)
    monkeypatch.setattr(type(module), "get_initial_state", lambda self: {"h": np.full(2, -1.0)})
    chunk = lab.episode("a", 5, state=2)
    mine = {"new_obs": {("a",): list(chunk.get_observations(slice(1, 6)))}}
    monkeypatch.setattr(np, "empty", filled)
    columns = learned(lab, [chunk], module, batch=mine)
    assert first_entries(columns["state_in"]["a",]) == [-1.0, 2.25]
    assert first_entries(columns["next_state_in"]["a",]) == [0.25, 3.25]


def test_states_that_are_there_already_stay(lab):
    mine = {"state_in": {("a",): [{"h": np.full(2, 7.0)}]}}
    episodes = [lab.episode("a", 3, state=2, numpy=False)]
    assert env_states(lab, episodes, lab.module(2), batch=mine) == [[7.0, 7.0]]


def test_chunks_whose_states_have_their_keys_in_another_order_are_not_mixed_up(lab):
    def two_leaved(id_, keys):
        states = [{key: np.full(2, {"h": 10.0, "c": 20.0}[key] + t, np.float32) for key in keys} for t in range(4)]
        return lab.episode(id_, 4, extra_model_outputs={"state_out": states})

    episodes = [two_leaved("a", "hc"), two_leaved("b", "ch")]
    columns = learned(lab, episodes, lab.module(2, 2, multi=True, two_leaved=True))
    for id_ in "ab":
        assert columns["state_in"][id_,]["h"][1].tolist() == [11.0, 11.0]
        assert columns["state_in"][id_,]["c"][1].tolist() == [21.0, 21.0]


def test_env_side_starts_new_episodes_beside_running_ones(lab):
    """Those that recorded a state, those that just began, and those whose outputs have none."""
    lengths = [3, 0, 1, 5]
    episodes = [lab.episode(f"e{i}", length, state=2, numpy=False) for i, length in enumerate(lengths)]
    episodes.append(lab.episode("none", 4, numpy=False))
    newest = [[length - 1 + 0.25] * 2 if length else [-1.0, -1.0] for length in lengths]
    assert env_states(lab, episodes, lab.module(2)) == [*newest, [-1.0, -1.0]]


def test_the_module_is_asked_for_its_initial_state_where_one_is_needed(lab):
    """Its values may be learned: they are asked for each time, but not for episodes that go on."""
    module, asked = lab.module(2), []
    module.get_initial_state = lambda: asked.append(1) or {"h": np.full(2, 10.0 * len(asked), np.float32)}
    running, fresh = lab.episode("a", 3, state=2, numpy=False), lab.episode("b", 0, state=2, numpy=False)
    assert env_states(lab, [running], module) == [[2.25, 2.25]]
    before = len(asked)
    assert env_states(lab, [running], module) == [[2.25, 2.25]]
    assert len(asked) == before
    first = env_states(lab, [running, fresh], module)[1]
    assert first == [10.0 * len(asked)] * 2
    assert env_states(lab, [fresh], module) == [[10.0 * len(asked)] * 2] != [first]


def test_env_side_states_of_another_key_order_are_not_mixed_up(lab):
    def newest(id_, keys):
        states = [{key: np.full(2, {"h": 10.0, "c": 20.0}[key], np.float32) for key in keys}]
        return lab.episode(id_, 1, numpy=False, extra_model_outputs={"state_out": states})

    module = lab.module(2, two_leaved=True)
    pieces = [AddObservationsFromEpisodesToBatch(), AddStatesFromEpisodesToBatch()]
    for orders in (["ch", "ch"], ["ch", "hc"], ["hc", "ch"]):
        episodes = [newest(str(i), keys) for i, keys in enumerate(orders)]
        seen = lab.see("env_to_module", pieces, episodes, rl_module=module)
        for items in seen["state_in"].values():
            assert {key: leaf.tolist() for key, leaf in items[0].items()} == {"h": [10.0, 10.0], "c": [20.0, 20.0]}


def test_a_state_that_is_a_plain_number(lab):
    module = SimpleNamespace(is_stateful=lambda: True, get_initial_state=lambda: 0.5, model_config={"max_seq_len": 2})
    running = lab.episode("a", 3, numpy=False, extra_model_outputs={"state_out": [-3.0, -2.0, -1.0]})
    pieces = [AddObservationsFromEpisodesToBatch(), AddStatesFromEpisodesToBatch()]
    episodes = [running, lab.episode("b", 0, numpy=False, extra_model_outputs={"state_out": []})]
    seen = lab.columns("env_to_module", pieces, episodes, rl_module=module)
    assert {key: rows.tolist() for key, rows in seen["state_in"].items()} == {("a",): [-1.0], ("b",): [0.5]}


def test_plain_pieces_see_one_array_of_states_per_chunk(lab):
    seen = lab.see("learner", pieces_with_states(), [lab.episode("a", 7, state=2)], rl_module=lab.module(2, 3))
    (item,) = seen["state_in"]["a",]
    assert type(item["h"]).__name__ == "BatchedNdArray" and item["h"].shape == (3, 2)
