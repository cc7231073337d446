"""Recurrent states of episodes in the batch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
)
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch
from epibatch.core.errors import LookbackError


def learner_pieces():
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        AddStatesFromEpisodesToBatch(as_learner_connector=True),
    ]


def first_entries(state):
    return np.asarray(state["h"])[:, 0].tolist()


def env_states(lab, episodes, module, **keywords):
    pieces = [AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad(), AddStatesFromEpisodesToBatch()]
    seen = lab.see("env_to_module", pieces, episodes, rl_module=module, **keywords)
    return [items[0]["h"].tolist() for items in seen["state_in"].values()]


@pytest.mark.parametrize(
    ("length", "max_seq_len", "expected"),
    [
        (7, 3, [-1.0, 2.25, 5.25]),  # the state before steps 0, 3 and 6 is the output of steps -, 2 and 5
        (6, 3, [-1.0, 2.25]),
        (1, 3, [-1.0]),
        (3, 1, [-1.0, 0.25, 1.25]),
        (4, 20, [-1.0]),
    ],
)
def test_learner_rows_begin_with_the_state_before_them(lab, length, max_seq_len, expected):
    columns = lab.columns(
        "learner",
        learner_pieces(),
        [lab.episode("a", length, state=2)],
        rl_module=lab.module(2, max_seq_len, multi=True),
    )
    assert first_entries(columns["state_in"]["a",]) == expected
    assert columns["state_in"]["a",]["h"].shape == (len(expected), 2)
    assert columns["state_in"]["a",]["h"].dtype == np.float32


@pytest.mark.parametrize("lookback", [1, 4])
def test_a_continued_chunk_begins_with_its_lookback_state(lab, lookback):
    chunk = lab.episode("a", 5, t_started=10, lookback=lookback, state=2)
    columns = lab.columns("learner", learner_pieces(), [chunk], rl_module=lab.module(2, 3, multi=True))
    assert first_entries(columns["state_in"]["a",]) == [9.25, 12.25]


def test_a_continued_chunk_without_lookback_is_an_error(lab):
    chunk = lab.episode("some_id", 5, t_started=10, lookback=0, state=2)
    with pytest.raises(LookbackError, match="some_id"):
        lab.run("learner", learner_pieces(), [chunk], rl_module=lab.module(2, 3, multi=True))


def test_episodes_without_states_begin_with_the_initial_state(lab):
    columns = lab.columns("learner", learner_pieces(), [lab.episode("a", 2)], rl_module=lab.module(2, 3, multi=True))
    assert first_entries(columns["state_in"]["a",]) == [-1.0]


def test_state_out_never_enters_the_train_batch(lab):
    columns = lab.columns(
        "learner", learner_pieces(), [lab.episode("a", 4, state=2)], rl_module=lab.module(2, 3, multi=True)
    )
    assert "state_out" not in columns


def test_next_states_come_along_with_next_observations(lab):
    chunk = lab.episode("a", 5, state=2)
    mine = {"new_obs": {("a",): list(chunk.get_observations(slice(1, 6)))}}
    columns = lab.columns("learner", learner_pieces(), [chunk], rl_module=lab.module(2, 3, multi=True), batch=mine)
    # one step later than state_in: the states after steps 0 and 3
    assert first_entries(columns["next_state_in"]["a",]) == [0.25, 3.25]


def test_env_side_takes_the_initial_state_or_the_newest_output(lab):
    episodes = [lab.episode("a", 0, state=2, numpy=False), lab.episode("b", 3, state=2, numpy=False)]
    assert env_states(lab, episodes, lab.module(2)) == [[-1.0, -1.0], [2.25, 2.25]]


def test_env_side_continues_a_cut_chunk_from_its_lookback(lab):
    first = lab.episode("b", 3, state=2, numpy=False)
    assert env_states(lab, [first.cut(1)], lab.module(2)) == [[2.25, 2.25]]


@pytest.mark.parametrize("end", [None, "terminated"])
def test_env_side_refuses_a_cut_chunk_without_its_newest_state(lab, end):
    chunk = lab.episode("some_id", 0, t_started=1, end=end, state=2, numpy=False)
    with pytest.raises(LookbackError, match="some_id"):
        env_states(lab, [chunk], lab.module(2))


@pytest.mark.parametrize("kind", ["env_to_module", "learner"])
def test_stateless_modules_get_no_states(lab, kind):
    piece = AddStatesFromEpisodesToBatch(as_learner_connector=kind == "learner")
    add_obs = AddObservationsFromEpisodesToBatch(as_learner_connector=kind == "learner")
    episodes = [lab.episode("a", 3, state=2, numpy=kind == "learner")]
    assert set(lab.see(kind, [add_obs, piece], episodes, rl_module=lab.module())) == {"obs"}


def test_an_initial_state_of_a_wider_type_casts_nothing_but_itself(lab, monkeypatch):
    def filled(shape, dtype=float, **keywords):
        return np.full(shape, 1e300 if dtype == np.float64 else 0, dtype)  # what memory may hold

    module = lab.module(2, 3)
    monkeypatch.setattr(type(module), "get_initial_state", lambda self: {"h": np.full(2, -1.0)})
    chunk = lab.episode("a", 5, state=2)
    mine = {"new_obs": {("a",): list(chunk.get_observations(slice(1, 6)))}}
    monkeypatch.setattr(np, "empty", filled)
    columns = lab.columns("learner", learner_pieces(), [chunk], rl_module=module, batch=mine)
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

    module = lab.module(2, 2, multi=True, two_leaved=True)
    episodes = [two_leaved("a", "hc"), two_leaved("b", "ch")]
    columns = lab.columns("learner", learner_pieces(), episodes, rl_module=module)
    for id_ in "ab":
        assert columns["state_in"][id_,]["h"][1].tolist() == [11.0, 11.0]
        assert columns["state_in"][id_,]["c"][1].tolist() == [21.0, 21.0]


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="lookback"):
        AddStatesFromEpisodesToBatch(lookback=3)


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
    seen = lab.see("learner", learner_pieces(), [lab.episode("a", 7, state=2)], rl_module=lab.module(2, 3))
    (item,) = seen["state_in"]["a",]
    assert type(item["h"]).__name__ == "BatchedNdArray" and item["h"].shape == (3, 2)


def test_acting_goes_not_on_from_the_initial_state_in_the_middle_of_an_episode(lab):
    lost = lab.episode("a", 0, t_started=3, state=2)
    with pytest.raises(LookbackError, match=r"starts at t=3[\s\S]*len_lookback_buffer=1"):
        env_states(lab, [lab.episode("b", 1, state=2), lost], lab.module(2))
