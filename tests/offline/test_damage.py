"""Damaged data sets: what was committed is read, or refused by name; nothing else is read for it."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from contextlib import contextmanager

import numpy as np
import pytest
from fixture_cases import slow
from fixture_recorded import episodes_of, in_chunks

from epibatch.core.errors import DataError, StorageError
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import DatasetWriter, read_episodes, repair, verify, write_episodes

KINDS = {"obs": {"k": ("float32", (2,)), "n": ("int64", ())}, "actions": ("int64", ()), "state": ("float16", (3,))}
COMMITS = 4


def shown(data):
    """All that a data set has, as plain data."""
    return [
        (episode.id_, episode.t_started, episode.is_done, repr(episode.get_infos()), episode.custom_data,
         *(np.asarray(leaf).tobytes() for leaf in (
             *episode.get_observations().values(), episode.get_actions(), episode.get_rewards(),
             episode.get_extra_model_outputs("state"))))
        for episode in data
    ]  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with several commits, and what there was after each of them."""
    folder = tmp_path_factory.mktemp("data") / "set"
    rng = np.random.default_rng(0)
    chunks = in_chunks(rng, episodes_of(rng, 12, KINDS))
    after = []
    with DatasetWriter(folder) as log:
        for part in np.array_split(np.arange(len(chunks)), COMMITS):
            log.add([chunks[i] for i in part])
            log.commit()
            after.append(shown(read_episodes(folder)))
    return folder, after


@pytest.fixture
def copied(recorded, tmp_path):
    shutil.copytree(recorded[0], tmp_path / "set")
    return tmp_path / "set", recorded[1]


def files_of(folder):
    return sorted(path for path in folder.iterdir() if path.stat().st_size)


def check_damaged(folder, after):
    """A damaged data set is refused by name, or is as after a commit; verify says so, and repair leaves a whole one."""
    assert verify(folder) != []
    try:
        data = read_episodes(folder)
    except DataError:
        data = None
    try:
        said = repair(folder)
    except DataError:
        return
    assert said != []
    assert verify(folder) == []
    assert shown(read_episodes(folder)) in after
    assert data is None or len(data) in [len(episodes) for episodes in after]


def test_a_whole_data_set_has_nothing_to_repair(copied):
    folder, after = copied
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert verify(folder) == [] and repair(folder) == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert shown(read_episodes(folder)) == after[-1]


@pytest.mark.parametrize("seed", [0, *map(slow, (1, 2, 3))])
def test_truncated_files(copied, tmp_path, seed):
    chance = random.Random(seed)
    for number in range(25):
        shutil.copytree(copied[0], tmp_path / str(number))
        path = chance.choice(files_of(tmp_path / str(number)))
        os.truncate(path, chance.randrange(path.stat().st_size))
        if path.name == "commits.jsonl":
            check_cut_commits(path.parent, copied[1])
        else:
            check_damaged(path.parent, copied[1])


def check_cut_commits(folder, after):
    """Cut commits look like a crash before them: what the commits before had is read."""
    assert verify(folder) != []
    text = (folder / "commits.jsonl").read_bytes()
    count = text.count(b"\n")
    if not count:
        with pytest.raises(DataError):
            read_episodes(folder)
        return
    try:
        assert shown(read_episodes(folder)) == after[count - 1]
    except DataError:  # a commit that lacks nothing but the end of its line
        repair(folder)
        assert shown(read_episodes(folder)) == after[count - 1]
        return
    with DatasetWriter(folder) as log:
        log.add(episodes_of(np.random.default_rng(1), 1, KINDS))
    assert verify(folder) == []
    assert shown(read_episodes(folder))[: len(after[count - 1])] == after[count - 1]


@pytest.mark.parametrize("seed", [0, *map(slow, (1, 2, 3))])
def test_flipped_bits(copied, tmp_path, seed):
    chance = random.Random(seed)
    for number in range(25):
        folder = shutil.copytree(copied[0], tmp_path / str(number))
        path = chance.choice(files_of(folder))
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        check_damaged(folder, copied[1])


def test_every_byte_of_commits_and_description_counts(copied):
    folder, after = copied
    for name in ("commits.jsonl", "dataset.json"):
        whole = (folder / name).read_bytes()
        for at in range(0, len(whole), 9):
            content = bytearray(whole)
            content[at] ^= 4
            (folder / name).write_bytes(content)
            assert verify(folder) != []
            with pytest.raises(DataError):
                read_episodes(folder)
        (folder / name).write_bytes(whole)
    assert shown(read_episodes(folder)) == after[-1]


def test_what_a_crash_leaves_after_a_commit_is_not_read_and_the_next_writer_removes_it(copied):
    folder, after = copied
    for path in files_of(folder):
        if path.suffix == ".bin" or path.name in ("parts.jsonl", "commits.jsonl"):
            with path.open("ab") as file:
                file.write(b'{"rows":3')
    assert shown(read_episodes(folder)) == after[-1]
    assert any("after the last commit" in sentence for sentence in verify(folder))
    DatasetWriter(folder).close()
    assert verify(folder) == []


def test_a_data_set_without_a_commit_is_begun_again(tmp_path):
    episodes = episodes_of(np.random.default_rng(1), 3)
    log = DatasetWriter(tmp_path / "a")
    log.add(episodes)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=lambda *_: [".lock"])  # as a killed process leaves it
    log.close()
    with pytest.raises(DataError):
        read_episodes(tmp_path / "b")
    write_episodes(episodes_of(np.random.default_rng(2), 2), tmp_path / "b", append=True)
    assert len(read_episodes(tmp_path / "b")) == 2 and verify(tmp_path / "b") == []


def test_a_full_disk_leaves_what_was_committed(copied, monkeypatch):
    folder, after = copied
    log = DatasetWriter(folder)
    episodes = episodes_of(np.random.default_rng(1), 2, KINDS)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    log.add(episodes[:1])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="disk"):
        log.commit()
    monkeypatch.undo()
    assert shown(read_episodes(folder)) == after[-1]
    log.add(episodes[1:])
    log.commit()
    log.close()
    assert verify(folder) == []
    assert shown(read_episodes(folder)) == [*after[-1], *shown(episodes)]


@contextmanager
def no_file_above(size):
    """A disk that takes files up to a size, also a part of a write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def largest(folder):
    return max(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("steps", [1, 3, 40, 2000])
def test_what_a_full_disk_takes_of_a_write_is_removed(tmp_path, steps):
    """Also if there is room again later: nothing of what was refused is written then."""
    rng = np.random.default_rng(0)

    def made(count):
        return SingleAgentEpisode(
            observations=rng.random((count + 1, 9)), actions=rng.random(count), rewards=rng.random(count),
            terminated=True, len_lookback_buffer=0,
        )  # fmt: skip

    kept = [made(3)]
    with DatasetWriter(tmp_path / "set") as log:
        log.add(kept)
        with no_file_above(largest(tmp_path / "set") + 1234):
            for _ in range(30):
                episode = made(steps)
                try:
                    log.add(episode)
                    kept.append(episode)
                except StorageError:
                    pass
        kept.append(made(2))
        log.add(kept[-1])
    assert verify(tmp_path / "set") == []
    read = read_episodes(tmp_path / "set")
    assert len(read) == len(kept) and all(a.equals(b) for a, b in zip(read, kept))


def test_what_a_full_disk_takes_of_a_commit_is_removed(tmp_path):
    episodes = episodes_of(np.random.default_rng(1), 31, {"obs": ("int8", ()), "actions": ("int8", ())})
    with DatasetWriter(tmp_path / "set") as log:
        for episode in episodes[:30]:
            log.add(episode)
            log.commit()
        log.add(episodes[30])
        with no_file_above(largest(tmp_path / "set") + 100), pytest.raises(StorageError):
            log.commit()
        assert shown_ids(tmp_path / "set") == [episode.id_ for episode in episodes[:30]]
    assert verify(tmp_path / "set") == []
    assert shown_ids(tmp_path / "set") == [episode.id_ for episode in episodes]


def shown_ids(folder):
    return [episode.id_ for episode in read_episodes(folder)]


def test_a_writer_that_is_killed_while_it_describes_the_columns_is_followed_by_another(tmp_path, monkeypatch):
    def killed(*paths):
        raise KeyboardInterrupt

    log = DatasetWriter(tmp_path / "set")
    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        log.add(episodes_of(np.random.default_rng(1), 1))
    monkeypatch.undo()
    shutil.copytree(tmp_path / "set", tmp_path / "left", ignore=lambda *_: [".lock"])
    assert [path.name[-8:] for path in (tmp_path / "left").iterdir()] == [".writing"]
    log.close()
    write_episodes(episodes_of(np.random.default_rng(2), 2), tmp_path / "left", append=True)
    assert len(read_episodes(tmp_path / "left")) == 2 and verify(tmp_path / "left") == []


def test_rows_whose_commits_are_lost_are_not_written_over(copied):
    folder, _ = copied
    (folder / "commits.jsonl").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DataError, match=r"no commits\.jsonl"):
        DatasetWriter(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.slow
def test_killed_writers_lose_what_they_did_not_commit(tmp_path):
    """Each write is ended at another moment; what was committed is there, whole, and the log goes on."""
    chance = random.Random(0)
    known = []
    for kill in range(50):
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                rng = np.random.default_rng(kill)
                with DatasetWriter(tmp_path) as log:
                    while True:
                        log.add(in_chunks(rng, episodes_of(rng, 3, KINDS)))
                        log.commit()
                        os.write(tell, b".")
            finally:
                os._exit(1)
        os.close(tell)
        time.sleep(chance.uniform(0.02, 0.3))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(told, "rb") as file:
            commits = len(file.read())
        if known or commits:
            data = shown(read_episodes(tmp_path))
            assert data[: len(known)] == known
            assert len(data) >= len(known) + 3 * commits
            known = data
    assert len(known) > 100
    DatasetWriter(tmp_path).close()
    assert verify(tmp_path) == []


def test_repair_of_data_whose_first_commit_is_damaged_says_why_and_changes_nothing(copied):
    folder, _ = copied
    path = next(path for path in sorted(folder.iterdir()) if path.name.startswith("0-"))
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    before = {path.name: path.read_bytes() for path in files_of(folder)}
    with pytest.raises(DataError, match=rf"{path.name}: other bytes(.|\n)*nothing was changed") as caught:
        repair(folder)
    assert "cuts back" not in str(caught.value)
    assert before == {path.name: path.read_bytes() for path in files_of(folder)}
