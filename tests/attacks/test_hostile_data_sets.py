"""Data sets that a stranger made: each is refused by name, nothing is executed and little memory is taken."""

from __future__ import annotations

import hashlib
import json
import os
import pickle

import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, DataError, EpibatchError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import MultiAgentEpisodeReplayBuffer
from epibatch.offline import DatasetWriter, read_episodes, repair, verify, write_episodes


class Bomb:
    """What opens a pickle of this makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def folder(tmp_path):
    """A data set of two commits."""
    for number in range(2):
        observations, steps = {"a": np.arange(5.0), "b": (np.zeros((5, 2), np.int8),)}, np.arange(4)
        episode = SingleAgentEpisode(
            id_=f"episode {number}", observations=observations, actions=steps, rewards=steps / 2,
            infos=[{"x": 1}, {}, {}, {}, {}], terminated=True, len_lookback_buffer=0,
        )  # fmt: skip
        write_episodes([episode], tmp_path / "data", append=True)
    return tmp_path / "data"


def sign(folder):
    """Write commits that fit the files as they are now: a stranger can compute sums, too."""
    lines = (folder / "commits.jsonl").read_text().splitlines()
    facts = json.loads(lines[-1])
    names = [path.name for path in folder.iterdir() if path.suffix == ".bin" or path.name == "parts.jsonl"]
    columns = sorted(name for name in names if not name.startswith("parts"))
    sums = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (*columns, "parts.bin", "parts.jsonl")]
    sums.append(hashlib.sha256((folder / "dataset.json").read_bytes()).hexdigest())
    text = json.dumps(
        {**{name: facts[name] for name in ("rows", "parts", "text")}, "sums": sums}, separators=(",", ":")
    )
    total = hashlib.sha256(text[:-1].encode()).hexdigest()
    (folder / "commits.jsonl").write_text(f'{text[:-1]},"sum":"{total}"}}\n')


def change_facts(folder, column, value, part=0):
    table = np.fromfile(folder / "parts.bin", np.int64).reshape(-1, 8)
    table[part, column] = value
    table.tofile(folder / "parts.bin")
    sign(folder)


def change_description(folder, change):
    facts = json.loads((folder / "dataset.json").read_text())
    change(facts)
    (folder / "dataset.json").write_text(json.dumps(facts))
    sign(folder)


def test_what_is_signed_again_is_read(folder):
    before = read_episodes(folder)
    sign(folder)
    after = read_episodes(folder)
    assert verify(folder) == [] and [a.equals(b) for a, b in zip(after, before, strict=True)] == [True, True]


FACTS = {
    "lookback below 0": (0, -1),
    "lookback beyond the rows": (0, 2**62),
    "steps below 0": (1, -(2**63)),
    "no steps": (1, 0),
    "more steps than rows": (1, 9),
    "so many steps that they overflow": (1, 2**63 - 5),
    "start below 0": (2, -3),
    "start that overflows": (2, 2**63 - 1),
    "flag that is none": (3, 7),
    "another flag that is none": (4, -1),
    "placeholder that is none": (5, 2),
    "going on from itself": (6, 0),
    "going on from a later part": (6, 1),
    "going on from nowhere": (6, -2),
    "line that ends before it begins": (7, 0),
    "line that ends beyond the text": (7, 2**40),
}


@pytest.mark.parametrize("kind", FACTS)
def test_facts_that_cannot_be(folder, kind):
    change_facts(folder, *FACTS[kind])
    assert verify(folder) != []
    with pytest.raises(DataError, match=r"parts\.bin"):
        read_episodes(folder)
    with pytest.raises(DataError):
        DatasetWriter(folder)
    read = None
    try:
        repair(folder)
    except DataError:
        return
    assert read is None


def test_a_part_that_goes_on_from_an_ended_one(folder):
    change_facts(folder, 6, 0, part=1)
    with pytest.raises(DataError, match="does not fit"):
        read_episodes(folder)


def first_leaf(facts):
    return facts["columns"][0][2][0]


def deep(levels):
    form = None
    for _ in range(levels):
        form = {"$": "tuple", "items": ["tuple", {"$": "tuple", "items": []}, {"$": "tuple", "items": [form]}]}
    return form


def set_(path, value):
    def change(facts):
        target = facts
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


DESCRIPTIONS = {
    "objects": set_(("columns", 0, 2, 0, 0), "|O"),
    "text": set_(("columns", 0, 2, 0, 0), "<U3"),
    "raw bytes": set_(("columns", 0, 2, 0, 0), "|V8"),
    "records": set_(("columns", 0, 2, 0, 0), "i4,i4"),
    "times": set_(("columns", 0, 2, 0, 0), "<M8[ns]"),
    "no type": set_(("columns", 0, 2, 0, 0), 3),
    "shape below 0": set_(("columns", 0, 2, 0, 1), [-1]),
    "shape of text": set_(("columns", 0, 2, 0, 1), ["2"]),
    "shape of bools": set_(("columns", 0, 2, 0, 1), [True]),
    "huge shape": set_(("columns", 0, 2, 0, 1), [2**30, 2**30, 2**30]),
    "huge size": set_(("columns", 0, 2, 0, 1), [2**31 - 1]),
    "more rows than there are": set_(("columns", 0, 2, 0, 1), [1000]),
    "another version": set_(("version",), 99),
    "a version of text": set_(("version",), "1"),
    "another format": set_(("format",), "something"),
    "no columns": set_(("columns",), []),
    "columns twice": lambda facts: facts["columns"].append(facts["columns"][0]),
    "columns that are a number": set_(("columns",), 7),
    "name that is a number": set_(("columns", 0, 0), 7),
    "nesting that is text": set_(("columns", 0, 1), "dict"),
    "nesting without end": set_(("columns", 0, 1), deep(150)),
    "nesting of many levels": set_(("columns", 0, 1), deep(60)),
    "nesting of another kind": set_(("columns", 1, 1), {"$": "tuple", "items": ["set", {"$": "tuple", "items": []}]}),
    "leaves that are missing": set_(("columns", 0, 2), []),
    "space of another class": set_(("observation_space",), {"type": "os.system"}),
    "huge space": set_(("observation_space",), {"type": "Box", "low": 0, "high": 1, "shape": [2**40]}),
    "environment that is a number": set_(("env",), 5),
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_descriptions_that_cannot_be(folder, kind):
    change_description(folder, DESCRIPTIONS[kind])
    assert verify(folder) != []
    for attempt in (read_episodes, DatasetWriter, repair):
        if attempt is repair and kind in ("more rows than there are", "huge size"):
            continue  # whose first commit is not whole
        with pytest.raises(DataError):
            attempt(folder)


TEXTS = {
    "nothing": b"",
    "bytes that are no text": b"\xff\xfe\x00",
    "brackets without end": b"[" * 100_000,
    "a number without end": b"9" * 10_000,
    "a list": b"[]",
    "null": b"null",
    "NaN": b'{"format": NaN}',
    "a pickle": None,
}


@pytest.mark.parametrize("name", ["dataset.json", "commits.jsonl", "parts.jsonl", "parts.bin"])
@pytest.mark.parametrize("kind", TEXTS)
def test_files_of_something_else(folder, tmp_path, name, kind):
    content = pickle.dumps(Bomb(tmp_path / "made")) if TEXTS[kind] is None else TEXTS[kind]
    (folder / name).write_bytes(content)
    assert verify(folder) != []
    with pytest.raises(EpibatchError):
        [episode.get_infos() for episode in read_episodes(folder)]
    with pytest.raises(EpibatchError):
        repair(folder)
    assert not (tmp_path / "made").exists()


LINES = {
    "no names": "{}",
    "a list": "[1]",
    "id that is a number": '{"id": 3}',
    "infos that are text": '{"id": "a", "infos": "xx"}',
    "infos at places of text": '{"id": "a", "infos": [["0", {}]]}',
    "infos that are numbers": '{"id": "a", "infos": [[0, 5]]}',
    "custom data that is a list": '{"id": "a", "custom_data": [1]}',
    "brackets without end": "[" * 5000,
    "an unknown tag": '{"id": {"$": "pickle"}}',
    "a key that is a list": '{"id": "a", "custom_data": {"$": "dict", "items": [[[1], 2]]}}',
}


@pytest.mark.parametrize("kind", LINES)
def test_lines_that_cannot_be(folder, kind):
    text = LINES[kind] + "\n"
    lines = (folder / "parts.jsonl").read_text().splitlines(keepends=True)
    (folder / "parts.jsonl").write_text(text + lines[1])
    table = np.fromfile(folder / "parts.bin", np.int64).reshape(-1, 8)
    table[:, 7] += len(text) - len(lines[0])
    table.tofile(folder / "parts.bin")
    commits = (
        (folder / "commits.jsonl")
        .read_text()
        .replace(f'"text":{sum(map(len, lines))}', f'"text":{len(text) + len(lines[1])}')
    )
    (folder / "commits.jsonl").write_text(commits)
    sign(folder)
    data = read_episodes(folder)
    with pytest.raises(DataError, match=r"parts\.jsonl, part 0"):
        data[0]
    assert len(data[1]) == 4
    assert any("part 0" in sentence for sentence in verify(folder))


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_files_that_are_none(folder, tmp_path, kind):
    secret = tmp_path / "secret"
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        secret.write_bytes(content)
        path.unlink()
        if kind == "link":
            path.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        with pytest.raises(EpibatchError):
            [episode.id_ for episode in read_episodes(folder)]
        assert verify(folder) != []
        for attempt in (repair, DatasetWriter):
            with pytest.raises(EpibatchError):
                attempt(folder)
        assert secret.read_bytes() == content
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(content)
    assert verify(folder) == []


def test_paths_in_names_of_columns_stay_in_the_folder(tmp_path):
    given = {"observations": [0, 1], "actions": [1], "rewards": [1.0], "len_lookback_buffer": 0}
    outputs = {"../../above": [1], "/etc/x": [2], "a\x00b": [3], "": [4], "." * 300: [5]}
    episode = SingleAgentEpisode(**given, extra_model_outputs=outputs)
    write_episodes([episode], tmp_path / "in" / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["data"]
    assert read_episodes(tmp_path / "in" / "data")[0].equals(episode)


def test_a_checkpoint_of_something_else_is_named(tmp_path):
    buffer = MultiAgentEpisodeReplayBuffer(100)
    with pytest.raises(DataError, match="a replay buffer of one agent"):
        read_episodes(buffer.save_to_path(tmp_path / "buffer"))
    (tmp_path / "buffer" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError):
        read_episodes(tmp_path / "buffer")
