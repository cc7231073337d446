"""Episodes of several agents that come, wait and go are written, and read back equal."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.core.errors import CheckpointError, DataError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from epibatch.offline import MultiAgentDataset, MultiAgentWriter, read_episodes, repair, verify, write_episodes
from oracle.agents import Schedule, schedules


def chunks_of(schedule: Schedule, cuts: list[bool], number: int) -> list[MultiAgentEpisode]:
    """The chunks with a step of an episode that is cut before some of its steps."""
    episode = MultiAgentEpisode(id_=f"game {number}")
    episode.add_env_reset(**schedule.reset)
    chunks = [episode]
    for cut, step in zip(cuts, schedule.steps):
        if cut:
            chunks.append(chunks[-1].cut(2))
        chunks[-1].add_env_step(**step)
    chunks[-1].custom_data["number"] = number
    return [chunk for chunk in chunks if len(chunk)]


def assert_same(read, expected):
    assert len(read) == len(expected) and list(read.ids) == [episode.id_ for episode in expected]
    assert all(a.equals(b) for a, b in zip(read, expected, strict=True))
    assert read.num_steps == sum(map(len, expected))


@settings(max_examples=6)
@given(
    played=st.lists(schedules(length=8), min_size=1, max_size=3), cuts=st.lists(st.booleans(), min_size=9, max_size=9)
)
def test_episodes_of_several_agents_come_back_equal(tmp_path_factory, played, cuts):
    folder = tmp_path_factory.mktemp("data") / "set"
    chunks = [chunk for number, schedule in enumerate(played) for chunk in chunks_of(schedule, cuts, number)]
    if not chunks:
        return
    write_episodes(chunks[:1], folder)
    with MultiAgentWriter(folder) as log:
        for chunk in chunks[1:]:
            log.add(chunk)
    assert verify(folder) == []
    for data in (read_episodes(folder), read_episodes(chunks)):
        assert_same(data, chunks)
        assert_same(pickle.loads(pickle.dumps(data)), chunks)


def game(number, steps=4):
    """Two agents with observations of different shapes; the second gets a reward of 2 each step."""
    episode = MultiAgentEpisode(id_=f"game {number}")
    seen = {"a": np.full(2, number, np.float32), "b": {"x": np.int64(number)}}
    episode.add_env_reset(observations=seen)
    for step in range(steps):
        end = {"__all__": step == steps - 1}
        episode.add_env_step(seen, {"a": 0, "b": 1}, {"a": 1.0, "b": 2.0}, terminateds=end)
    return episode


@pytest.fixture
def recorded(tmp_path):
    episodes = [game(number, steps=2 + number % 3) for number in range(12)]
    write_episodes(episodes, tmp_path / "data", env="Game-v0")
    return read_episodes(tmp_path / "data"), episodes


def test_facts_and_parts(recorded, tmp_path):
    data, episodes = recorded
    assert isinstance(data, MultiAgentDataset)
    assert (data.path, data.env) == (tmp_path / "data", "Game-v0")
    assert data.returns.tolist() == [3.0 * len(episode) for episode in episodes]
    assert data.lengths.tolist() == list(map(len, episodes))
    assert_same(data.filter(data.returns > 7), [episode for episode in episodes if len(episode) > 2])
    assert_same(data.filter(lambda episode: len(episode) > 2), [episode for episode in episodes if len(episode) > 2])
    assert_same(data.shard(1, 5), episodes[1::5])
    assert_same(data.take([3, 1]), [episodes[3], episodes[1]])
    first, second = data.split(0.75, seed=0)
    assert (len(first), len(second), {*first.ids, *second.ids}) == (9, 3, set(data.ids))
    assert data[-1].equals(episodes[-1]) and len(data[2:4]) == 2


@pytest.mark.parametrize("wrong", [SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1.0],
                                                      len_lookback_buffer=0), 5, MultiAgentEpisode()])  # fmt: skip
def test_what_is_no_such_episode_is_refused_and_leaves_nothing(tmp_path, wrong):
    for write in (lambda: write_episodes([game(0), wrong], tmp_path / "data"), lambda: read_episodes([game(0), wrong])):
        with pytest.raises(DataError, match="several agents"):
            write()
    assert not (tmp_path / "data").exists()


def test_lost_rows_are_named(recorded, tmp_path):
    _, episodes = recorded
    write_episodes([game(20)], tmp_path / "data", append=True)
    path = tmp_path / "data" / "agents-0" / "2-rewards.0.bin"
    content = bytearray(path.read_bytes())
    content[-8 * 3] ^= 1
    path.write_bytes(content)
    assert any("2-rewards" in sentence for sentence in verify(tmp_path / "data"))
    assert repair(tmp_path / "data") != []
    after = read_episodes(tmp_path / "data")
    assert_same(after.take(range(12)), episodes)
    with pytest.raises(DataError, match="episode 12"):
        after[12]


def test_agents_whose_folder_is_lost_are_named(recorded, tmp_path):
    shutil.rmtree(tmp_path / "data" / "agents-1")
    (sentence,) = verify(tmp_path / "data")
    assert "episode 0" in sentence
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "data")])
    assert result.exit_code == 1 and "episode 0" in result.stdout


@pytest.mark.parametrize("left", ["all", "dataset.json", "nothing"])
def test_agents_of_a_new_kind_cost_a_killed_writer_only_what_it_did_not_commit(recorded, tmp_path, left):
    _, episodes = recorded
    newcomer = MultiAgentEpisode(id_="newcomer")
    newcomer.add_env_reset(observations={"c": np.zeros(5)})
    newcomer.add_env_step({"c": np.ones(5)}, {"c": 0}, {"c": 1.0}, terminateds={"__all__": True})
    with MultiAgentWriter(tmp_path / "data") as log:
        log.add([newcomer])
        assert_same(read_episodes(tmp_path / "data"), episodes)  # what is not committed is not there yet
        shutil.copytree(tmp_path / "data", tmp_path / "left", ignore=lambda *_: [".lock"])
    for path in (tmp_path / "left" / "agents-2").iterdir():
        if left not in ("all", path.name):
            path.unlink()
    assert_same(read_episodes(tmp_path / "left"), episodes)
    later = [game(20), newcomer]
    write_episodes(later, tmp_path / "left", append=True)
    assert_same(read_episodes(tmp_path / "left"), [*episodes, *later])
    assert verify(tmp_path / "left") == []


def test_a_first_writer_that_is_killed_is_followed_by_another(tmp_path):
    with MultiAgentWriter(tmp_path / "data") as log:
        log.add([game(0)])
        shutil.copytree(tmp_path / "data", tmp_path / "left", ignore=lambda *_: [".lock"])
    later = [game(1)]
    write_episodes(later, tmp_path / "left", append=True)
    assert_same(read_episodes(tmp_path / "left"), later)


def test_episodes_of_one_agent_are_not_hidden_by_those_of_several(tmp_path):
    single = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    write_episodes([single], tmp_path / "data")
    with pytest.raises(DataError, match="of such episodes"):
        write_episodes([game(0)], tmp_path / "data", append=True)
    assert read_episodes(tmp_path / "data")[0].equals(single)


@pytest.mark.parametrize("name", ["episodes", "agents-0"])
def test_links_to_other_data_sets_are_refused(recorded, tmp_path, name):
    (tmp_path / "data" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere")
    for use in (read_episodes, MultiAgentWriter, repair):
        with pytest.raises(CheckpointError, match="a link"):
            use(tmp_path / "data")
    assert "a link" in verify(tmp_path / "data")[0]


def test_faults_name_the_episode_and_the_agent(tmp_path):
    good, bad = game(0), game(1)
    bad.agent_episodes["a"].set_observations(new_data=np.array([np.nan, 0.0]), at_indices=2)
    open_end = MultiAgentEpisode(id_="open")
    open_end.add_env_reset(observations={"a": np.zeros(2, np.float32)})
    open_end.add_env_step({"a": np.zeros(2, np.float32)}, {"a": 0}, {"a": 1.0})
    write_episodes([good, bad, open_end], tmp_path / "data")
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "data")])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "warning: ends without being terminated or truncated (episodes: 1; first in episode 'open' at step 1)",
        "error: obs: NaN or infinite (steps: 1; first in episode 'game 1, agent a' at step 2)",
    ]


def test_the_overview_has_the_columns_of_each_kind_of_agent(recorded, tmp_path):
    result = CliRunner().invoke(app, ["data", "show", str(tmp_path / "data")])
    lines = result.stdout.splitlines()
    assert lines[0].endswith("Game-v0") and lines[1].endswith("12 (12 terminated)") and lines[2].endswith("36")
    assert [line.split() for line in lines[lines.index("columns:") + 1 :]] == [
        ["a", "obs", "float32[2]"],
        ["a", "actions", "int64"],
        ["a", "rewards", "float64"],
        ["b", "obs['x']", "int64"],
        ["b", "actions", "int64"],
        ["b", "rewards", "float64"],
    ]
