"""NaN and infinity are found where they are; equal rows have equal hashes, others do not."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.columns import CheckFinite, HashColumns
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import ColumnError
from epibatch.core.rl_module import default_module_spec
from fixture_pieces import UserPiece, played, trained


def episode(rewards, id_="e", lookback=0):
    observations = np.zeros((len(rewards) + 1, 2))
    return played(observations, rewards, id_=id_, len_lookback_buffer=lookback, t_started=lookback)


def run(pieces, episodes):
    return LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=episodes)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    at=st.integers(0, 19),
    number=st.sampled_from([np.nan, np.inf, -np.inf]),
    lookback=st.integers(0, 2),
)
def test_row_episode_and_step_are_those_of_the_first(lengths, at, number, lookback):
    at %= sum(lengths)
    chunk = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
    step = at - sum(lengths[:chunk])
    rewards = [[float(t) for t in range(length + lookback)] for length in lengths]
    rewards[chunk][lookback + step] = number
    episodes = [episode(own, f"e{i}", lookback=lookback) for i, own in enumerate(rewards)]
    place = (
        rf"column 'rewards', row {at}: episode 'e{chunk}' \(chunk {chunk} of {len(lengths)}\), step {lookback + step}\n"
    )
    for pieces in (
        [CheckFinite()],
        [CheckFinite(columns="rewards")],
        [AddColumnsFromEpisodesToTrainBatch(), CheckFinite()],
    ):
        with pytest.raises(ColumnError, match=place):
            run(pieces, episodes)


def test_what_is_finite_goes_through_unchanged():
    one = episode([1.0, 2.0])
    made = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    with_check = run([CheckFinite(), *made, CheckFinite(), BatchIndividualItems(), CheckFinite()], [one])
    without = run([*made, BatchIndividualItems()], [one])
    assert with_check.keys() == without.keys()
    assert all(np.array_equal(with_check[name], without[name]) for name in without)
    assert run([CheckFinite()], [one]) == {}


def test_parts_and_entries_are_named(nested):
    rows = [nested.row(0), nested.row(1)]
    rows[0]["pose"][1] = np.nan
    one = played(rows, id_="e")
    with pytest.raises(ColumnError, match=r"column \"obs\['pose'\]\", row 0, entry \[1\]: episode 'e'"):
        nested.train([CheckFinite()], [one])
    with pytest.raises(ColumnError, match=r"column 'obs/pose', row 0, entry \[1\]"):
        nested.train([CheckFinite(columns="obs/pose")], [one])
    nested.train([CheckFinite(columns="obs/info")], [one])


def test_the_newest_observation_has_its_step(nested):
    rows = [nested.row(0), nested.row(1), nested.row(2)]
    rows[2]["pose"][0] = np.inf
    one = played(rows)
    fine = nested.episode(3, "f")
    with pytest.raises(ColumnError, match=r"row 1, entry \[0\]: .* \(chunk 1 of 2\), step 2\n"):
        nested.act([CheckFinite()], [fine, one])


@pytest.mark.parametrize("rows", [np.array, torch.tensor])
def test_batched_arrays_and_tensors(rows):
    def checked(numbers):
        adds = UserPiece(lambda batch, episodes: {"x": numbers})
        return LearnerConnectorPipeline(connectors=[adds, CheckFinite()])(episodes=[episode([1.0])])["x"]

    with pytest.raises(ColumnError, match=r"column 'x', row 1, entry \[1\]\n[\s\S]*1 of 4 numbers"):
        checked(rows([[1.0, 2.0], [3.0, float("nan")]]))
    assert checked(rows([1, 2])).tolist() == [1, 2]
    with pytest.raises(ColumnError, match=r"column 'x', row 1\n[\s\S]*nan \(1 of 2 numbers"):
        checked(torch.tensor([1e300, float("nan")], dtype=torch.float64))  # large numbers are finite


@pytest.mark.parametrize("end", ["pad", "overlap", "continue"])
def test_steps_of_sequences_are_those_of_their_episode(end):
    config = {"use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4, "sequence_end": end}
    spaces = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)
    module = default_module_spec(*spaces, config).build()
    state = {key: np.zeros(np.shape(own), np.float32) for key, own in module.get_initial_state().items()}
    rewards = np.zeros((2, 7))
    rewards[1, 5] = np.nan
    episodes = [
        played(np.zeros((8, 1), np.float32), rewards[i], id_=f"e{i}", extra_model_outputs={"state_out": [state] * 7})
        for i in range(2)
    ]
    pipeline = PPOConfig().rl_module(model_config=config).build_learner_connector(*spaces)
    pipeline.insert_after("add_time_dim_to_batch_and_zero_pad", CheckFinite())
    with pytest.raises(ColumnError, match=r"column 'rewards', .*episode 'e1' \(chunk 1 of 2\), step 5\n"):
        pipeline(rl_module=module, batch={}, episodes=episodes)


def test_a_column_that_is_not_there():
    with pytest.raises(ColumnError, match="did you mean 'rewards'"):
        run([CheckFinite(columns="reward")], [episode([1.0])])


def hashed_rows(*columns):
    """The hashes of the rows of several columns of a batch."""
    given = {str(i): column for i, column in enumerate(columns)}
    adds, hashes = UserPiece(lambda batch, episodes: given), HashColumns(columns=list(given))
    return LearnerConnectorPipeline(connectors=[adds, hashes])(episodes=[played([0, 1])])["hash"]


def test_equal_observations_have_equal_hashes_wherever_they_are(nested):
    episodes = [nested.episode(6), nested.episode(6, "f")]
    batch = nested.train([HashColumns(columns=["obs/info/gear"], to="key")], episodes)
    keys = batch["key"]
    assert keys.dtype == np.int64 and keys.tolist() == hashed_rows(np.arange(6) % 5).tolist() * 2
    assert keys[0] == keys[5] and len(set(keys[:5].tolist())) == 5
    assert set(batch) == {"obs", "actions", "rewards", "terminateds", "truncateds", "vf_preds", "key"}
    for t in range(6):
        acting, _ = nested.act([HashColumns(columns=["obs/info/gear"], to="key")], [nested.episode(t)])
        assert acting["key"].tolist() == [keys[t]]


def test_several_columns_are_one_row(nested):
    piece = HashColumns(columns=["obs", "actions"])
    batch = nested.train([piece], [nested.episode(4), nested.episode(4, "f")])
    assert batch["hash"][:4].tolist() == batch["hash"][4:].tolist()
    assert len(set(batch["hash"].tolist())) == 4
    other = nested.train([HashColumns()], [nested.episode(4)])
    assert not set(other["hash"].tolist()) & set(batch["hash"].tolist())


def test_a_name_that_is_taken(nested):
    with pytest.raises(ColumnError, match="choose another name"):
        nested.train([], [nested.episode(2)], behind=[HashColumns(to="rewards")])


MASK = (1 << 64) - 1


def mixed(word):
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & MASK
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def by_hand(row):
    """The hash of one row of bytes, in integers without end."""
    row += b"\0" * (-len(row) % 8)
    words = [int.from_bytes(row[i : i + 8], "little") for i in range(0, len(row), 8)]
    total = sum(mixed((word + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i, word in enumerate(words)) & MASK
    return (mixed(total) ^ 1 << 63) - (1 << 63)


ROW_MAP = st.sampled_from(["f4", "f8", "u1", "i2", "i8", "?"]).flatmap(
    lambda kind: hnp.arrays(kind, st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(1, 3)))
)


@settings(max_examples=100, deadline=None)
@given(rows=ROW_MAP)
def test_equals_the_loop(rows):
    rows = np.nan_to_num(rows) + np.zeros((), rows.dtype) if rows.dtype.kind == "f" else rows
    assert hashed_rows(rows).tolist() == [by_hand(np.ascontiguousarray(row).tobytes()) for row in rows]


def test_rows_of_hashes_are_found_again():
    rng = np.random.default_rng(0)
    words, numbers = rng.choice(["a", "b", "c"], 40), rng.integers(0, 3, (40, 2))
    piece = HashColumns(columns=["words", "numbers"], keep_rows=True)
    for part in (slice(0, 25), slice(25, 40)):
        rows = {"words": words[part], "numbers": numbers[part]}
        adds = UserPiece(lambda batch, episodes, rows=rows: rows)
        batch = LearnerConnectorPipeline(connectors=[adds, piece.share()])(episodes=[played([0, 1])])
        for number, word, pair in zip(batch["hash"], words[part], numbers[part]):
            found = piece.row_of(number)
            assert str(found[0]) == word and found[1].tolist() == pair.tolist()
    with pytest.raises(ColumnError, match="keep_rows=True"):
        piece.row_of(12)


def test_places_count():
    one, other = np.array([[1, 2]]), np.array([[2, 1]])
    hashes = [hashed_rows(*columns).item() for columns in ((one,), (other,), (one, other), (other, one))]
    assert len(set(hashes)) == 4


@pytest.mark.parametrize("form", [np.str_, np.array, np.bytes_, lambda text: text.encode()])
def test_text_is_hashed_in_whatever_type_it_comes(form):
    texts = ["left", "right", "left"]
    plain = hashed_rows(np.array([text.encode() for text in texts] if isinstance(form("a"), bytes) else texts)).tolist()
    observed = trained([HashColumns(columns="obs")], [played([*map(form, texts), form("x")])])["hash"].tolist()
    assert observed == plain and plain[0] == plain[2] != plain[1]


def test_strings():
    rows = np.array(["left", "right", "left"])
    for own in (rows, rows.astype(object), rows.astype("S")):
        first, second, third = hashed_rows(own).tolist()
        assert first == third != second
    assert hashed_rows(rows).tolist() == hashed_rows(rows.astype("U9")).tolist()


def test_other_objects_are_refused():
    with pytest.raises(ColumnError, match="rows of numbers or strings"):
        hashed_rows(np.array([{}, {}]))
