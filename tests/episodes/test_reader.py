"""Rows of many chunks from every store, beside a slow loop over plain episodes that reads them one by one."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError
from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode, VectorRecorder, reader_of

ENVS = 3
OBSERVATIONS = {
    "vector": lambda rng: rng.standard_normal((ENVS, 2)).astype(np.float32),
    "number": lambda rng: rng.integers(0, 9, ENVS),
    "nested": lambda rng: {"b": rng.standard_normal((ENVS, 2)), "a": (rng.integers(0, 9, ENVS), rng.random((ENVS, 1)))},
}


def over(function, struct):
    """Apply a function to every array of nested rows."""
    if isinstance(struct, dict):
        return {key: over(function, own) for key, own in struct.items()}
    return tuple(over(function, own) for own in struct) if isinstance(struct, tuple) else function(struct)


def leaves_of(struct):
    """The arrays of nested rows, each with its path."""
    if isinstance(struct, (dict, tuple)):
        parts = struct.items() if isinstance(struct, dict) else enumerate(struct)
        return {(key, *path): leaf for key, own in parts for path, leaf in leaves_of(own).items()}
    return {(): struct}


def recorder_of(kind, rng, autoreset):
    recorder = VectorRecorder(ENVS, autoreset=autoreset, capacity=2)
    recorder.reset(OBSERVATIONS[kind](rng))
    return recorder


def advance(recorder, kind, rng, steps):
    for _ in range(steps):
        done, cut = rng.random(ENVS) < 0.2, rng.random(ENVS) < 0.1
        done[recorder.waiting] = cut[recorder.waiting] = False
        recorder.step(
            rng.integers(0, 4, ENVS), rng.standard_normal(ENVS), done, cut, OBSERVATIONS[kind](rng),
            extras={"h": {"x": rng.standard_normal((ENVS, 2)).astype(np.float32)}, "v": rng.random(ENVS)},
            final_observations=OBSERVATIONS[kind](rng),
        )  # fmt: skip


def harvests(kind="vector", seed=0, autoreset="same_step", lookback=2):
    """Two deliveries of one recorder; the second one's chunks have a lookback."""
    rng = np.random.default_rng(seed)
    recorder = recorder_of(kind, rng, autoreset)
    out = []
    for steps in (7, 9):
        advance(recorder, kind, rng, steps)
        out.append(recorder.harvest(lookback))
    return out


def one_apart(episodes):
    episodes[1].own_columns()
    return episodes


def shuffled(first, second):
    both = [*first, *second]
    return [both[i] for i in np.random.default_rng(len(both)).permutation(len(both))]


STORES = {
    "episodes": lambda first, second: pickle.loads(pickle.dumps([*first, *second])),
    "a block": lambda first, second: second,
    "views of a block": lambda first, second: list(second),
    "some views": lambda first, second: list(second)[::-2],
    "a block, one view looked at": lambda first, second: second[0] and second,
    "a block, one episode apart": lambda first, second: one_apart(second),
    "two blocks": lambda first, second: [*first, *second],
    "two blocks in turns": shuffled,
    "two blocks, one episode apart": lambda first, second: one_apart([*first, *second]),
    "copies of views": lambda first, second: [copy.copy(view) for view in second],
    "a tuple": lambda first, second: (*first, *second),
}


def twins_of(episodes):
    return pickle.loads(pickle.dumps(list(episodes)))


def column_of(episode, name):
    columns = {"obs": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
    return columns[name] if name in columns else episode.extra_model_outputs[name]


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


def assert_same(found, expected):
    left, right = leaves_of(found), leaves_of(expected)
    assert list(left) == list(right)
    for path, leaf in left.items():
        np.testing.assert_array_equal(leaf, right[path])
        assert leaf.dtype == right[path].dtype


@pytest.fixture(params=STORES)
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
                assert rows.check() and rows.counts == list(map(len, expected))
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
    found = reader.rows("rewards").joined(halved=True)
    assert expected.dtype == np.float64 and found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert reader.rows("actions").joined(halved=True).dtype == np.int64


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
        window, held = reader.latest(name, count)
        rows, has = reader.newest(name)
        columns = [column_of(twin, name) if name not in ("h", "v") or name in twin.extra_model_outputs else None
                   for twin in twins]  # fmt: skip
        there = [0 if column is None else min(count, column.len_incl_lookback()) for column in columns]
        assert (held is None and set(there) == {count}) or held.tolist() == there
        assert (has is None and all(there)) or has.tolist() == [own > 0 for own in there]
        if not any(there):  # a recorder may know what a row is like
            assert window is None or not any(leaf.any() for leaf in leaves_of(window).values())
            continue
        for chunk, (column, own) in enumerate(zip(columns, there)):
            one = over(lambda leaf, chunk=chunk: leaf[:, chunk], window)
            assert all(not leaf[: count - own].any() for leaf in leaves_of(one).values())
            for back in range(1, own + 1):
                expected = leaves_of(column.get(-back)).values()
                for leaf, row in zip(leaves_of(one).values(), expected):
                    np.testing.assert_array_equal(leaf[-back], row)
            if own:
                for leaf, row in zip(leaves_of(rows).values(), leaves_of(column.get(-1)).values()):
                    np.testing.assert_array_equal(leaf[chunk], row)


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
            recorder.harvest(i % 3)


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
    copies.append(reader.latest("rewards", 2)[0])
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


def read_only(episode):
    """The episode as it comes out of another process's object store."""
    buffers = []
    data = pickle.dumps(episode, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(own) for own in buffers])


# ---------------------------------------------------------------- what cannot be read
def test_other_shapes_are_named(store):
    episodes = store(*harvests())
    at = len(episodes) - 1
    episode = episodes[at]
    rows = np.zeros((len(episode) + episode.lookback + 1, 5))
    episode.observations = InfiniteLookbackBuffer(rows, lookback=episode.lookback)
    reader = reader_of(episodes)
    for read in (reader.rows("obs").check, lambda: reader.latest("obs", 1)):
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
        deliveries.append(recorder.harvest(0))
    episodes = [*deliveries[0], *deliveries[1]]
    reader, twins = reader_of(episodes), twins_of(episodes)
    assert reader.holds("v").tolist() == [False] * ENVS + [True] * ENVS
    found = reader.rows("obs", 0, reader.lengths + 1).joined()
    np.testing.assert_array_equal(found, np.concatenate([twin.get_observations() for twin in twins]))
    assert found.dtype == np.float64
    values, held = reader.latest("v", 1)
    assert values.tolist() == [[0.0] * ENVS + [1.0] * ENVS] and held.tolist() == [0] * ENVS + [1] * ENVS
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
    return recorder.harvest(0)


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
@pytest.mark.parametrize("name", [*STORES, *RUNNING])
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
            assert rows.check() and rows.counts == [0] * len(episodes)
            assert_same(rows.joined(), expected)
        assert_same(reader_of(episodes).at(column, none, none), expected)


# ---------------------------------------------------------------- a column that was replaced
def new_rewards(episode):
    rows = np.arange(len(episode) + episode.lookback, dtype=np.float32) + 100
    episode.rewards = InfiniteLookbackBuffer(rows, lookback=episode.lookback)


def new_output(episode):
    rows = np.arange(len(episode) + episode.lookback, dtype=np.float32)
    episode.extra_model_outputs["v"] = InfiniteLookbackBuffer(rows, lookback=episode.lookback)


def more_steps(episode):
    row = np.full(2, 7, np.float32)
    episode.is_terminated = episode.is_truncated = False
    outputs = {"h": {"x": np.zeros(2, np.float32)}, "v": 0.0}
    episode.add_env_step(row, 1, 1.0, extra_model_outputs=outputs)


def joined_chunk(episode):
    episode.is_terminated = episode.is_truncated = False
    later = episode.cut()
    more_steps(later)
    episode.concat_episode(later)


def other_data(episode):
    episode.actions.data = np.asarray(episode.actions.data)[::-1].copy()


def other_output_dict(episode):
    episode.extra_model_outputs = {key: column + 1.0 for key, column in episode.extra_model_outputs.items()}


def less_lookback(episode):
    for column in (episode.observations, episode.actions, episode.rewards, *episode.extra_model_outputs.values()):
        column.lookback += 1


REPLACED = {
    "episode.rewards = ...": new_rewards,
    "episode.extra_model_outputs[key] = ...": new_output,
    "episode.extra_model_outputs = ...": other_output_dict,
    "an output deleted": lambda episode: episode.extra_model_outputs.pop("v"),
    "buffer.data = ...": other_data,
    "a promoting set_actions": lambda episode: episode.set_actions(new_data=0.5, at_indices=0),
    "a promoting set_extra_model_outputs": lambda episode: episode.set_extra_model_outputs(
        key="h", new_data={"x": np.full(2, 1e300)}, at_indices=0
    ),
    "rows of another shape": lambda episode: episode.set_rewards(new_data=np.ones(3), at_indices=0),
    "add_env_step": more_steps,
    "concat_episode": joined_chunk,
    "buffer.append": lambda episode: episode.actions.append(1),
    "buffer.pop": lambda episode: episode.actions.pop(),
    "own_columns": lambda episode: episode.own_columns(),
    "lookback": less_lookback,
    "t_started": lambda episode: setattr(episode, "t_started", 50),
}
UNEVEN = ("buffer.append", "buffer.pop", "rows of another shape")  # episodes that no batch can be made of
KEPT = {
    "set_rewards": lambda episode: episode.set_rewards(new_data=3, at_indices=0),
    "in place": lambda episode: episode.get_rewards().fill(4),
    "flags": lambda episode: setattr(episode, "is_truncated", True),
    "newest observation": lambda episode: episode.set_observations(new_data=np.zeros(2), at_indices=-1),
    "custom data": lambda episode: episode.custom_data.update(a=1),
}


@pytest.mark.parametrize("change", [*REPLACED, *KEPT])
def test_the_flag_is_set_where_a_column_is_replaced(change):
    _, episodes = harvests()
    i = int(np.argmax([len(episode) for episode in episodes]))
    assert not episodes.chunks[i].replaced
    {**REPLACED, **KEPT}[change](episodes[i])
    assert episodes.chunks[i].replaced is (change in REPLACED)
    assert not any(chunk.replaced for k, chunk in enumerate(episodes.chunks) if k != i)


@pytest.mark.parametrize("change", [key for key in (*REPLACED, *KEPT) if key not in UNEVEN])
@pytest.mark.parametrize("store", [key for key in STORES if "apart" not in key])
def test_what_was_changed_is_read(change, store):
    episodes = STORES[store](*harvests())
    i = int(np.argmax([len(episode) for episode in episodes]))
    reader_of(episodes).rows("rewards")
    twins = twins_of(episodes)
    for own in (episodes[i], twins[i]):
        {**REPLACED, **KEPT}[change](own)
    reader = reader_of(episodes)
    assert reader.lengths.tolist() == list(map(len, twins))
    assert reader.starts.tolist() == [twin.t_started for twin in twins]
    assert reader.lookbacks.tolist() == [twin.lookback for twin in twins]
    assert reader.ends.tolist() == [[t.is_terminated for t in twins], [t.is_truncated for t in twins]]
    expected = reader_of(twins)
    for name in ("obs", "actions", "rewards", "h"):
        assert_same(reader.rows(name).joined(), expected.rows(name).joined())


# ---------------------------------------------------------------- memory that cannot be written to
def recorded_episode():
    columns = {"observations": np.arange(8.0).reshape(4, 2), "actions": [1, 2, 3], "rewards": np.array([1.0, 2.0, 3.0])}
    outputs = {"h": [{"x": np.full(2, i)} for i in range(3)]}
    return SingleAgentEpisode(**columns, extra_model_outputs=outputs, len_lookback_buffer=1, id_="a")


def shares(episode, array):
    return any(np.shares_memory(leaf, array) for leaf in episode.rewards.rows(-1, 2))


def test_read_only_memory_is_read_without_a_copy():
    episode = read_only(recorded_episode())
    (rows,) = episode.rewards.rows(-1, 2)
    assert not rows.flags.writeable
    reader = reader_of([episode, recorded_episode()])
    assert reader.rows("rewards").joined().tolist() == [2.0, 3.0] * 2
    assert reader.newest("obs")[0].tolist() == [[6.0, 7.0]] * 2
    assert reader.at("h", np.array([0]), np.array([-1]))["x"].tolist() == [[0, 0]]
    assert shares(episode, rows) and len(episode) == 2 and episode.equals(recorded_episode())


WRITES = {
    "a getter": lambda episode: episode.get_rewards().__iadd__(5),
    "a getter of one row": lambda episode: episode.get_observations(0).__iadd__(5),
    "data": lambda episode: episode.rewards.data.__iadd__(5),
    "a setter of all": lambda episode: episode.set_rewards(new_data=[8, 9]),
    "a setter of one": lambda episode: episode.set_observations(new_data=np.zeros(2), at_indices=0),
    "a setter of the newest": lambda episode: episode.set_observations(new_data=np.zeros(2), at_indices=-1),
    "a promoting setter": lambda episode: episode.set_actions(new_data=0.5, at_indices=-1),
    "a nested setter": lambda episode: episode.set_extra_model_outputs(
        key="h", new_data={"x": np.array([[7, 7]])}, at_indices=[0]
    ),
    "add_env_step": lambda episode: episode.add_env_step(
        np.ones(2), 4, 4.0, extra_model_outputs={"h": {"x": np.array([1, 2])}}
    ),
    "pop": lambda episode: [episode.rewards.pop(), episode.rewards.append(6.0)],
    "extend": lambda episode: episode.actions.extend([4, 5]),
    "buffer.data = ...": lambda episode: setattr(episode.rewards, "data", [5.0, 6.0, 7.0]),
    "drop and add": lambda episode: [episode.actions.drop_last(), episode.actions.append(9)],
}


@pytest.mark.parametrize("write", WRITES)
def test_the_first_write_copies_read_only_memory(write):
    episode, twin = read_only(recorded_episode()), recorded_episode()
    for own in (episode, twin):
        WRITES[write](own)
        WRITES[write](own)  # and again
    assert episode.equals(twin) and not episode.equals(recorded_episode())


def test_what_was_given_is_not_written_to():
    buffers = []
    data = pickle.dumps(recorded_episode(), protocol=5, buffer_callback=buffers.append)
    memory = [bytes(own) for own in buffers]
    kept = [bytes(bytearray(own)) for own in memory]
    for write in WRITES.values():
        write(pickle.loads(data, buffers=memory))
    assert memory == kept
