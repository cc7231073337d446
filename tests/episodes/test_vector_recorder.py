"""The recorder against an unvectorised loop, in both autoreset modes."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpisodeError, EpisodeStateError
from epibatch.episodes import InfiniteLookbackBuffer, VectorRecorder, reader_of

N = 3
MODES = {
    "next_step": gym.vector.AutoresetMode.NEXT_STEP,
    "same_step": gym.vector.AutoresetMode.SAME_STEP,
}


def policy(observation):
    """A deterministic policy that topples the pole now and then."""
    return int(observation[2] + 0.3 * observation[0] > 0.01)


def loop_episodes(seed, steps):
    """The slow, obvious way: one environment, step by step."""
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=seed)
    rows, episodes = [observation], []
    actions, rewards = [], []
    for _ in range(steps):
        action = policy(rows[-1])
        observation, reward, terminated, truncated, _ = env.step(action)
        rows.append(observation)
        actions.append(action)
        rewards.append(reward)
        if terminated or truncated:
            episodes.append((rows, actions, rewards, terminated))
            rows, actions, rewards = [env.reset()[0]], [], []
    return episodes


def record(mode, vector_steps, lookback=2, harvest_every=17):
    envs = gym.make_vec(
        "CartPole-v1", num_envs=N, vectorization_mode="sync", vector_kwargs={"autoreset_mode": MODES[mode]}
    )
    recorder = VectorRecorder(N, autoreset=mode, capacity=8)
    observations, infos = envs.reset(seed=5)
    recorder.reset(observations, infos)
    recorder.commit()
    chunks = []
    for i in range(vector_steps):
        actions = np.array([policy(row) for row in observations])
        observations, rewards, terminateds, truncateds, infos = envs.step(actions)
        final = infos.get("final_obs")
        recorder.step(
            actions,
            rewards,
            terminateds,
            truncateds,
            observations,
            infos,
            {"twice": actions * 2.0},
            final,
        )
        recorder.commit()
        if i % harvest_every == harvest_every - 1:
            chunks.append(recorder.flush(lookback))
    chunks.append(recorder.flush(lookback))
    return chunks


def stitched(chunks):
    """Whole, ended episodes put together from chunks."""
    whole = {}
    for fragment in chunks:
        for chunk in fragment:
            own = copy.deepcopy(chunk)
            if own.id_ in whole:
                whole[own.id_].concat_episode(own)
            else:
                whole[own.id_] = own
    return [episode for episode in whole.values() if episode.is_done]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_equal_those_of_an_unvectorised_loop(mode):
    found = stitched(record(mode, 200))
    expected = [episode for n in range(N) for episode in loop_episodes(5 + n, 200)]
    assert len(expected) > 8
    by_first = {tuple(rows[0]): (rows, actions, rewards, end) for rows, actions, rewards, end in expected}
    matched = 0
    for episode in found:
        rows, actions, rewards, terminated = by_first[tuple(episode.get_observations(0))]
        np.testing.assert_array_equal(episode.get_observations(), rows)
        np.testing.assert_array_equal(episode.get_actions(), actions)
        np.testing.assert_array_equal(episode.get_rewards(), rewards)
        np.testing.assert_array_equal(episode.get_extra_model_outputs("twice"), 2.0 * np.array(actions))
        assert episode.is_terminated == terminated
        matched += 1
    assert matched >= len(expected) - N


@pytest.mark.parametrize("mode", MODES)
def test_chunks_keep_lookback_and_time(mode):
    seen = {}
    for fragment in record(mode, 120, lookback=3, harvest_every=5):
        for chunk in fragment:
            before = seen.get(chunk.id_, [])
            assert chunk.t_started == len(before)
            keep = min(3, len(before))
            assert chunk.lookback == keep
            window = chunk.get_rewards(slice(-keep, 0), neg_index_as_lookback=True) if keep else []
            np.testing.assert_array_equal(window, [reward for reward, _ in before[len(before) - keep :]])
            if keep:
                np.testing.assert_array_equal(chunk.get_observations(-1, neg_index_as_lookback=True), before[-1][1])
            rows = chunk.get_observations()
            seen[chunk.id_] = before + list(zip(chunk.get_rewards(), rows[:-1]))
    assert max(len(rows) for rows in seen.values()) > 20


def newest_of(recorder):
    return reader_of(recorder.episodes).newest("obs")[0]


def flat_recorder(observations=None):
    recorder = VectorRecorder(2, capacity=4)
    recorder.reset(np.array([0, 1]) if observations is None else observations)
    return recorder


def test_a_piece_that_writes_flattened_observations_back_leaves_one_clean_column():
    recorder = flat_recorder()
    for t in range(6):
        raw = newest_of(recorder)
        for n, episode in enumerate(recorder.episodes):
            assert episode.get_observations(-1) == raw[n]
            episode.set_observations(new_data=np.eye(9, dtype=np.float32)[raw[n]], at_indices=-1)
        np.testing.assert_array_equal(newest_of(recorder), np.eye(9, dtype=np.float32)[raw])
        recorder.commit()
        if t < 5:
            recorder.step(np.zeros(2, int), np.ones(2), [False] * 2, [False] * 2, np.array([t + 1, t + 2]))
    column = recorder.flush(0)[1].observations.data
    assert column.dtype == np.float32
    np.testing.assert_array_equal(column, np.eye(9)[1:7])


def test_an_untouched_row_next_to_a_rewritten_one_makes_an_object_column():
    recorder = flat_recorder()
    recorder.episodes[0].set_observations(new_data=np.zeros(3), at_indices=-1)
    recorder.commit()
    assert recorder.episodes[0].get_observations(0).shape == (3,)
    assert recorder.episodes[1].get_observations(0) == 1


def test_views_are_persistent_and_live():
    recorder = flat_recorder()
    view = recorder.episodes[0]
    view.custom_data["mark"] = [1]
    recorder.step(
        np.array([5, 6]), np.array([1, 2]), [False] * 2, [False] * 2, np.array([2, 3]), extras={"v": np.ones(2)}
    )
    assert recorder.episodes[0] is view
    assert len(view) == 1 and view.get_actions(-1) == 5
    assert view.get_extra_model_outputs("v", -1) == 1.0
    harvested = recorder.flush(1)
    assert harvested[0] is view
    recorder.episodes[0].custom_data["mark"].append(2)
    assert recorder.episodes[0].custom_data == {"mark": [1, 2]} and view.custom_data == {"mark": [1]}
    assert recorder.episodes[0] is not view
    recorder.step(
        np.array([7, 8]), np.array([1, 2]), [False] * 2, [False] * 2, np.array([4, 5]), extras={"v": np.ones(2)}
    )
    assert len(view) == 1 and len(recorder.episodes[0]) == 1


def test_pickling_carries_only_the_used_rows():
    recorder = VectorRecorder(64, capacity=100)
    recorder.reset(np.zeros((64, 100), np.float32))
    for _ in range(50):
        recorder.step(
            np.zeros(64, int), np.ones(64), np.zeros(64, bool), np.zeros(64, bool), np.ones((64, 100), np.float32)
        )
    fragment = recorder.flush(0)
    buffers = []
    data = pickle.dumps(fragment[3], protocol=5, buffer_callback=buffers.append)
    used = 51 * 400 + 50 * 16
    assert used <= sum(memoryview(b).nbytes for b in buffers) + len(data) < 1.2 * used + 2000
    assert pickle.loads(data, buffers=buffers).equals(fragment[3])


def test_adding_steps_to_a_view_is_refused_while_it_is_recorded_and_detaches_it_afterwards():
    recorder = flat_recorder()
    recorder.step(np.zeros(2, int), np.ones(2), [False] * 2, [False] * 2, np.array([2, 3]))
    with pytest.raises(EpisodeStateError, match="records it"):
        recorder.episodes[0].add_env_step(9, 1, 1.0)
    fragment = recorder.flush(0)
    assert not any(chunk.detached for chunk in fragment.chunks)
    fragment[0].add_env_step(9, 1, 1.0)
    assert any(chunk.detached for chunk in fragment.chunks) and fragment.lengths().tolist() == [2, 1]
    assert fragment[0].get_observations().tolist() == [0, 2, 9]


@pytest.mark.parametrize("name", ["observations", "actions", "rewards"])
def test_another_column_in_the_place_of_a_recorded_one_is_refused(name):
    recorder = flat_recorder()
    recorder.step(np.zeros(2, int), np.ones(2), [False] * 2, [False] * 2, np.array([2, 3]))
    episode = recorder.episodes[1]
    recorder.commit()
    setattr(episode, name, copy.deepcopy(getattr(episode, name)))
    column = "obs" if name == "observations" else name
    with pytest.raises(EpisodeStateError, match=rf"{episode.id_}, column '{column}'[\s\S]*records[\s\S]*setter"):
        recorder.flush(0)


def test_an_output_that_is_not_recorded_may_be_added_to_a_running_episode():
    recorder = flat_recorder()
    recorder.step(np.zeros(2, int), np.ones(2), [False] * 2, [False] * 2, np.array([2, 3]))
    recorder.episodes[1].extra_model_outputs["mine"] = InfiniteLookbackBuffer([5])
    recorder.commit()
    rows = reader_of([recorder.flush(0)[1]]).rows("mine")
    assert rows.joined().tolist() == [5]


def test_errors():
    with pytest.raises(EpisodeStateError, match="reset"):
        VectorRecorder(2).step(np.zeros(2), np.zeros(2), [False] * 2, [False] * 2, np.zeros(2))
    recorder = flat_recorder()
    step = (np.zeros(2, int), np.ones(2), [False] * 2, [False] * 2, np.array([2, 3]))
    recorder.step(*step)
    with pytest.raises(EpisodeError, match=r"keys of the first step"):
        recorder.step(*step, extras={"late": np.zeros(2)})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_environment_may_reuse_its_arrays(dtype):
    """The second type does not fit the column of the first, so its rows are held apart."""
    recorder, shared = VectorRecorder(2), np.zeros((2, 2), np.float32)
    recorder.reset(shared)
    reader_of(recorder.episodes).write_newest(np.zeros((2, 2), np.float32))
    recorder.commit()
    kept, shared = [], shared.astype(dtype)
    for _ in range(1, 6):
        shared += 1
        recorder.step(np.zeros(2), np.zeros(2), [False] * 2, [False] * 2, shared)
        kept.append(recorder.episodes[0].get_observations(-1))
        shared += 0.25
    assert [row.tolist() for row in kept] == [[t + (t - 1) * 0.25] * 2 for t in range(1, 6)]
    np.testing.assert_array_equal(recorder.episodes[1].get_observations()[1:], kept)


def test_views_of_ended_chunks_are_found_and_handed_over():
    recorder = VectorRecorder(2, autoreset="same_step")
    recorder.reset(np.zeros(2))
    views = []
    for t in range(3):
        ended = recorder.step(
            np.zeros(2), np.zeros(2), [True, t == 1], [False] * 2, np.ones(2), final_observations=np.full(2, t + 7.0)
        )
        views += [recorder.view(chunk) for chunk in ended]
        assert recorder.view(ended[-1]) is views[-1]
    assert [view.get_observations(-1) for view in views] == [7.0, 8.0, 8.0, 9.0]
    assert all(mine is theirs for mine, theirs in zip(views, recorder.flush(0), strict=False))


def test_swapped_leaves_of_a_nested_observation_are_swapped():
    recorder = flat_recorder({"a": np.array([1, 2]), "b": np.array([10, 20])})
    view = recorder.episodes[0]
    newest = view.get_observations(-1)
    view.set_observations(new_data={"a": newest["b"], "b": newest["a"]}, at_indices=-1)
    assert {key: int(value) for key, value in view.get_observations(-1).items()} == {"a": 10, "b": 1}
    recorder.commit()
    latest = newest_of(recorder)
    recorder.step(
        np.zeros(2, int), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {"a": latest["b"], "b": latest["a"]}
    )
    assert newest_of(recorder)["a"].tolist() == [1, 20]


def test_promotion_does_not_cast_rows_that_nobody_wrote():
    recorder = VectorRecorder(2, capacity=1000)
    recorder.reset(np.array([0, 1]))
    step = (np.zeros(2, bool), np.zeros(2, bool), np.array([1, 2]))
    recorder.step(np.zeros(2, int), np.array([1.0, 2.0], np.float32), *step)
    block = recorder.episodes.block
    assert not block.rewards.leaves[0][1:].any()  # defined, so that casting them cannot warn
    recorder.step(np.zeros(2, int), np.array([1.0, 2.0]), *step)
    assert block.rewards.leaves[0].dtype == np.float64


def test_terminal_observations_must_come_when_resets_come_in_the_same_step():
    recorder = VectorRecorder(2, autoreset="same_step")
    recorder.reset(np.array([0, 1]))
    with pytest.raises(EpisodeError, match=r"final_obs[\s\S]*environments \[1\] ended"):
        recorder.step(np.zeros(2, int), np.ones(2), np.array([False, True]), np.zeros(2, bool), np.array([1, 2]))


def test_giving_up_keeps_what_ended_whatever_the_newest_rows_are():
    recorder = flat_recorder()
    recorder.step(np.zeros(2, int), np.ones(2), np.array([True, False]), np.zeros(2, bool), np.array([2, 3]))
    recorder.commit()
    recorder.step(np.zeros(2, int), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), np.array([4, 5]))
    recorder.episodes[1].set_observations(new_data={"nested": 1}, at_indices=-1)
    (ended,) = recorder.abort()
    assert ended.is_terminated and ended.get_observations().tolist() == [0, 2]
    assert recorder.abort() == []


def stepped(recorder, actions, observations):
    recorder.step(actions, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), observations)


@pytest.mark.parametrize("value", [np.zeros((2, 5)), np.array(["x", "y"], object), np.array([2**70, 1], object)])
def test_rows_of_another_shape_or_kind_make_an_object_column_of_copies(value):
    recorder = flat_recorder()
    for actions in (np.array([1, 2]), value, given := np.array([np.zeros(1), np.zeros(2)], object)):
        stepped(recorder, actions, np.array([2, 3]))
    given[1][:] = 9
    _, second = recorder.flush(0)
    assert second.get_actions().dtype == object and second.get_actions(0) == 2
    assert np.array_equal(second.get_actions(1), value[1]) and second.get_actions(2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("other", "dtype"), [([[1.5, 2.5]] * 2, np.float64), (np.ones((2, 2), np.int8), np.float32), ([1.0, 2.0], object)]
)
def test_observations_that_do_not_fit_are_held_apart_until_the_commit(other, dtype):
    recorder, given = flat_recorder(np.zeros((2, 2), np.float32)), np.array(other)
    stepped(recorder, np.zeros(2), given)
    expected = given.copy()
    given[:] = 99
    np.testing.assert_array_equal(newest_of(recorder), expected)
    assert recorder.episodes[0].get_observations(0).dtype == np.float32
    recorder.commit()
    assert recorder.episodes[0].get_observations().dtype == dtype
    np.testing.assert_array_equal(recorder.episodes[1].get_observations(1), expected[1])


def test_what_one_environment_gets_leaves_the_others_as_they_are():
    recorder = VectorRecorder(3)
    recorder.reset(np.array([1, 2, 3], np.int32))
    for env, row in ((0, 9.5), (0, np.int32(-4)), (1, 0.5)):  # the second fits, and counts instead of the first
        recorder.episodes[env].set_observations(new_data=row, at_indices=-1)
    assert [float(episode.get_observations(-1)) for episode in recorder.episodes] == [-4, 0.5, 3]
    recorder.commit()
    assert newest_of(recorder).tolist() == [-4, 0.5, 3]


def test_keys_may_come_in_any_order_and_other_nesting_is_named():
    recorder = flat_recorder({"a": np.array([1, 2]), "b": np.array([4, 5])})
    recorder.episodes[1].set_observations(new_data={"b": 50.5, "a": 20}, at_indices=-1)
    found = newest_of(recorder)
    assert found["a"].tolist() == [1, 20] and found["b"].tolist() == [4.0, 50.5]
    recorder.episodes[1].set_observations(new_data={"a": 30}, at_indices=-1)
    with pytest.raises(ColumnError, match=r"environment 1, beside that of environment 0:\n.*\n.*\{a: leaf, b: leaf\}"):
        recorder.commit()
    assert recorder.episodes[1].get_observations(-1) == {"a": 30}


@pytest.mark.parametrize(
    ("old", "new"),
    [("harvest", "flush"), ("give_up", "abort"), ("announce", "name_next_episode"), ("expect", "reserve")],
)
def test_a_method_of_before_says_its_name_of_today(old, new):
    with pytest.raises(AttributeError, match=new):
        getattr(VectorRecorder(1), old)


def steps_of_two():
    """A recorder of two environments, and the arguments of a step without ends: actions come first."""
    recorder, obs, no = VectorRecorder(2), np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
    recorder.reset(obs)
    return recorder, obs, (np.ones(2), no, no, obs)


def test_a_step_that_is_refused_adds_no_column():
    recorder, obs, rest = steps_of_two()
    recorder.episodes[0].set_observations(new_data={"a": obs[0]}, at_indices=-1)  # nested unlike the other's
    with pytest.raises(ColumnError):
        recorder.step(np.array([1, 0]), *rest, extras={"logp": np.ones(2)})
    recorder.episodes[0].set_observations(new_data=obs[0], at_indices=-1)
    assert not recorder.episodes[0].extra_model_outputs
    recorder.step(np.array([1, 0]), *rest)
    assert recorder.episodes[1].get_actions().tolist() == [0]


def test_rows_of_a_column_of_objects_are_arrays_and_numbers():
    recorder, _, rest = steps_of_two()
    for actions in (np.zeros((2, 2)), np.zeros((2, 3)), [[1.0, 2.0], [3.0, 4.0]], [5, 6]):
        recorder.step(actions, *rest)
    *_, row, number = recorder.episodes[0].get_actions()
    assert row.tolist() == [1.0, 2.0] and number.dtype == np.int64 and number == 5
