"""Rows of many chunks from every store, beside a slow loop over plain episodes that reads them one by one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from fixture_cases import slow_but
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, EpisodeError, EpisodeIndexError
from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode, VectorRecorder, reader_of
from fixture_episodes import (
    ENVS,
    OBSERVATIONS,
    STORES,
    advance,
    assert_same,
    column_of,
    harvests,
    leaves_of,
    over,
    read_only,
    recorder_of,
    twins_of,
)


def slow_rows(episodes, name, firsts, stops, step=1):
    """For each chunk a list of rows, one read after another."""
    spans = zip(episodes, firsts, stops)
    return [[column_of(e, name).get(i, neg_index_as_lookback=True) for i in range(a, b, step)] for e, a, b in spans]


def stacked(rows):
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stacked(list(own)) for own in zip(*rows))
    return np.stack(rows)


QUICK = (
    "episodes", "a block", "some views", "two blocks in turns", "two blocks, one episode apart", "deliveries in turns",
    "some sent episodes of each", "a tuple",
)  # fmt: skip


@pytest.fixture(params=slow_but(QUICK, STORES))
def store(request):
    return STORES[request.param]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_facts_and_rows_are_those_of_the_episodes(store, kind, autoreset):
    episodes = store(*harvests(kind, autoreset=autoreset))
    twins, reader = twins_of(episodes), reader_of(episodes)
    assert reader.lengths.tolist() == list(map(len, twins))
    assert reader.starts.tolist() == [twin.t_started for twin in twins]
    assert reader.lookbacks.tolist() == [twin.lookback for twin in twins]
    assert reader.ends.tolist() == [[t.is_terminated for t in twins], [t.is_truncated for t in twins]]
    assert reader.outputs == ["h", "v"] and reader.holds("h").all() and not reader.holds("w").any()
    assert all(repr(twin.id_) in reader.describe(i) for i, twin in enumerate(twins))
    before, lengths = -reader.lookbacks, reader.lengths
    for name in ("obs", "actions", "rewards", "h", "v"):
        for first, stop in ((0, None), (before, lengths), (np.minimum(1, lengths), lengths + (name == "obs"))):
            for step in (1, 3):
                firsts, stops = np.broadcast_to(first, lengths.shape), lengths if stop is None else stop
                expected = slow_rows(twins, name, firsts.tolist(), stops.tolist(), step)
                rows = reader.rows(name, first, stop, step)
                assert rows.check() and rows.counts.tolist() == list(map(len, expected))
                flat = [row for own in expected for row in own]
                assert_same(rows.joined(), stacked(flat))
                assert rows.rows_and_bytes() == (
                    len(flat),
                    sum(leaf.nbytes for leaf in leaves_of(stacked(flat)).values()),
                )
                for chunk, own in enumerate(expected):
                    leaves = rows.of_chunk(chunk)
                    assert all(len(leaf) == len(own) for leaf in leaves)
                    for leaf, by_hand in zip(leaves, leaves_of(stacked(own)).values() if own else ()):
                        np.testing.assert_array_equal(leaf, by_hand)


@pytest.mark.parametrize("last", [None, 0, 0.0])
@pytest.mark.parametrize("name", ["obs", "actions", "rewards", "h"])
def test_bootstrap_rows(store, name, last):
    episodes = store(*harvests())
    twins, reader = twins_of(episodes), reader_of(episodes)
    stops = reader.lengths + (name == "obs")
    expected = slow_rows(twins, name, [0] * len(twins), stops.tolist())
    for own in expected:
        own.append(own[-1] if last is None else over(lambda leaf: np.full_like(leaf, last), own[-1]))
    flat = stacked([row for own in expected for row in own])
    if name == "actions" and last == 0.0 and isinstance(last, float):
        flat = flat.astype(np.float64)
    assert_same(reader.rows(name, 0, stops).with_bootstraps(last).joined(), flat)


def test_doubles_can_be_joined_as_floats(store):
    reader = reader_of(store(*harvests()))
    expected = reader.rows("rewards").joined()
    found = reader.rows("rewards").joined(as_float32=True)
    assert expected.dtype == np.float64 and found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert reader.rows("actions").joined(as_float32=True).dtype == np.int64


def test_rows_at_any_steps(store):
    episodes = store(*harvests("nested"))
    twins, reader = twins_of(episodes), reader_of(episodes)
    rng = np.random.default_rng(0)
    chunks = rng.integers(0, len(twins), 40)
    for name in ("obs", "actions", "h"):
        stops = reader.lengths[chunks] + (name == "obs")
        steps = rng.integers(-reader.lookbacks[chunks], stops)
        steps[:10] = stops[:10] - 1
        expected = [column_of(twins[c], name).get(int(t), neg_index_as_lookback=True) for c, t in zip(chunks, steps)]
        assert_same(reader.at(name, chunks, steps), stacked(expected))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_the_newest_rows(store, kind, count):
    episodes = store(*harvests(kind))
    assert_newest(reader_of(episodes), twins_of(episodes), count, ("obs", "actions", "rewards", "h"))


def assert_newest(reader, twins, count, names):
    for name in names:
        ends = int(name == "obs")
        columns = [column_of(twin, name) if name not in ("h", "v") or name in twin.extra_model_outputs else None
                   for twin in twins]  # fmt: skip
        there = [0 if column is None else min(count, column.len_incl_lookback()) for column in columns]
        newest, has = reader.newest(name)
        assert (has is None and all(there)) or has.tolist() == [own > 0 for own in there]
        if not any(there):  # a recorder may know what a row is like
            continue
        rows, _, complete = reader.window(name, ends - count, ends - 1)
        assert rows.counts.tolist() == there and complete == (set(there) == {count}) and rows.check()
        expected = [column.get(-back) for column, own in zip(columns, there) for back in range(own, 0, -1)]
        assert_same(rows.joined(), stacked([over(np.asarray, row) for row in expected]))
        held = np.array(there) > 0
        expected = [over(np.asarray, column.get(-1)) for column, own in zip(columns, there) if own]
        assert_same(over(partial(np.compress, held, axis=0), newest), stacked(expected))


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("shown", [False, True])
def test_a_recorder_is_read_while_it_records(kind, autoreset, shown):
    rng = np.random.default_rng(1)
    recorder = recorder_of(kind, rng, autoreset)
    for i in range(25):
        episodes = recorder.episodes
        twins = twins_of(list(episodes)) if shown else twins_of(chunk.view() for chunk in episodes.chunks)
        reader = reader_of(episodes)
        assert reader.lengths.tolist() == list(map(len, twins))
        assert reader.starts.tolist() == [twin.t_started for twin in twins]
        assert reader.lookbacks.tolist() == [twin.lookback for twin in twins]
        assert reader.ends.tolist() == [[t.is_terminated for t in twins], [t.is_truncated for t in twins]]
        for count in (1, 3):
            assert_newest(reader, twins, count, ("obs", "actions", "rewards", "h"))
        np.testing.assert_allclose(reader.returns_so_far(), [t.return_before + t.get_return() for t in twins])
        rows, lengths = reader.rows("obs", 0, reader.lengths + 1), list(map(len, twins))
        everything = slow_rows(twins, "obs", [0] * ENVS, [length + 1 for length in lengths])
        assert_same(rows.joined(), stacked([row for own in everything for row in own]))
        reader.write_newest(over(lambda leaf: leaf * 2, reader.newest("obs")[0]))
        for twin, episode in zip(twins, episodes):
            expected = over(lambda leaf: np.asarray(leaf) * 2, twin.get_observations(-1))
            assert_same(over(np.asarray, episode.get_observations(-1)), expected)
        recorder.commit()
        advance(recorder, kind, rng, 1)
        if i % 7 == 6 and not recorder.waiting:
            recorder.flush(i % 3)


def test_newest_observations_are_written_to_every_store(store):
    episodes = store(*harvests())
    reader = reader_of(episodes)
    reader.write_newest(np.arange(2.0 * len(episodes)).reshape(-1, 2))
    assert [e.get_observations(-1).tolist() for e in episodes] == [[2.0 * i, 2.0 * i + 1] for i in range(len(episodes))]
    assert_newest(reader_of(episodes), twins_of(episodes), 3, ("obs",))


def test_returns(store):
    episodes = store(*harvests(lookback=1))
    twins, reader = twins_of(episodes), reader_of(episodes)
    before = [twin.return_before for twin in twins]
    np.testing.assert_array_equal(reader.returns_before(), before)
    assert not np.isnan(before).any() and any(before)
    np.testing.assert_allclose(reader.returns_so_far(), [b + twin.get_return() for b, twin in zip(before, twins)])


def test_a_chunk_may_come_twice():
    first, second = harvests()
    for episodes in ([*second, second[1], second[0]], [second[0], first[0], second[0]]):
        rows = np.concatenate([episode.get_observations() for episode in episodes])
        reader = reader_of(episodes)
        np.testing.assert_array_equal(reader.rows("obs", 0, reader.lengths + 1).joined(), rows)


def test_what_is_read_is_a_copy(store):
    episodes = store(*harvests())
    twins, reader = twins_of(episodes), reader_of(episodes)
    chunks = np.arange(len(twins))
    copies = [reader.rows("rewards").joined(), reader.at("rewards", chunks, chunks * 0), reader.newest("rewards")[0]]
    copies.append(reader.window("rewards", -2, -1)[0].joined())
    for array in copies:
        array[...] = 99
    assert all(episode.equals(twin) for episode, twin in zip(episodes, twins))


@given(st.data())
@settings(max_examples=50)
def test_any_rows_of_any_episodes(data):
    """Lists of episodes with provisional, promoted and raw rows, in memory that may be read-only."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    kind = data.draw(st.sampled_from(["vector", "number", "nested"]))
    episodes = []
    for _ in range(data.draw(st.integers(1, 5))):
        one = SingleAgentEpisode()
        one.add_env_reset(row_of(kind, rng))
        for _ in range(data.draw(st.integers(1, 6))):
            one.add_env_step(row_of(kind, rng), int(rng.integers(3)), float(rng.random()))
        if kind == "number" and data.draw(st.booleans()):
            one.set_observations(new_data=0.5, at_indices=data.draw(st.sampled_from([0, -1])))
        if data.draw(st.booleans()):
            one = one.slice(slice(data.draw(st.integers(0, len(one) - 1)), None), len_lookback_buffer=2)
        episodes.append(read_only(one) if data.draw(st.booleans()) else one)
    reader = reader_of(episodes)
    for name in ("obs", "actions", "rewards"):
        stops = reader.lengths + (name == "obs")
        firsts = np.array(
            [data.draw(st.integers(-int(back), int(stop))) for back, stop in zip(reader.lookbacks, stops)]
        )
        expected = [row for own in slow_rows(episodes, name, firsts.tolist(), stops.tolist()) for row in own]
        if expected:
            found = leaves_of(reader.rows(name, firsts, stops).joined())
            for path, leaf in leaves_of(stacked(expected)).items():
                np.testing.assert_array_equal(found[path], leaf)


def row_of(kind, rng):
    return over(lambda leaf: leaf[0], OBSERVATIONS[kind](rng))


# ---------------------------------------------------------------- what cannot be read
def test_other_shapes_are_named(store):
    episodes = store(*harvests())
    at = len(episodes) - 1
    episode = episodes[at]
    rows = np.zeros((len(episode) + episode.lookback + 1, 5))
    episode.observations = InfiniteLookbackBuffer(rows, lookback=episode.lookback)
    reader = reader_of(episodes)
    for read in (reader.rows("obs").check, reader.window("obs", 0, 0)[0].check, lambda: reader.newest("obs")):
        with pytest.raises(ColumnError, match=r"\(2,\), as in episode[\s\S]*\(5,\) in episode") as raised:
            read()
        assert repr(episode.id_) in str(raised.value)


def test_a_column_that_is_not_there_is_named(store):
    reader = reader_of(store(*harvests()))
    for read in (lambda: reader.rows("w"), lambda: reader.at("w", np.array([0]), np.array([0]))):
        with pytest.raises(ColumnError, match="a column 'w'"):
            read()


def test_outputs_that_differ_are_named():
    first, second = harvests()
    for episode in second:
        del episode.extra_model_outputs["v"]
    with pytest.raises(ColumnError, match=r"\['h', 'v'\], as in episode[\s\S]*\['h'\] in episode"):
        _ = reader_of([*first, *second]).outputs


def test_blocks_of_two_modules_are_read_together():
    """One block has floats where the other has integers, and an output more."""
    rng = np.random.default_rng(0)
    deliveries = []
    for extras in ({}, {"v": np.ones(ENVS)}):
        recorder = recorder_of("number", rng, "next_step")
        no = np.zeros(ENVS, bool)
        obs = OBSERVATIONS["number"](rng) + (0.5 if extras else 0)
        recorder.step(np.ones(ENVS), np.ones(ENVS), no, no, obs, extras=extras)
        recorder.step(np.ones(ENVS), np.ones(ENVS), no, no, obs, extras=extras)
        deliveries.append(recorder.flush(0))
    episodes = [*deliveries[0], *deliveries[1]]
    reader, twins = reader_of(episodes), twins_of(episodes)
    assert reader.holds("v").tolist() == [False] * ENVS + [True] * ENVS
    found = reader.rows("obs", 0, reader.lengths + 1).joined()
    np.testing.assert_array_equal(found, np.concatenate([twin.get_observations() for twin in twins]))
    assert found.dtype == np.float64
    values, held = reader.newest("v")
    assert values.tolist() == [0.0] * ENVS + [1.0] * ENVS and held.tolist() == [0] * ENVS + [1] * ENVS
    with pytest.raises(ColumnError, match="a column 'v'"):
        reader.rows("v")


def ended(finals, shape=(1,)):
    """Episodes of one step each, whose last observations lie apart."""
    recorder = VectorRecorder(len(finals), autoreset="same_step")
    row = np.zeros((len(finals), *shape), np.float32)
    recorder.reset(row)
    last = np.empty(len(finals), object)
    last[:] = finals
    flags = np.ones(len(finals), bool)
    recorder.step(flags, flags * 1.0, flags, ~flags, row, final_observations=last)
    return recorder.flush(0)


def test_last_observations_that_lie_apart_may_be_of_another_type():
    for finals, dtype in (([[5], [6]], np.float32), ([[5], [0.1]], np.float64)):
        episodes = ended([np.array(own, dtype) for own in finals])
        found = reader_of(episodes).rows("obs", 0, 2).joined()
        assert found.dtype == dtype and found[1::2].tolist() == [[dtype(own[0])] for own in finals]
    numbers = reader_of(ended([5, 2.5], ())).rows("obs", 0, 2).joined()
    assert numbers.dtype == np.float32 and numbers.tolist() == [0, 5, 0, 2.5]


def test_last_observations_of_another_shape_are_named():
    episodes = ended([np.zeros(1, np.float32), np.zeros(2, np.float32)])
    with pytest.raises(ColumnError, match=r"rows of one shape, \(1,\)[\s\S]*\(2,\)") as raised:
        reader_of(episodes).rows("obs", 0, 2).check()
    assert episodes[1].id_ in str(raised.value)
    assert reader_of(episodes).rows("obs").check()


# ---------------------------------------------------------------- no rows
RUNNING = {"a recorder": lambda recorder: recorder.episodes, "its views": lambda recorder: list(recorder.episodes)}


@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("name", slow_but([*QUICK, *RUNNING], [*STORES, *RUNNING]))
def test_spans_without_rows_have_the_kind_of_the_column_in_every_store(name, kind):
    if name in STORES:
        episodes = STORES[name](*harvests(kind))
    else:
        rng = np.random.default_rng(0)
        recorder = recorder_of(kind, rng, "same_step")
        advance(recorder, kind, rng, 3)
        episodes = RUNNING[name](recorder)
    none = np.zeros(0, np.int64)
    for column in ("obs", "actions", "rewards", "h", "v"):
        expected = over(lambda leaf: leaf[:0], column_of(episodes[0], column).data)
        for span in (0, 1, 9, -1):
            reader = reader_of(episodes)
            rows = reader.rows(column, span, span)
            assert rows.check() and rows.counts.tolist() == [0] * len(episodes)
            assert_same(rows.joined(), expected)
        assert_same(reader_of(episodes).at(column, none, none), expected)


def newest_of_columns(columns):
    """The newest_of_columns rows as a reader of episodes with these observations gives them."""
    episodes = [SingleAgentEpisode() for _ in columns]
    for episode, own in zip(episodes, columns):
        episode.observations = own
    rows, held = reader_of(episodes).newest("obs")
    assert held is None
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        ([np.zeros(3)], [np.zeros((3, 1))]),
        ([np.zeros((3, 1))], [np.zeros((3, 2))]),
        ([np.zeros(2)], [np.zeros(4)]),  # six numbers, which two rows of three would be too
        ([np.zeros(2)], [1.0]),
        ([1.0], [np.zeros(2)]),
        ([{"a": 1}], [{"b": 1}]),
        ([{"a": 1}], [1]),
    ],
)
def test_rows_that_do_not_fit_one_another_are_named(rows):
    with pytest.raises(ColumnError, match=r"as in episode[\s\S]*in episode"):
        newest_of_columns([InfiniteLookbackBuffer(list(own)) for own in rows])


def test_a_newest_row_that_is_held_apart_counts():
    columns = [InfiniteLookbackBuffer([np.zeros(2), np.zeros(2)]) for _ in range(2)]
    for i, own in enumerate(columns):
        own.stage(np.full(5, i))
    assert newest_of_columns(columns).tolist() == [[0] * 5, [1] * 5]


def test_an_episode_without_observations_has_no_newest_one():
    columns = [InfiniteLookbackBuffer([np.zeros(2)]) for _ in range(2)]
    columns[0].pop()
    with pytest.raises(IndexError):
        newest_of_columns(columns)


def test_episodes_that_show_a_block_are_read_with_others():
    recorder = VectorRecorder(2)
    recorder.reset(np.ones((2, 3)))
    own = SingleAgentEpisode(observations=[np.zeros(3)])
    rows, held = reader_of([own, recorder.episodes[1]]).newest("obs")
    assert held is None and rows.tolist() == [[0] * 3, [1] * 3]


# ---------------------------------------------------------------- few rows, odd rows
def test_rows_past_the_end_of_a_chunk_are_refused(store):
    reader = reader_of(store(*harvests()))
    for name, more in (("obs", 2), ("actions", 1)):
        with pytest.raises(EpisodeIndexError, match="counted from the chunk's start"):
            reader.rows(name, 0, reader.lengths + more)
        reader.rows(name, 0, reader.lengths + more - 1)


def test_a_span_that_ends_before_it_begins_has_no_rows(store):
    reader = reader_of(store(*harvests()))
    rows = reader.rows("obs", 3, 1)
    assert rows.counts.tolist() == [0] * len(reader.lengths) and rows.joined().shape == (0, 2)
    with pytest.raises(EpisodeError, match="at least one row of each chunk"):
        rows.with_bootstraps().joined()


def test_text_stays_text_and_ragged_rows_are_named():
    for rows, numbers in ((["a", "bc"], False), ([1, 2], True)):
        episode = SingleAgentEpisode(observations=[0, 0, 0], actions=rows, rewards=[0, 0], len_lookback_buffer=0)
        found = reader_of([episode, episode]).rows("actions")
        assert found.check() is numbers and found.joined().tolist() == rows * 2
    ragged = [np.zeros(1), np.zeros(2)]
    episode = SingleAgentEpisode(observations=[0, 0, 0], actions=ragged, rewards=[0, 0], len_lookback_buffer=0)
    with pytest.raises(ColumnError, match=r"column 'actions'.*\n.*one shape, \(1,\)"):
        reader_of([episode]).rows("actions").check()


def test_lengths_of_a_subclass_are_its_own():
    class Odd(SingleAgentEpisode):
        def __len__(self):
            return 77

    assert reader_of([SingleAgentEpisode(), Odd()]).lengths.tolist() == [0, 77]


def test_keys_in_another_order_are_the_same_column():
    rows = [{"a": 1, "b": 2}, {"b": 4, "a": 3}]
    episodes = [SingleAgentEpisode(observations=[row]) for row in rows]
    found = reader_of(episodes).rows("obs", 0, 1).joined()
    assert {key: leaf.tolist() for key, leaf in found.items()} == {"a": [1, 3], "b": [2, 4]}
