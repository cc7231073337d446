"""Episodes that are joined, and that go to another process and come back."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from epibatch.episodes import (
    MultiAgentEpisode,
    SingleAgentEpisode,
    VectorEpisodes,
    VectorRecorder,
    join_episodes,
    pack_episodes,
    reader_of,
    unpack_episodes,
)
from fixture_episodes import (
    OBSERVATIONS,
    add_numbered,
    backwards,
    check_numbered,
    harvests,
    joint_step,
    meeting,
    numbered,
    one_apart,
    sent,
)


def facts(episode: SingleAgentEpisode) -> tuple[Any, ...]:
    """What `equals` does not compare."""
    return (
        episode.lookback,
        str(episode.return_before),
        episode.observation_space,
        episode.action_space,
        episode.given_observation_space,
        episode.get_duration_s(),
        episode.lacks_final_obs,
        episode.observations.provisional,
    )


def assert_twins(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for twin, episode in zip(found, expected, strict=True):
        assert twin.equals(episode) and facts(twin) == facts(episode)


def bytes_sent(value: Any) -> int:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(data) + sum(memoryview(own).nbytes for own in buffers)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_sent_blocks_are_the_same_episodes(kind: str, autoreset: Any) -> None:
    both = join_episodes(harvests(kind, autoreset=autoreset))
    second = both.take(range(len(both) - 2, len(both)))
    for episodes in (both, backwards(both), both.take(range(1, len(both), 3)), both.first(2), second):
        twins = sent(episodes)
        assert type(twins) is VectorEpisodes and twins.ids == episodes.ids
        assert twins.envs().tolist() == episodes.envs().tolist()
        assert_twins(twins, copy.deepcopy(episodes))
        assert_twins(sent(sent(episodes)), copy.deepcopy(episodes))


def steps_of_wide_rows(num_envs: int, steps: int) -> VectorEpisodes:
    recorder = VectorRecorder(num_envs, capacity=1)
    recorder.reset(np.zeros((num_envs, 100), np.float32))
    none = np.zeros(num_envs, bool)
    for i in range(steps):
        recorder.step(np.zeros(num_envs, int), np.ones(num_envs), none, none, np.full((num_envs, 100), i, np.float32))
    return recorder.flush(0)


def test_only_the_rows_of_the_episodes_travel_and_no_unused_room() -> None:
    episodes = steps_of_wide_rows(16, 33)
    row, last = 100 * 4 + 2 * 8, 100 * 4
    for some in (episodes, episodes.take([3]), episodes.take(range(0, 16, 2))):
        used = len(some) * (33 * row + last)
        assert used <= bytes_sent(some) < 1.02 * used + 1500


def test_large_arrays_are_not_copied() -> None:
    episodes, buffers = steps_of_wide_rows(4, 8), []
    shared = pickle.loads(pickle.dumps(episodes, protocol=5, buffer_callback=buffers.append), buffers=buffers)
    shared[2].set_rewards(new_data=7.0, at_indices=3)
    assert episodes[2].get_rewards().tolist() == [1, 1, 1, 7, 1, 1, 1, 1]


def test_what_was_done_to_the_episode_objects_is_sent_too() -> None:
    episodes = one_apart(harvests()[1])
    episodes[0].custom_data["seen"] = [1]
    episodes[2].id_, episodes[2].is_truncated = "renamed", True
    episodes[3].get_infos(0)["mark"] = 3
    episodes[3].get_infos(-1)["last"] = 4
    episodes[4].agent_id = "a"
    twins = sent(episodes)
    assert_twins(twins, copy.deepcopy(episodes))
    assert twins[2].id_ == "renamed" and twins[3].get_infos(0)["mark"] == 3 and twins[0].custom_data == {"seen": [1]}
    assert reader_of(twins).lengths.tolist() == [len(episode) for episode in episodes]


def test_read_only_columns_are_copied_by_what_writes_once_for_all_episodes() -> None:
    local, twins = harvests()[1], sent(harvests()[1])
    rewards = twins[2].get_rewards()
    rewards += 1
    assert twins[2].get_rewards().tolist() == rewards.tolist() == (local[2].get_rewards() + 1).tolist()
    first = twins[1].get_rewards()
    first *= 2
    twins[0].set_actions(new_data=3, at_indices=0)
    assert twins[1].get_rewards().tolist() == (2 * local[1].get_rewards()).tolist() and twins[0].get_actions(0) == 3
    assert reader_of(twins).rows("rewards").joined().tolist() == [r for episode in twins for r in episode.get_rewards()]
    newest = twins[0].get_observations(-1)
    newest[:] = 5
    assert twins[0].get_observations(-1).tolist() == [5, 5]


def test_infos_go_with_their_rows() -> None:
    recorder = VectorRecorder(3, autoreset="same_step")
    recorder.reset(np.zeros((3, 1)), {"start": np.arange(3)})
    for i in range(6):
        done = np.array([i == 2, False, i == 4])
        infos = {"i": np.array([i, 10 + i, 20 + i]), "_i": np.array([True, i % 2 == 0, False])}
        final = {"final_info": {"end": np.full(3, i)}} if done.any() else {}
        recorder.step(
            np.zeros(3, int), np.ones(3), done, np.zeros(3, bool), np.full((3, 1), i), {**infos, **final},
            final_observations=np.zeros((3, 1)),
        )  # fmt: skip
    episodes = recorder.flush(0)
    for some in (episodes, episodes.take([1, 3])):
        assert [twin.get_infos() for twin in sent(some)] == [episode.get_infos() for episode in some]
    assert sent(episodes.take([0]))[0].get_infos(-1) == {"end": 2}


def recorded_infos(steps: int, info: Any) -> VectorEpisodes:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 1)), {"at": np.zeros((2, 3))})
    no = np.zeros(2, bool)
    for _ in range(steps):
        recorder.step(np.zeros(2, int), np.ones(2), no, no, np.ones((2, 1)), info)
    return recorder.flush(0)


def test_infos_of_many_steps_are_few_buffers_and_can_be_changed() -> None:
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(recorded_infos(500, {"at": np.ones((2, 3))}), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) < 15
    twins = sent(recorded_infos(2, {"at": np.ones((2, 3))}))
    twins[1].get_infos(1)["at"][:] = 7
    assert [info["at"].tolist() for info in twins[1].get_infos()] == [[0] * 3, [7] * 3, [1] * 3]
    assert twins[0].get_infos(1)["at"].tolist() == [1] * 3


class Pair(NamedTuple):
    """What a user may keep in an episode."""

    left: Any
    right: Any


def refuse(custom: dict[str, Any]) -> None:
    """Put in what only cloudpickle sends."""

    class Local:
        pass

    custom["refused"] = Local()


def kept() -> dict[str, Any]:
    one = np.zeros(3)
    ragged = np.array([np.zeros(2), None], object)
    return {"vec": one, "same": one, "in": {"list": [np.zeros((2, 2))], "pair": Pair(np.zeros(1), 0)}, "ragged": ragged}


def add_one(found: dict[str, Any]) -> None:
    """Write to all arrays of `kept`."""
    found["vec"] += 1
    for array in (found["in"]["list"][0], found["in"]["pair"].left, found["ragged"][0]):
        array += 1
    assert found["same"].tolist() == [1] * 3 and found["in"]["pair"].right == 0 and found["ragged"][1] is None
    assert found["in"]["list"][0].sum() == 4 and found["in"]["pair"].left == [1] and found["ragged"][0].sum() == 2


def recorded_with(info: Any) -> VectorEpisodes:
    episodes = recorded_infos(2, info)
    for episode in episodes:
        episode.custom_data.update(kept())
    return episodes


def stacked_steps() -> VectorEpisodes:
    return recorded_with({"vec": np.zeros((2, 3)), "kept": np.array([None, kept()], object)})


def with_info_set() -> VectorEpisodes:
    episodes = recorded_with({"vec": np.zeros((2, 3))})
    for episode in episodes:
        episode.infos.set(kept(), at_indices=-1)
    return episodes


def of_own_columns() -> VectorEpisodes:
    episodes = with_info_set()
    episodes[0].own_columns()
    episodes[1].agent_id = "a"
    return episodes


def gathered() -> VectorEpisodes:
    return stacked_steps().take([1])


def listed() -> list[SingleAgentEpisode]:
    episodes = [numbered(2), Marked(observations=[0, 1], actions=[2], rewards=[3.0], infos=[kept(), {}])]
    for episode in episodes:
        episode.custom_data.update(kept())
        episode.infos.set(kept(), at_indices=-1)
    return episodes


def of_several_agents() -> list[MultiAgentEpisode]:
    episode = meeting("a", "b")
    episode.add_env_step(**joint_step("a", "b", infos={"a": kept(), "b": kept()}))
    episode.add_env_step({"a": 2.0}, {"a": 1, "b": 1}, {"a": 1.0}, {"b": kept()})
    episode.custom_data.update(kept())
    return [episode]


def arrays_read_only(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [] if value.flags.writeable else [value]
    is_nested = isinstance(value, (list, tuple, np.ndarray))
    return [array for item in value for array in arrays_read_only(item)] if is_nested else []


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("store", [stacked_steps, with_info_set, of_own_columns, gathered, listed, of_several_agents])
def test_infos_and_custom_data_of_another_process_can_be_changed(store: Any, refused: bool) -> None:
    episodes = store()
    if refused:
        refuse(episodes[0].custom_data)
    for twins in (sent_by_cloudpickle(episodes), sent_by_cloudpickle(sent_by_cloudpickle(episodes))):
        assert len(twins) == len(episodes)
        for twin in twins:
            add_one(twin.custom_data)
            singles = list(twin.agent_episodes.values()) if isinstance(twin, MultiAgentEpisode) else [twin]
            infos = [info for single in singles for info in single.get_infos()]
            assert any(infos) and not arrays_read_only(infos)
            for info in infos:
                if "ragged" in info:
                    add_one(info)
    if store is of_several_agents:
        twin = twins[0]
        twin.add_env_step({"b": 2.0}, {"a": 1}, {"b": 1.0})
        add_one(twin.agent_episodes["b"].get_infos(-1))


def sent_by_cloudpickle(episodes: Any) -> Any:
    """All episodes, as they come to another process."""
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(pack_episodes(episodes), protocol=5, buffer_callback=buffers.append)
    return unpack_episodes(pickle.loads(data, buffers=[bytes(own.raw()) for own in buffers]))


def test_objects_that_pickle_refuses_are_left_to_the_sender() -> None:
    episodes = recorded_infos(1, {"f": np.array([None, None])})
    episodes[0].custom_data["f"] = lambda: 3
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(pack_episodes(episodes))
    twins = unpack_episodes(cloudpickle.loads(cloudpickle.dumps(pack_episodes(episodes))))
    assert twins[0].custom_data["f"]() == 3 and twins[1].get_infos(1) == {"f": None}


def test_joining_keeps_the_order_and_makes_no_objects() -> None:
    first, second = harvests()
    joined = join_episodes([first, [], second])
    assert type(joined) is VectorEpisodes and joined.views == [None] * (len(first) + len(second))
    assert joined.ids == [*first.ids, *second.ids] and joined[len(first)] is second[0]
    assert join_episodes([first]) is first and join_episodes([]) == [] == join_episodes([[], []])
    assert join_episodes([first, [second[1]]]) == [*first, second[1]]


def test_running_episodes_are_sent_as_a_list() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 1)))
    twins = sent(recorder.episodes)
    assert type(twins) is list and [len(twin) for twin in twins] == [0, 0]


# ---------------------------------------------------------------- episodes with rows of their own
class Marked(SingleAgentEpisode):
    """An episode of a user's class."""

    mark = 0


def text_and_ragged() -> SingleAgentEpisode:
    episode = SingleAgentEpisode(observations=["a", "b"], actions=[np.zeros(1), np.zeros(2)][:1], rewards=[1.0])
    episode.set_observations(new_data={"other": np.ones(3)}, at_indices=-1)
    return episode


def with_spaces(id_: str) -> SingleAgentEpisode:
    box, discrete = SPACES
    return SingleAgentEpisode(
        id_=id_, observations=np.zeros((3, 2), np.float32), actions=np.array([0, 1]), rewards=np.array([1.0, 2.0]),
        observation_space=box, action_space=discrete, len_lookback_buffer=1, t_started=7, agent_id="a", module_id="m",
        multi_agent_episode_id="whole",
    )  # fmt: skip


SPACES = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)


def test_episodes_of_their_own_are_sent() -> None:
    stepped = SingleAgentEpisode(id_="stepped")
    stepped.add_env_reset({"x": np.zeros(2), "n": 1}, {"i": 0})
    stepped.add_env_step({"x": np.ones(2), "n": 2}, (1, np.zeros(3)), 1.0, {"i": [1]}, extra_model_outputs={"v": 0.5})
    stepped.custom_data["kept"] = np.arange(3)
    marked = Marked(observations=[0, 1], actions=[2], rewards=[3.0], len_lookback_buffer=0)
    marked.mark = 5
    cut = stepped.cut(len_lookback_buffer=1)
    own = harvests()[1][0]
    own.own_columns()
    whole = numbered(3, 1, id_="a", terminated=True)
    episodes = [whole, numbered(2), SingleAgentEpisode(id_="empty"), stepped, cut, text_and_ragged(), own]
    episodes += [with_spaces("b"), with_spaces("c"), marked, harvests()[0][1], whole]
    for twins in (sent(episodes), unpack_episodes(pack_episodes(episodes)), sent(sent(episodes))):
        assert_twins(twins, episodes)
        assert type(twins[9]) is Marked and twins[9].mark == 5 and twins[0] is twins[-1]
        assert twins[7].observation_space is twins[8].observation_space
    assert_twins(sent(episodes, [2, 0]), [episodes[2], episodes[0]])
    assert sent([]) == []


def test_sent_episodes_can_be_changed_and_none_changes_another() -> None:
    twins = sent([numbered(2, id_="a"), numbered(3, id_="b")])
    rewards = twins[0].get_rewards()
    rewards += 1
    add_numbered(twins[0], 3)
    twins[0].set_actions(new_data=99, at_indices=0)
    assert twins[0].get_rewards().tolist() == [1.0, 1.5, 1.0] and twins[0].get_actions().tolist() == [99, 11, 12]
    check_numbered(twins[1], 0, 3)


def test_their_columns_become_a_few_large_buffers() -> None:
    def size_and_number(count: int) -> tuple[int, int]:
        buffers: list[pickle.PickleBuffer] = []
        pickle.dumps(pack_episodes([numbered(5) for _ in range(count)]), protocol=5, buffer_callback=buffers.append)
        return sum(memoryview(own).nbytes for own in buffers), len(buffers)

    (small, few), (large, many) = size_and_number(10), size_and_number(1000)
    assert few == many < 10 and large == 100 * small


def test_what_pickle_refuses_is_left_to_the_sender() -> None:
    class Local:
        pass

    episode = numbered(2)
    episode.custom_data["object"] = Local()
    (same,) = unpack_episodes(pack_episodes([episode]))
    assert same is episode


def test_functions_of_multi_agent_episodes_are_left_to_the_sender_too() -> None:
    def mapping(agent_id: Any, episode: Any, **_: Any) -> str:
        return f"module_{agent_id}"

    episodes = [meeting("a", "b", agent_to_module_mapping_fn=mapping) for _ in range(2)]
    for episode in episodes:
        episode.add_env_step(**joint_step("a", "b"))
    twins = unpack_episodes(pack_episodes(episodes))
    for twin, episode in zip(twins, episodes, strict=True):
        assert twin.equals(episode) and twin is not episode and twin.agent_to_module_mapping_fn is mapping
        twin.add_env_step({"a": 2.0, "c": 5.0}, {"a": 1}, {"a": 1.0})
        assert twin.module_for("c") == "module_c" and "c" not in episode.agent_ids
    with pytest.raises((AttributeError, pickle.PicklingError), match="mapping"):
        pickle.dumps(pack_episodes(episodes))
    (twin, _) = unpack_episodes(cloudpickle.loads(cloudpickle.dumps(pack_episodes(episodes))))
    assert twin.equals(episodes[0]) and twin.agent_to_module_mapping_fn("x", twin) == "module_x"
