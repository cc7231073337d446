"""What is written is read back equal to the bit, in however many parts and commits it was written."""

from __future__ import annotations

import pickle
from contextlib import suppress

import numpy as np
import pytest
from fixture_recorded import episodes_of, in_chunks
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import DataError
from epibatch.episodes import SingleAgentEpisode, VectorEpisodes
from epibatch.offline import DatasetWriter, read_episodes, verify, write_episodes


def bits(struct):
    """Types, shapes and bytes of all leaves."""
    if isinstance(struct, dict):
        return {name: bits(part) for name, part in struct.items()}
    if isinstance(struct, tuple):
        return tuple(map(bits, struct))
    return struct.dtype, struct.shape, struct.tobytes()


def columns_of(episode):
    everything = slice(-episode.lookback, None)
    columns = {
        "obs": episode.get_observations(everything, neg_index_as_lookback=True),
        "actions": episode.get_actions(everything, neg_index_as_lookback=True),
        "rewards": episode.get_rewards(everything, neg_index_as_lookback=True),
    }
    for name in episode.extra_model_outputs:
        columns[name] = episode.get_extra_model_outputs(name, everything, neg_index_as_lookback=True)
    return columns


def assert_same(read, expected):
    """As many episodes as expected, by id, each with the same bits."""
    assert sorted(read.ids) == sorted(episode.id_ for episode in expected)
    by_id = {episode.id_: episode for episode in expected}
    for episode in read:
        other = by_id[episode.id_]
        assert episode.equals(other)
        assert bits(columns_of(episode)) == bits(columns_of(other))


HOW = ["whole", "chunks", "appended", "log", "memory", "one by one"]
CASES = {"seed": st.integers(0, 2**32), "how": st.sampled_from(HOW)}


@settings(max_examples=8)
@given(**CASES)
def test_episodes_come_back_equal_to_the_bit(tmp_path_factory, seed, how):
    check_round_trip(tmp_path_factory, seed, how)


@pytest.mark.slow
@settings(max_examples=500)
@given(**CASES)
def test_episodes_of_many_kinds_come_back_equal_to_the_bit(tmp_path_factory, seed, how):
    check_round_trip(tmp_path_factory, seed, how)


def check_round_trip(tmp_path_factory, seed, how):
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("data") / "set"
    episodes = episodes_of(rng, int(rng.integers(1, 9)))
    chunks = in_chunks(rng, episodes)
    if how == "whole":
        write_episodes(episodes, folder)
    elif how == "one by one":
        write_episodes(iter(episodes), folder)
    elif how == "appended":
        for chunk in chunks:
            write_episodes([chunk], folder, append=True)
    elif how == "log":
        with DatasetWriter(folder) as log:
            for i in range(0, len(chunks), 2):
                log.add(chunks[i : i + 2])
                if rng.random() < 0.5:
                    log.commit()
    elif how == "chunks":
        write_episodes(chunks, folder)
    data = read_episodes(chunks if how == "memory" else folder)
    assert_same(data, episodes)
    assert_same(pickle.loads(pickle.dumps(data)), episodes)
    assert how == "memory" or verify(folder) == []
    assert data.num_steps == sum(map(len, episodes))


def test_a_later_part_without_steps_ends_a_running_episode(tmp_path):
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0], len_lookback_buffer=0)
    rest = episode.cut()
    rest.is_truncated = True
    with DatasetWriter(tmp_path) as log:
        log.add(episode)
        log.add(rest)
    (read,) = read_episodes(tmp_path)
    assert (len(read), read.is_terminated, read.is_truncated) == (2, False, True)


def test_what_a_runner_returns_is_written(tmp_path):
    shape = (20, 3)
    rng = np.random.default_rng(0)
    ended = rng.random(shape) < 0.2
    block = VectorEpisodes.from_arrays(
        rng.random((21, 3)), rng.integers(0, 4, shape), rng.random(shape), ended, np.zeros(shape, bool)
    )
    write_episodes(block, tmp_path / "data")
    assert_same(read_episodes(tmp_path / "data"), [episode for episode in block if len(episode)])


def test_a_data_set_is_written_to_another_one(tmp_path):
    episodes = episodes_of(np.random.default_rng(1), 7)
    write_episodes(episodes, tmp_path / "a")
    write_episodes(read_episodes(tmp_path / "a").filter(lambda episode: len(episode) > 3), tmp_path / "b")
    assert_same(read_episodes(tmp_path / "b"), [episode for episode in episodes if len(episode) > 3])


def test_a_smaller_type_is_widened_and_a_larger_one_refused_by_name(tmp_path):
    def episode(dtype):
        observations = np.arange(3, dtype=dtype)
        return SingleAgentEpisode(observations=observations, actions=[5, 6], rewards=[1.0, 2.0], len_lookback_buffer=0)

    write_episodes([episode(np.int32)], tmp_path)
    write_episodes([episode(np.int16)], tmp_path, append=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"column 'obs'.*\n.*int32.*\n.*float64"):
        write_episodes([episode(np.int8), episode(np.float64)], tmp_path, append=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert [read.get_observations().dtype for read in read_episodes(tmp_path)] == [np.int32, np.int32]


WRONG = {
    "text": lambda **given: SingleAgentEpisode(**{**given, "observations": ["a", "b", "c"]}),
    "objects": lambda **given: SingleAgentEpisode(**{**given, "observations": [np.zeros(1), np.zeros(2), np.zeros(3)]}),
    "shape": lambda **given: SingleAgentEpisode(**{**given, "observations": np.zeros((3, 2))}),
    "nesting": lambda **given: SingleAgentEpisode(**{**given, "observations": {"a": np.zeros(3)}}),
    "outputs": lambda **given: SingleAgentEpisode(**given, extra_model_outputs={"x": [1, 2]}),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_refused_write_leaves_nothing(tmp_path, kind, is_new):
    given = {"observations": [0.0, 1.0, 2.0], "actions": [5, 6], "rewards": [1.0, 2.0], "len_lookback_buffer": 0}
    steps = np.zeros(70_000)  # so many that they are written before the next episode is read
    good = SingleAgentEpisode(
        observations=np.zeros(70_001), actions=steps.astype(int), rewards=steps, len_lookback_buffer=0
    )
    wrong = WRONG[kind](**given)
    folder = tmp_path / "data"
    if not is_new:
        write_episodes([good], folder)
    with pytest.raises(ValueError, match=r"column|episodes for a data set|model outputs"):
        write_episodes((episode for episode in [good, wrong]), folder, append=True)
    if is_new:
        assert not folder.exists()
    else:
        assert len(read_episodes(folder)) == 1 and verify(folder) == []


def test_a_place_that_is_taken_is_refused(tmp_path):
    episodes = episodes_of(np.random.default_rng(1), 2)
    write_episodes(episodes, tmp_path / "data")
    with pytest.raises(DataError, match="append=True"):
        write_episodes(episodes, tmp_path / "data")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for append in (True, False):
        with pytest.raises(DataError, match="other"):
            write_episodes(episodes, tmp_path / "other", append=append)
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    with pytest.raises(DataError, match="an episode with a step"):
        write_episodes([], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_infos_with_arrays_are_left_out_with_a_warning(tmp_path):
    episode = SingleAgentEpisode(
        observations=[0, 1], infos=[{"picture": np.zeros(3)}, {}], actions=[1], rewards=[1.0], len_lookback_buffer=0
    )
    with pytest.warns(UserWarning, match="infos of an episode"):
        write_episodes([episode], tmp_path)
    assert read_episodes(tmp_path)[0].get_infos() == [{}, {}]


def test_two_writers_exclude_each_other_and_a_reader_sees_commits_alone(tmp_path):
    episodes = episodes_of(np.random.default_rng(3), 4)
    with DatasetWriter(tmp_path) as log:
        log.add(episodes[:2])
        log.commit()
        log.add(episodes[2:3])
        assert len(read_episodes(tmp_path)) == 2
        with pytest.raises(OSError, match="process"):
            DatasetWriter(tmp_path)
    before = read_episodes(tmp_path)
    with DatasetWriter(tmp_path) as log:
        log.add(episodes[3:])
    assert len(before) == 3 and len(pickle.loads(pickle.dumps(before))) == 3
    assert_same(read_episodes(tmp_path), episodes)


def test_an_error_drops_what_was_not_committed(tmp_path):
    episodes = episodes_of(np.random.default_rng(3), 4)
    with suppress(KeyError), DatasetWriter(tmp_path) as log:
        log.add(episodes[:2])
        log.commit()
        log.add(episodes[2:])
        raise KeyError
    assert_same(read_episodes(tmp_path), episodes[:2])
    assert verify(tmp_path) == []


def test_a_closed_writer_changes_nothing(tmp_path):
    episodes = episodes_of(np.random.default_rng(1), 2)
    log = DatasetWriter(tmp_path)
    log.add(episodes[0])
    log.commit()
    log.close()
    with pytest.raises(DataError, match="one that was closed"):
        log.add(episodes[1])
    log.commit()
    log.close()
    assert verify(tmp_path) == [] and [episode.id_ for episode in read_episodes(tmp_path)] == [episodes[0].id_]
