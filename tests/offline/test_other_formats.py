"""D4RL's HDF5 files, folders of TensorDict and tables of LeRobot: written, read back, made by others, hostile ones."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, ColumnError, DataError, EpibatchWarning, NotAvailableError
from epibatch.episodes import SingleAgentEpisode, episodes_to_columns
from epibatch.offline import read_episodes, write_episodes
from foreign_data import assert_equal, recorded

DONE = recorded()[1:3]
"""Two episodes with an end."""


# -- D4RL --------------------------------------------------------------------------------------------


def test_d4rl_both_ways(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.hdf5"
    write_episodes([chunk for episode in DONE for chunk in (episode[:1], episode[1:])], path, "d4rl")
    assert_equal(read_episodes(path), DONE, ids=False)
    columns = episodes_to_columns(DONE)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["observations"][()], columns["obs"])
        np.testing.assert_array_equal(file["next_observations"][()], columns["new_obs"])
        np.testing.assert_array_equal(file["terminals"][()], columns["terminateds"])
        np.testing.assert_array_equal(file["timeouts"][()], columns["truncateds"])
    with pytest.raises(DataError, match=r"episode e0(.*\n)*.*an end"):
        write_episodes(recorded(), tmp_path / "y.hdf5", "d4rl")
    with pytest.raises(DataError, match="nested"):
        write_episodes(recorded(nested=True)[1:2], tmp_path / "y.hdf5", "d4rl")
    assert list(tmp_path.iterdir()) == [path]


def test_d4rl_files_of_others(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(12, dtype=np.float32).reshape(6, 2)
        file["actions"] = np.ones((6, 3))
        file["rewards"] = np.arange(6.0)
        file["terminals"] = np.array([0, 0, 1, 0, 0, 0], bool)
        file["timeouts"] = np.array([0, 0, 0, 0, 1, 0], bool)
        file["infos/qpos"] = np.zeros((6, 4))
        file["metadata/algorithm"] = "SAC"
        file["words"] = ["a"] * 6
    with pytest.raises(ColumnError, match=r"x\.hdf5(.*\n)*.*'words'"):
        read_episodes(path, "d4rl")
    found = read_episodes(path, "d4rl", names={"words": None})
    assert [(len(e), e.is_terminated, e.is_truncated, e.lacks_final_obs) for e in found] == [
        (3, True, False, True),
        (2, False, True, True),
        (1, False, False, True),
    ]
    assert found[1].get_observations().tolist() == [[6, 7], [8, 9], [8, 9]]
    whole = path.read_bytes()
    for size in range(0, len(whole), 701):
        path.write_bytes(whole[:size])
        with pytest.raises((DataError, ColumnError)):
            read_episodes(path, "d4rl", names={"words": None})
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = h5py.ExternalLink("/etc/passwd", "x")
    with pytest.raises(DataError, match="ExternalLink"):
        read_episodes(path, "d4rl")


# -- TensorDict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_tensordict_both_ways(nested, tmp_path):
    library = pytest.importorskip("tensordict")
    episodes = recorded()
    if nested:
        for i, episode in enumerate(episodes):
            rows = {"x": episode.get_observations(), "y": episode.get_observations() * 2}
            options = {"terminated": episode.is_terminated, "truncated": episode.is_truncated, "t_started": i}
            episodes[i] = type(episode)(episode.id_, observations=rows, actions=episode.get_actions(),
                                        rewards=episode.get_rewards(), len_lookback_buffer=0, **options)  # fmt: skip
    write_episodes(episodes, tmp_path / "x", "tensordict")
    found = read_episodes(tmp_path / "x")
    assert [episode.t_started for episode in found] == [0, 1, 2, 3]
    assert_equal(found, episodes, ids=False)
    steps, columns = library.TensorDict.load_memmap(tmp_path / "x"), episodes_to_columns(episodes)
    np.testing.assert_array_equal(steps["next", "reward"][:, 0].numpy(), columns["rewards"])
    np.testing.assert_array_equal(steps["next", "terminated"][:, 0].numpy(), columns["terminateds"])
    name = ("next", "observation", "x") if nested else ("next", "observation")
    np.testing.assert_array_equal(steps[name].numpy(), columns["new_obs"]["x"] if nested else columns["new_obs"])


def test_tensordict_has_no_tuples(tmp_path):
    pytest.importorskip("tensordict")
    with pytest.raises(DataError, match="values that the format has"):
        write_episodes(recorded(nested=True), tmp_path / "x", "tensordict")
    assert list(tmp_path.iterdir()) == []


def made_by_tensordict(path, **changes):
    """Steps as TorchRL's collectors give them: two environments, three steps."""
    torch, library = pytest.importorskip("torch"), pytest.importorskip("tensordict")
    obs = torch.arange(6.0).reshape(2, 3, 1)
    ends = torch.tensor([[0, 1, 0], [0, 0, 0]]).bool()[..., None]
    no = torch.zeros_like(ends)
    after = {"observation": obs + 1, "reward": obs * 2, "done": ends, "terminated": ends, "truncated": no, **changes}
    steps = {"observation": obs, "action": torch.ones(2, 3, 1), "done": no, "terminated": no, "next": after}
    library.TensorDict(steps, [2, 3]).memmap(path)


@pytest.mark.parametrize("flags", [{}, {"terminated": None, "truncated": None}])
def test_folders_of_torchrl(flags, tmp_path):
    made_by_tensordict(tmp_path / "x")
    for name in flags:
        (tmp_path / "x" / "next" / f"{name}.memmap").unlink()
        about = json.loads((tmp_path / "x" / "next" / "meta.json").read_text())
        del about[name]
        (tmp_path / "x" / "next" / "meta.json").write_text(json.dumps(about))
    found = read_episodes(tmp_path / "x", "tensordict")
    assert [(e.get_observations()[:, 0].tolist(), e.is_terminated, e.get_rewards().tolist()) for e in found] == [
        ([0, 1, 2], True, [0, 2]),
        ([2, 3], False, [4]),
        ([3, 4, 5, 6], False, [6, 8, 10]),
    ]


def test_hostile_folders(tmp_path):
    made_by_tensordict(tmp_path / "x")
    place = tmp_path / "x" / "next"
    about = json.loads((place / "meta.json").read_text())

    def refused(kind, message):
        (place / "meta.json").write_text(json.dumps({**about, "reward": {**about["reward"], **kind}}))
        with pytest.raises(DataError, match=message):
            read_episodes(tmp_path / "x", "tensordict")

    size = (place / "reward.memmap").stat().st_size
    refused({"shape": [2, 3, 10**9]}, "mmap|size")
    refused({"dtype": "torch.bfloat16"}, "bfloat16")
    refused({"dtype": "object", "shape": [1]}, "an array with rows")
    refused({"is_nested": True}, "an array with rows")
    refused({"shape": [0]}, "an array with rows")
    (place / "meta.json").write_text(json.dumps({**about, "words": {"type": "NonTensorData"}}))
    with pytest.raises(DataError, match="NonTensorData"):
        read_episodes(tmp_path / "x", "tensordict")
    assert (place / "reward.memmap").stat().st_size == size  # the library's own loader would have made it larger
    (place / "meta.json").write_text(json.dumps({**about, "../../reward": about["reward"]}))
    with pytest.raises(DataError, match="names of entries"):
        read_episodes(tmp_path / "x", "tensordict")
    (place / "meta.json").write_text("[1")
    with pytest.raises(DataError, match="JSONDecodeError"):
        read_episodes(tmp_path / "x", "tensordict")
    (place / "reward.memmap").unlink()
    (place / "reward.memmap").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match="a link"):
        read_episodes(tmp_path / "x", "tensordict")
    with pytest.raises(DataError):
        read_episodes(tmp_path / "none", "tensordict")


# -- LeRobot -----------------------------------------------------------------------------------------


def made_by_lerobot(folder, **changes):
    """A data set of two episodes of 3 and 2 frames, as LeRobot 0.4 lays it out."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    floats = pyarrow.list_(pyarrow.float32())
    columns = {
        "observation.state": pyarrow.array([[i, i + 0.5] for i in range(5)], floats),
        "action": pyarrow.array([[float(i)] for i in range(5)], floats),
        "timestamp": pyarrow.array([0.0, 0.1, 0.2, 0.0, 0.1], pyarrow.float32()),
        "frame_index": pyarrow.array([0, 1, 2, 0, 1]),
        "episode_index": pyarrow.array([0, 0, 0, 1, 1]),
        "index": pyarrow.array(range(5)),
        "task_index": pyarrow.array([0, 0, 0, 1, 1]),
        **changes,
    }
    features = {name: {"dtype": "float32", "shape": [1]} for name in columns}
    features["observation.images.top"] = {"dtype": "video", "shape": [3, 96, 96]}
    about = {"codebase_version": "v3.0", "total_frames": 5, "total_episodes": 2, "features": features}
    for name in ("meta", "data/chunk-000"):
        (folder / name).mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(about))
    table = pyarrow.table(columns)
    parquet.write_table(table.slice(0, 3), folder / "data" / "chunk-000" / "file-000.parquet")
    parquet.write_table(table.slice(3), folder / "data" / "chunk-000" / "file-001.parquet")


def test_tables_of_lerobot(tmp_path):
    made_by_lerobot(tmp_path / "x")
    with pytest.warns(EpibatchWarning, match=r"observation\.images\.top"):
        first, second = read_episodes(tmp_path / "x")
    assert first.get_observations().tolist() == [[0, 0.5], [1, 1.5], [2, 2.5], [2, 2.5]] and first.lacks_final_obs
    assert (second.id_, second.get_actions().tolist(), second.get_rewards().tolist()) == ("1", [[3], [4]], [0, 0])
    assert (second.is_terminated, second.is_truncated) == (False, True)
    assert second.get_extra_model_outputs("task_index").tolist() == [1, 1]
    with pytest.raises(NotAvailableError, match="parquet"):
        write_episodes([], tmp_path / "y", "lerobot")


def test_tables_of_lerobot_with_rewards_and_several_states(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    more = {
        "observation.env": pyarrow.array([float(i) for i in range(5)]),
        "next.reward": pyarrow.array([0.0, 1, 2, 3, 4]),
        "next.done": pyarrow.array([False, False, True, False, False]),
    }
    made_by_lerobot(tmp_path / "x", **more)
    with pytest.warns(EpibatchWarning):
        first, second = read_episodes(tmp_path / "x", "lerobot", names={"task_index": None})
    assert first.get_observations()["env"].tolist() == [0, 1, 2, 2] and not first.extra_model_outputs
    assert (first.is_terminated, first.is_truncated, second.is_terminated, second.is_truncated) == (1, 0, 0, 1)
    assert second.get_rewards().tolist() == [3, 4]


@pytest.mark.filterwarnings("ignore")
def test_faults_of_lerobot(tmp_path):
    made_by_lerobot(tmp_path / "x")
    about, data = tmp_path / "x" / "meta" / "info.json", tmp_path / "x" / "data" / "chunk-000"
    given = about.read_text()
    about.write_text(given.replace("v3.0", "v2.1"))
    with pytest.raises(DataError, match="version 3"):
        read_episodes(tmp_path / "x", "lerobot")
    about.write_text(given)
    (data / "file-001.parquet").unlink()
    with pytest.raises(DataError, match="5 rows"):
        read_episodes(tmp_path / "x", "lerobot")
    about.write_text("{}")
    with pytest.raises(DataError, match="codebase_version"):
        read_episodes(tmp_path / "x", "lerobot")
    shutil.rmtree(data)
    with pytest.raises(DataError, match="no such file"):
        read_episodes(tmp_path / "x", "lerobot")


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "x" / "meta").mkdir(parents=True)
    (tmp_path / "x" / "meta" / "info.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x" / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link"):
        read_episodes(tmp_path / "x")
    (tmp_path / "elsewhere" / "metadata.json").write_text("{}")
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link"):
        read_episodes(tmp_path / "y", "minari")


@pytest.mark.parametrize("format", ["parquet", "rllib", "tensordict", "d4rl"])
def test_an_output_may_have_the_name_that_others_give_to_observations(format, tmp_path):
    episode = SingleAgentEpisode(
        observations=np.arange(4.0), actions=[0, 1, 0], rewards=np.ones(3), terminated=True, len_lookback_buffer=0,
        extra_model_outputs={"state": np.arange(3.0) + 7},
    )  # fmt: skip
    write_episodes([episode], tmp_path / "x", format)
    assert_equal(read_episodes(tmp_path / "x", format), [episode], ids=False)
