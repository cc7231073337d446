"""Parquet files: written, read back here and by pandas and polars; tables of others; files that do not fit."""

from __future__ import annotations

import json
from contextlib import suppress

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, ColumnError, DataError, EpibatchError, StorageError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, episodes_to_columns
from epibatch.offline import read_episodes, write_episodes
from foreign_data import assert_equal, recorded

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("name", ["data", "data.parquet"])
@pytest.mark.parametrize("nested", [False, True])
def test_written_data_is_read_back(name, nested, tmp_path):
    episodes = recorded(nested=nested)
    episodes[0].observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    chunks = [chunk for episode in episodes for chunk in (episode[:1], episode[1:])]
    write_episodes(chunks, tmp_path / name, "parquet")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    found = read_episodes(tmp_path / name)
    assert_equal(found, episodes)
    assert (found[1].observation_space, found[1].action_space) == (episodes[0].observation_space, None)


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", ">f4", ">i8"])
def test_every_type_is_kept(dtype, tmp_path):
    rows = np.arange(6).reshape(3, 2).astype(dtype)
    episode = SingleAgentEpisode("a", observations=rows, actions=rows[:2, 0], rewards=[1, 2], len_lookback_buffer=0)
    write_episodes([episode], tmp_path / "x", "parquet")
    (found,) = read_episodes(tmp_path / "x", "parquet")
    for column, expected in ((found.get_observations(), rows), (found.get_actions(), rows[:2, 0])):
        np.testing.assert_array_equal(column, expected)
        assert column.dtype == np.dtype(dtype).newbyteorder("=")


def test_pandas_and_polars_read_it(tmp_path):
    pandas, episodes = pytest.importorskip("pandas"), recorded(nested=True)
    write_episodes(episodes, tmp_path / "x.parquet", "parquet")
    columns = episodes_to_columns(episodes)
    frame = pandas.read_parquet(tmp_path / "x.parquet")
    assert list(frame)[:4] == ["eps_id", "t", "obs.x", "obs.y.0"]
    steps = frame.dropna(subset=["actions"])
    assert len(frame) == len(steps) + len(episodes) and steps["eps_id"].tolist() == columns["eps_id"].tolist()
    np.testing.assert_array_equal(np.stack(steps["obs.x"]), columns["obs"]["x"])
    np.testing.assert_array_equal(np.stack(steps["logits"]).reshape(-1, 2, 2), columns["logits"])
    np.testing.assert_array_equal(steps["rewards"], columns["rewards"])
    frame.sample(frac=1, random_state=1).to_parquet(tmp_path / "y.parquet")
    found = sorted(read_episodes(tmp_path / "y.parquet", "parquet"), key=lambda episode: episode.id_)
    for mine, right in zip(found, episodes, strict=True):  # actions are floats, as pandas has no integers with gaps
        np.testing.assert_array_equal(mine.get_observations()["x"], right.get_observations()["x"])
        np.testing.assert_array_equal(mine.get_actions(), right.get_actions())
        assert (mine.is_terminated, mine.is_truncated) == (right.is_terminated, right.is_truncated)
    polars = pytest.importorskip("polars").read_parquet(tmp_path / "x.parquet")
    np.testing.assert_array_equal(polars.drop_nulls("actions")["obs.x"].to_numpy(), columns["obs"]["x"])


def test_hugging_face_datasets_read_it(tmp_path):
    datasets = pytest.importorskip("datasets")
    episodes = recorded()
    write_episodes(episodes, tmp_path / "x.parquet", "parquet")
    rows = datasets.Dataset.from_parquet(str(tmp_path / "x.parquet"), cache_dir=str(tmp_path / "cache"))
    steps = rows.filter(lambda row: row["actions"] is not None).with_format("numpy")
    np.testing.assert_array_equal(np.stack(list(steps["obs"])), episodes_to_columns(episodes)["obs"])


def table(path, metadata=None, **columns):
    """Write a table with two episodes of 2 and 1 steps, some columns changed."""
    given = {
        "episode_id": ["a", "a", "b"],
        "observation": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "next_observation": [[3.0, 4.0], [0.0, 0.0], [7.0, 8.0]],
        "action": [1, 2, 3],
        "reward": [0.5, 1.5, 2.5],
        "terminated": [False, True, False],
        "nothing": pyarrow.nulls(3),
        **columns,
    }
    found = pyarrow.table({name: column for name, column in given.items() if column is not None})
    parquet.write_table(found.replace_schema_metadata(metadata), path)
    return path


def test_tables_of_others(tmp_path):
    (tmp_path / "more").mkdir()
    table(tmp_path / "more" / "1.parquet", camera=[{"x": 1, "y": 2}] * 3)
    table(tmp_path / "more" / "2.parquet", camera=[{"x": 1, "y": 2}] * 3, episode_id=["b", "c", "d"],
          observation=[[7.0, 8.0]] * 3, next_observation=[[1.0, 1.0]] * 3, terminated=[True, False, False])  # fmt: skip
    found = read_episodes(tmp_path, "parquet", names={"camera": "view"})
    assert [(episode.id_, len(episode), episode.is_terminated) for episode in found] == [
        ("a", 2, True),
        ("b", 2, True),
        ("c", 1, False),
        ("d", 1, False),
    ]
    assert found[1].get_observations().tolist() == [[5, 6], [7, 8], [1, 1]]
    assert found[0].get_extra_model_outputs("view")["y"].tolist() == [2, 2]


def changed(**changes):
    return changes


FAULTS = [
    (changed(reward=[0.5, None, 1.0]), "'reward', row 1"),
    (changed(observation=[[1.0], [1.0, 2.0], [1.0]]), "'observation'.*\n.*\n.*2 in row 1"),
    (changed(observation=[[1.0, None], [1.0, 2.0], [1.0, 2.0]]), "'observation', row 1"),
    (changed(words=["x", "y", "z"]), "'words'"),
    (changed(words=[b"x", b"y", b"z"]), "'words'.*\n.*\n.*binary.*\n.*names="),
    (changed(when=np.zeros(3, "M8[s]")), "'when'.*\n.*\n.*timestamp"),
    (changed(action=None), "'actions'"),
    (changed(action=None, actions=[1, None, 2]), "no eps_id"),
    (changed(observation=[[1.0, 2.0], [9.0, 9.0], [5.0, 6.0]]), "'new_obs' of episode a, step 0"),
    (changed(metadata={"epibatch": "{"}), "JSON"),
    (changed(metadata={"epibatch": json.dumps({"forms": {"action": ["dict", "ab"]}})}), "IndexError"),
    (changed(metadata={"epibatch": json.dumps({"observation_space": {"type": "Odd"}})}), "a known 'type'"),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS, ids=range(len(FAULTS)))
def test_tables_that_do_not_fit(changes, message, tmp_path):
    path = table(tmp_path / "x.parquet", **changes)
    with pytest.raises(EpibatchError, match=message) as raised:
        read_episodes(path, "parquet")
    assert str(path) in str(raised.value) and hasattr(raised.value, "expected")


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    def episode(rows, **options):
        return SingleAgentEpisode(observations=rows, actions=[1], rewards=[1.0], len_lookback_buffer=0, **options)

    game = MultiAgentEpisode(id_="game")
    game.add_env_reset(observations={"a": 0.5})
    refused = {
        "complex128": [episode(np.zeros(2, complex))],
        "longdouble|float128": [episode(np.zeros(2, np.longdouble))],
        r"\(0,\)": [episode(np.zeros((2, 0)))],
        "object": [episode([None, 1])],
        "without dots": [episode({"a.b": np.zeros(2), "c": np.zeros(2)})],
        "ArrowTypeError": [episode(np.zeros(2), id_=("a", 1))],
        "one agent": [game],
        "episodes with steps": [],
        "shape": [recorded(outputs=False)[0], episode(np.zeros((2, 3)))],
    }
    for message, episodes in refused.items():
        with pytest.raises((DataError, ColumnError), match=message):
            write_episodes(episodes, tmp_path / "x", "parquet")
    assert list(tmp_path.iterdir()) == []
    write_episodes(recorded(), tmp_path / "x", "parquet")
    with pytest.raises(DataError, match="a path where nothing is"):
        write_episodes(recorded(), tmp_path / "x", "parquet")


def test_row_groups(tmp_path):
    def episode(name, rows):
        count = len(rows) - 1
        return SingleAgentEpisode(name, observations=rows, actions=np.arange(count), rewards=np.ones(count),
                                  len_lookback_buffer=0)  # fmt: skip

    episodes = [episode(str(i), np.arange(60_001) + i) for i in range(2)]
    write_episodes(iter(episodes), tmp_path / "x.parquet", "parquet")
    assert parquet.ParquetFile(tmp_path / "x.parquet").num_row_groups == 2
    assert_equal(read_episodes(tmp_path / "x.parquet", "parquet"), episodes)
    with pytest.raises(DataError, match="columns of the same names and types"):
        write_episodes([*episodes, episode("5", np.zeros(100_000))], tmp_path / "y.parquet", "parquet")
    with pytest.raises(StorageError):
        write_episodes(episodes, tmp_path / "x.parquet" / "y.parquet", "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_final_rows(tmp_path):
    write_episodes(recorded(), tmp_path / "x.parquet", "parquet")
    rows = parquet.read_table(tmp_path / "x.parquet")
    parquet.write_table(rows.slice(0, len(rows) - 1), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"episode e3\n.*the final observation"):
        read_episodes(tmp_path / "x.parquet", "parquet")


def test_nested_columns_are_known_by_name_in_whatever_order(tmp_path):
    view = {"z": np.arange(3.0), "a": (np.arange(3) + 10, np.arange(3) + 20)}
    episode = SingleAgentEpisode(
        observations=view, actions=[0, 1], rewards=[1.0, 2.0], terminated=True, len_lookback_buffer=0,
        extra_model_outputs={"critic.values": np.array([5.0, 6.0])},
    )  # fmt: skip
    write_episodes([episode], tmp_path / "x.parquet", format="parquet")
    rows = parquet.read_table(tmp_path / "x.parquet")
    parquet.write_table(rows.select(sorted(rows.schema.names)), tmp_path / "x.parquet")
    (read,) = read_episodes(tmp_path / "x.parquet")
    assert read.equals(episode)
    (read,) = read_episodes(tmp_path / "x.parquet", names={"obs.z": None})
    assert read.get_observations(-1)["a"] == (12, 22) and "z" not in read.get_observations(-1)


def test_bytes_and_text_that_inflate_are_refused_or_kept_once(tmp_path):
    for values in ([b"\0" * 4_000_000] * 20, ["x" * 4_000_000] * 20):
        given = pyarrow.table({"obs": values, "actions": range(20), "rewards": np.ones(20)})
        for often in (False, True):
            parquet.write_table(given, tmp_path / "x.parquet", compression="zstd", use_dictionary=often)
            before = pyarrow.total_allocated_bytes()
            with pytest.raises((DataError, ColumnError), match="numbers" if often else "at most 8,000,000 bytes"):
                read_episodes(tmp_path / "x.parquet", max_bytes=8_000_000)
            assert pyarrow.total_allocated_bytes() - before < 8_000_000


def test_damaged_and_hostile_files(tmp_path):
    path = tmp_path / "x.parquet"
    write_episodes(recorded(), path, "parquet")
    whole = path.read_bytes()
    for size in range(0, len(whole), 501):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"x\.parquet"):
            read_episodes(path, "parquet")
    rng = np.random.default_rng(0)
    for _ in range(60):  # read as something, or refused by name
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with suppress(EpibatchError):
            read_episodes(path, "parquet")
    path.write_bytes(whole)
    with pytest.raises(DataError, match="at most 1,000 bytes in memory"):
        read_episodes(path, "parquet", max_bytes=1000)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises((DataError, CheckpointError)):
        read_episodes(path, "parquet")
    with pytest.raises(CheckpointError, match="a link"):
        read_episodes(tmp_path, "parquet")
    with pytest.raises(DataError, match="nothing"):
        read_episodes(tmp_path / "none", "parquet")
