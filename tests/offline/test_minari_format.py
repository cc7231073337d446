"""Data sets of Minari: written, read back and read by the library itself; made by it, and read here; hostile ones."""

from __future__ import annotations

import json
import warnings

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, ColumnError, DataError
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import read_episodes, write_episodes
from foreign_data import assert_equal, recorded

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")

SPACES = {"observation_space": gym.spaces.Box(-9, 9, (2,), np.float32), "action_space": gym.spaces.Discrete(4)}
NESTED = gym.spaces.Dict({"x": SPACES["observation_space"], "y": gym.spaces.Tuple([gym.spaces.Discrete(9)])})
FORMATS = ["hdf5", "arrow", "parquet"]


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("nested", [False, True])
def test_written_data_is_read_back_here_and_by_minari(data_format, nested, tmp_path):
    episodes = recorded(nested=nested, outputs=False)
    spaces = {**SPACES, "observation_space": NESTED} if nested else SPACES
    chunks = [chunk for episode in episodes for chunk in (episode[:1], episode[1:])]
    write_episodes(chunks, tmp_path / "a" / "b-v0", "minari", data_format=data_format, **spaces)
    found = list(read_episodes(tmp_path / "a" / "b-v0"))
    assert_equal(found, episodes)
    assert [found[0].observation_space, found[0].action_space] == [spaces["observation_space"], SPACES["action_space"]]
    theirs = list(minari.MinariDataset(tmp_path / "a" / "b-v0" / "data").iterate_episodes())
    for mine, other in zip(episodes, theirs, strict=True):
        leaf = other.observations["y"][0] if nested else other.observations
        np.testing.assert_array_equal(leaf, mine.get_observations()["y"][0] if nested else mine.get_observations())
        np.testing.assert_array_equal(other.actions, mine.get_actions())
        np.testing.assert_array_equal(other.rewards, mine.get_rewards())
        assert (other.terminations[-1], other.truncations[-1]) == (mine.is_terminated, mine.is_truncated)


def made_by_minari(monkeypatch, tmp_path, observations=3, **changes):
    """A data set that `minari` makes of two episodes of 2 steps, and its id."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = [
        minari.data_collector.EpisodeBuffer(
            **{
                "observations": np.arange(2 * observations, dtype=np.float32).reshape(observations, 2) + 10 * i,
                "actions": np.array([1, 2 + i]),
                "rewards": np.array([0.5, i]),
                "terminations": np.array([False, i == 0]),
                "truncations": np.array([False, i == 1]),
                "infos": {"success": np.array([0, 1, i]), "more": {"x": np.array([5.0, 6.0, 7.0])}},
                **changes,
            }
        )
        for i in range(2)
    ]
    with warnings.catch_warnings(action="ignore"):  # about an author and the like
        minari.create_dataset_from_buffers("tests/made-v0", buffers, **SPACES)
    return "tests/made-v0"


def test_data_that_minari_made(monkeypatch, tmp_path):
    name = made_by_minari(monkeypatch, tmp_path)
    dataset = minari.load_dataset(name)
    for source in (name, tmp_path / name, tmp_path / name / "data", dataset):
        first, second = read_episodes(source, "minari", infos=True)
        assert second.get_observations().tolist() == [[10, 11], [12, 13], [14, 15]]
        assert (second.get_actions().tolist(), second.get_rewards().tolist()) == ([1, 3], [0.5, 1.0])
        assert (first.id_, first.is_terminated, first.is_truncated) == ("0", True, False)
        assert (second.id_, second.is_terminated, second.is_truncated) == ("1", False, True)
        assert second.get_infos(-1) == {"success": 1, "more": {"x": 7.0}}
    for opened in (read_episodes(dataset), read_episodes(name, format="minari"), read_episodes(dataset, "minari")):
        assert_equal(list(opened), list(read_episodes(name, "minari")))
    part = dataset.filter_episodes(lambda episode: episode.id == 1)
    assert [episode.id_ for episode in read_episodes(part, "minari")] == ["1"]
    assert list(read_episodes(part).ids) == ["1"]


def test_relative_paths(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_episodes(recorded(outputs=False), "b-v0", "minari", **SPACES)
    assert_equal(list(read_episodes("b-v0", "minari")), recorded(outputs=False))


def test_faults_are_named(monkeypatch, tmp_path):
    with pytest.raises(DataError, match="on this computer"):
        list(read_episodes(tmp_path / "nothing", "minari"))
    with pytest.raises(DataError, match=r"minari\.read"):
        list(read_episodes(3, "minari"))
    with pytest.raises(DataError, match="both spaces"):
        write_episodes(recorded(outputs=False), tmp_path / "x-v0", "minari")
    unfit = SingleAgentEpisode(observations=["a", "b"], actions=[1], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises((DataError, ColumnError)):
        write_episodes([unfit], tmp_path / "x-v0", "minari", **SPACES)
    assert list(tmp_path.iterdir()) == []
    name = made_by_minari(monkeypatch, tmp_path)
    with pytest.raises(DataError, match="a path where nothing is"):
        write_episodes(recorded(outputs=False), tmp_path / name, "minari", **SPACES)
    about = tmp_path / name / "data" / "metadata.json"
    given = json.loads(about.read_text())
    about.write_text(json.dumps({**given, "observation_space": None, "env_spec": None}))
    with pytest.raises(DataError, match="Minari"):
        list(read_episodes(name, "minari"))
    del given["observation_space"]
    about.write_text(json.dumps(given))
    with pytest.raises(DataError, match="'observation_space'"):  # Minari would make an environment of its choice
        list(read_episodes(name, "minari"))


@pytest.mark.parametrize("changes", [{"observations": 5}, {"rewards": np.zeros(3)}, {"terminations": np.ones(2, bool)}])
def test_data_that_does_not_fit_together(changes, monkeypatch, tmp_path):
    with pytest.raises(ColumnError, match="made-v0"):
        list(read_episodes(made_by_minari(monkeypatch, tmp_path, **changes), "minari"))


def test_hostile_files(monkeypatch, tmp_path):
    name = made_by_minari(monkeypatch, tmp_path)
    path = tmp_path / name / "data" / "main_data.hdf5"
    whole = path.read_bytes()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["values"] = np.zeros(3)

    def changed(change):
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            change(file, file["episode_0"])
        with pytest.raises(DataError) as raised:
            list(read_episodes(name, "minari"))
        return str(raised.value)

    def replace(make):
        def change(file, episode):
            del episode["rewards"]
            make(file, episode)

        return changed(change)

    def external(file, episode):
        episode.create_dataset("rewards", (2,), "f8", external=[(str(tmp_path / "secret.h5"), 0, 16)])

    def virtual(file, episode):
        layout = h5py.VirtualLayout((2,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "values", (3,))[:2]
        episode.create_virtual_dataset("rewards", layout)

    def linked(file, episode):
        episode["rewards"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "values")

    assert "rewards" in replace(linked) and "ExternalLink" in replace(linked)
    assert "SoftLink" in changed(lambda file, episode: episode.__setitem__("more", h5py.SoftLink("/episode_0")))
    assert "a second name" in changed(lambda file, episode: episode.__setitem__("more", file["/episode_0"]))
    assert "other files" in replace(external) and "other files" in replace(virtual)
    inflated = replace(lambda file, episode: episode.create_dataset("rewards", (10**12,), "f8", chunks=(1000,)))
    assert "8,000,000,002,0" in inflated or "bytes in memory" in inflated
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            list(read_episodes(name, "minari"))
    path.unlink()
    path.symlink_to(tmp_path / "secret.h5")
    with pytest.raises(CheckpointError, match="a link"):
        list(read_episodes(name, "minari"))
