"""Columns that pieces replace, and memory that cannot be written to: every reader gives what the episodes hold."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_cases import slow_but

from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode, reader_of
from fixture_episodes import STORES, assert_same, harvests, read_only, twins_of

QUICK = ("a block", "two blocks in turns", "deliveries in turns", "some sent episodes of each")


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
    assert not episodes.chunks[i].detached
    {**REPLACED, **KEPT}[change](episodes[i])
    assert episodes.chunks[i].detached is (change in REPLACED)
    assert not any(chunk.detached for k, chunk in enumerate(episodes.chunks) if k != i)


@pytest.mark.parametrize("change", [key for key in (*REPLACED, *KEPT) if key not in UNEVEN])
@pytest.mark.parametrize("store", slow_but(QUICK, [key for key in STORES if "apart" not in key]))
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
