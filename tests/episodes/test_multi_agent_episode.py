"""Episodes of several agents: C19 to C31 with their values, facts, construction from data, state, refusals."""

from __future__ import annotations

import pickle
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, EpisodeError, EpisodeStateError, NotAvailableError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_episodes import meeting


def turns() -> MultiAgentEpisode:
    """Two players, x first, of whom one observes at a time; after three env steps it is o's turn."""
    episode = meeting("x")
    episode.add_env_step({"o": 1.0}, {"x": 10}, {"x": 0.2})
    episode.add_env_step({"x": 2.0}, {"o": 20}, {"x": 0.5, "o": 0.0})
    episode.add_env_step({"o": 3.0}, {"x": 11}, {"o": 1.0, "x": 0.25})
    return episode


def test_c22_a_terminated_agent_needs_no_observation_and_a_truncated_one_does() -> None:
    episode = meeting("a", "b")
    episode.add_env_step({"b": 1.0}, {"a": 1, "b": 1}, {"a": 0.5, "b": 0.0}, terminateds={"a": True})
    ended = episode.agent_episodes["a"]
    assert ended.get_observations().tolist() == [0.0, 0.0]
    assert (ended.get_rewards().tolist(), ended.is_terminated, ended.is_truncated) == ([0.5], True, False)
    assert list(episode.get_agents_that_stepped()) == ["a", "b"]
    with pytest.raises(EpisodeStateError, match=r"agent .b. at env step 2:\ntruncated\n.*last observation"):
        episode.add_env_step({}, {"b": 1}, {"b": 0.0}, truncateds={"b": True})
    with pytest.raises(EpisodeStateError, match="last observation"):
        episode.add_env_step({}, {"b": 1}, {"b": 0.0}, truncateds={"__all__": True})


@pytest.mark.parametrize(
    "late",
    [{"rewards": {"a": 0.0}}, {"actions": {"a": 1}}, {"infos": {"a": {}}}, {"extra_model_outputs": {"a": {"v": 1}}}],
)
def test_c23_other_data_than_an_observation_for_an_agent_that_ended(late: dict[str, Any]) -> None:
    episode = meeting("a", "b")
    step = {"observations": {"b": 1.0}, "actions": {"b": 1}, "rewards": {"b": 0.0}}
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 0.0, "b": 0.0}, terminateds={"a": True})
    with pytest.raises(EpisodeStateError, match=r"agent 'a' at env step 2.*\n.*has ended"):
        episode.add_env_step(**{**step, **{name: {**step.get(name, {}), **data} for name, data in late.items()}})
    after_a_cut = episode.cut(1)
    with pytest.raises(EpisodeStateError, match="has ended"):
        after_a_cut.add_env_step(**{**step, **{name: {**step.get(name, {}), **data} for name, data in late.items()}})
    episode.add_env_step(**step, terminateds={"a": True})  # its flag again is no data


def test_c24_a_missing_reward_and_a_second_action() -> None:
    episode = meeting("a", "b")
    with pytest.raises(EpisodeStateError, match="a reward"):
        episode.add_env_step({"a": 1.0}, {"a": 1}, {})
    episode.add_env_step({"b": 1.0}, {"a": 1, "b": 1}, {"b": 0.0})
    with pytest.raises(AssertionError, match="a second action"):
        episode.add_env_step({}, {"a": 2}, {})


def test_c27_the_mapping_function_is_asked_once_per_agent() -> None:
    asked = []

    def mapping(agent: str, episode: MultiAgentEpisode) -> str:
        asked.append(agent)
        return f"m_{agent}"

    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapping, agent_module_ids={"given": "m"})
    assert episode.module_for("late") == "m_late"  # before it appears
    episode.add_env_reset(observations={"a": 0.0, "given": 0.0})
    episode.add_env_step({"a": 1.0, "late": 1.0}, {"a": 0}, {"a": 0.0})
    chunk = episode.cut()
    chunk.add_env_step({"a": 2.0, "late": 2.0}, {"a": 0, "late": 0}, {"a": 0.0, "late": 0.0})
    assert episode[:1].module_for("a") == chunk.module_for("a") == chunk.agent_episodes["a"].module_id == "m_a"
    assert asked == ["late", "a"]
    assert episode.module_for("given") == "m"
    assert MultiAgentEpisode().module_for("x") == "default_policy"


def test_c31_steps_are_counted_and_slices_have_no_step() -> None:
    episode = turns()
    assert (len(episode), episode.env_steps(), episode.agent_steps(), episode.env_t) == (3, 3, 2, 3)
    assert [len(part) for part in (episode[1:], episode[:-2], episode[5:], episode[2:1])] == [2, 1, 0, 0]
    with pytest.raises(NotAvailableError, match="every k-th"):
        episode[::2]
    with pytest.raises(NotImplementedError, match="a slice"):
        episode[0]  # type: ignore[index]


def test_it_is_an_array_episode_and_says_what_it_is() -> None:
    episode = turns()
    assert episode.to_numpy() is episode and episode.is_numpy is True
    assert MultiAgentEpisode().is_numpy is True
    assert repr(episode) == "MAEps(len=3, t=0..3, running, agents=2, id=game)"
    episode.validate()
    assert episode.equals(turns()) is False  # its single-agent episodes have names of their own
    assert not episode.equals("game")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda e: MultiAgentEpisode().add_env_step({}, {}, {}), "add_env_reset first"),
        (lambda e: e.add_env_reset(observations={"a": 0.0}), "a new episode"),
        (lambda e: e.add_env_step({"new": 1.0}, {"new": 1}, {"new": 0.0}), "an action without one"),
        (lambda e: e.add_env_step({"a": 1.0}, {}, {}), "second observation"),
        (lambda e: e.add_env_step({}, {}, {}, extra_model_outputs={"a": {"v": 1}}), "outputs without an action"),
        (lambda e: e.add_env_step([1.0], {}, {}), "observations\n.*a dict by agent"),
        (lambda e: e.add_env_step({}, {}, {}, terminateds={"a": "no"}), "True or False"),
        (lambda e: e.add_env_step({}, {}, {}, {"a": 3}), "the info dict of one step"),
        (lambda e: e.cut(-1), "from 0 on"),
        (lambda e: MultiAgentEpisode().cut(), "one that was not reset"),
    ],
)
def test_refused(call: Any, expected: str) -> None:
    episode = meeting("a")
    with pytest.raises(ValueError, match=expected):
        call(episode)
    assert episode.env_t == 0


def test_a_reset_that_is_refused_leaves_no_agents() -> None:
    episode = MultiAgentEpisode()
    with pytest.raises(EpisodeError, match="infos"):
        episode.add_env_reset(observations={"a": 0.0}, infos={"b": 5})  # type: ignore[dict-item]
    assert (episode.is_reset, list(episode.agent_ids), episode.pending_rewards) == (False, [], {})
    episode.add_env_reset(observations={"c": 0.0})
    assert list(episode.agent_ids) == ["c"]


def test_observations_are_checked_against_the_agents_space_and_named() -> None:
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    episode = MultiAgentEpisode(observation_space={"a": space})
    episode.add_env_reset(observations={"a": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="agent 'a' at env step 1"):
        episode.add_env_step({"a": np.zeros(3, np.float32)}, {"a": 0}, {"a": 0.0})
    with pytest.raises(ValueError, match=r"pass \{agent: space\}"):
        MultiAgentEpisode(observation_space=space)


def test_single_agent_episodes_know_where_they_belong() -> None:
    episode = meeting("a", agent_episode_ids={"a": "mine"})
    single = episode.agent_episodes["a"]
    assert isinstance(single, SingleAgentEpisode)
    assert (single.id_, single.agent_id, single.module_id) == ("mine", "a", "default_policy")
    assert single.multi_agent_episode_id == "game"
    assert episode.agent_episode_ids == {"a": "mine"}
    assert episode.cut().agent_episode_ids == episode[:].agent_episode_ids == {"a": "mine"}


def test_agents_come_in_the_order_of_their_first_observation() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"z": 0.0, "m": 0.0})
    episode.add_env_step({"z": 1.0}, {"z": 0}, {"z": 0.0, "early": 1.0, "other": 1.0})
    episode.add_env_step({"a": 1.0, "early": 0.0, "z": 1.0}, {"z": 0}, {"z": 0.0})
    episode.add_env_step({"other": 0.0}, {}, {})
    order = ["z", "m", "a", "early", "other"]
    assert [*episode.agent_ids] == [*episode.agent_episodes] == [*episode.agent_episode_ids] == order
    assert [segment.agent_id for segment in episode.segments] == order
    assert episode.agent_ids == set(order) and episode.agent_ids - {"z"} == set(order[1:])
    assert [*episode.cut().agent_ids] == order


def test_duration_counts_from_the_reset() -> None:
    assert MultiAgentEpisode().get_duration_s() == 0.0
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0})
    time.sleep(0.01)
    episode.add_env_step({"a": 1.0}, {"a": 0}, {"a": 0.0})
    assert episode.get_duration_s() >= 0.01
    assert episode.cut().get_duration_s() == episode.get_duration_s()


def test_print_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    turns().cut(1).print()
    assert capsys.readouterr().out.splitlines() == ["ts   -1    0", "x     x", "o          x"]
    MultiAgentEpisode().print()
    assert capsys.readouterr().out == "ts    0\n"


def test_an_agent_that_ends_without_an_observation_steps_and_does_not_observe() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0, "c": 0.0})
    assert list(episode.get_agents_that_observed()) == ["a", "b", "c"]
    rewards = {"a": 0.0, "b": 0.0, "c": 0.0}
    episode.add_env_step({"a": 1.0, "c": 1.0}, {"a": 0, "b": 0, "c": 0}, rewards, terminateds={"b": True, "c": True})
    assert list(episode.get_agents_that_stepped()) == ["a", "b", "c"]
    assert list(episode.get_agents_that_observed()) == ["a", "c"]
    episode.add_env_step({"b": 5.0}, {"a": 0}, {})
    assert list(episode.get_agents_that_observed()) == ["b"]


def test_a_refused_end_without_an_observation_leaves_no_mark() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    ends = {"terminateds": {"a": True}, "truncateds": {"b": True}}
    with pytest.raises(EpisodeStateError):
        episode.add_env_step({}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, **ends)
    assert list(episode.get_agents_that_observed()) == ["a", "b"] and episode.get_return() == 0.0


def test_agents_without_an_action_may_have_observed_long_ago():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"x": 0, "y": 0, "z": 0})
    episode.add_env_step({"y": 1}, {"x": 0, "y": 0}, {"y": 0.0}, terminateds={"z": True})
    assert list(episode.get_agents_without_action()) == ["y"]
    episode.add_env_step({"x": 2}, {}, {})
    assert list(episode.get_agents_without_action()) == ["x", "y"]
    assert list(episode.get_agents_to_act()) == ["x"]


def test_a_mapping_function_that_fails_says_for_whom():
    def first_letter(agent_id, episode):
        return agent_id[0]

    episode = MultiAgentEpisode(id_="game", agent_to_module_mapping_fn=first_letter)
    with pytest.raises(TypeError, match=r"asked for agent 7 of episode game:\n.*not subscriptable"):
        episode.module_for(7)


OBSERVATIONS = [{"a": 0.0, "b": 0.0}, {"a": 1.0}, {"b": 2.0}, {"a": 3.0, "b": 3.0, "c": 3.0}]


ACTIONS = [{"a": 10, "b": 20}, {"a": 11}, {"b": 22}]


REWARDS = [{"a": 0.5, "b": 0.25}, {"b": 0.5}, {"a": 1.0, "b": 2.0}]


def made(**keywords: Any) -> MultiAgentEpisode:
    return MultiAgentEpisode(**{"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": REWARDS, **keywords})


def test_given_steps_are_lookback_unless_it_is_said_how_many() -> None:
    auto = made(env_t_started=10)
    assert (len(auto), auto.lookback, auto.env_t_started, auto.env_t) == (0, 3, 10, 10)
    assert {s.agent_id: s.env_steps.tolist() for s in auto.segments} == {"a": [7, 8, 10], "b": [7, 9, 10], "c": [10]}
    assert made(len_lookback_buffer=9).lookback == 3
    whole = made(len_lookback_buffer=0)
    assert (len(whole), whole.agent_steps(), whole.env_t) == (3, 4, 3)
    assert whole.agent_episodes["b"].get_rewards().tolist() == [0.75, 2.0]


def test_an_agents_step_that_ends_behind_the_start_is_in_the_chunk() -> None:
    chunk = made(len_lookback_buffer=2, agent_t_started={"a": 4, "b": 7})
    a, b, c = chunk.agent_episodes.values()
    assert (a.lookback, len(a), a.t_started, a.get_rewards().tolist()) == (1, 1, 4, [1.0])
    assert (b.lookback, len(b), b.t_started, b.get_rewards().tolist()) == (1, 1, 7, [2.0])
    assert (c.lookback, len(c), c.t_started) == (0, 0, 0)
    assert chunk.agent_steps() == 2


def test_the_same_as_step_by_step() -> None:
    outputs = [{agent: {"v": 1.0} for agent in acts} for acts in ACTIONS]
    infos = [{agent: {"t": t} for agent in sees} for t, sees in enumerate(OBSERVATIONS)]
    ids = {"a": "A", "b": "B", "c": "C"}
    one = made(infos=infos, extra_model_outputs=outputs, len_lookback_buffer=0, id_="game", agent_episode_ids=ids)
    other = MultiAgentEpisode(id_="game", agent_episode_ids=ids)
    other.add_env_reset(observations=OBSERVATIONS[0], infos=infos[0])
    for t in range(3):
        step = (OBSERVATIONS[t + 1], ACTIONS[t], REWARDS[t], infos[t + 1])
        other.add_env_step(*step, extra_model_outputs=outputs[t])
    assert one.equals(other)
    one.add_env_step({"a": 4.0, "b": 4.0, "c": 4.0}, dict.fromkeys("abc", 0), dict.fromkeys("abc", 0.0),
                     extra_model_outputs={agent: {"v": 0.0} for agent in "abc"})  # fmt: skip
    assert len(one) == 4


def test_as_many_actions_as_observations_leave_the_last_ones_pending() -> None:
    episode = made(actions=[*ACTIONS, {"a": 13}], rewards=[*REWARDS, {"a": 0.5}], len_lookback_buffer=0)
    assert (len(episode), episode.pending_actions, episode.pending_rewards) == (4, {"a": 13}, {"a": 0.5})


def test_flags_end_agents_at_their_last_observation() -> None:
    episode = made(terminateds={"b": True}, truncateds={"c": True}, len_lookback_buffer=0)
    assert episode.get_terminateds() == {"a": False, "b": True, "c": False, "__all__": False}
    assert episode.get_truncateds() == {"a": False, "b": False, "c": True, "__all__": False}
    assert [segment.ended_at for segment in episode.segments] == [None, 3, 3]
    assert made(truncateds=True).is_truncated and not made(truncateds=True).is_terminated
    assert made(terminateds={"__all__": True}).get_terminateds()["a"] is True
    assert not made(terminateds=False).is_done


def test_a_flag_for_an_agent_that_acted_last_needs_an_observation_to_be_truncated() -> None:
    last = {"actions": [*ACTIONS, {"a": 13}], "rewards": [*REWARDS, {"a": 0.5}]}
    ended = made(**last, terminateds={"a": True}, len_lookback_buffer=0).agent_episodes["a"]
    assert (ended.get_observations().tolist(), ended.is_terminated) == ([0, 1, 3, 3], True)
    with pytest.raises(ValueError, match="truncated"):
        made(**last, truncateds={"a": True})


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": ACTIONS[:2]},
        {"rewards": REWARDS[:2]},
        {"observations": OBSERVATIONS[:2]},
        {"observations": None},
        {"infos": [{}]},
        {"extra_model_outputs": [{}]},
    ],
)
def test_lengths_that_do_not_fit_are_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="a dict by agent for each env step"):
        made(**wrong)


@pytest.mark.parametrize("space", [3, {"a": 3}])
def test_spaces_that_are_none_are_refused(space: Any) -> None:
    with pytest.raises(ValueError, match="action_space"):
        MultiAgentEpisode(action_space=space)


def mapping(agent: Any, episode: Any) -> str:
    return f"m_{agent}"


def an_episode(**keywords: Any) -> MultiAgentEpisode:
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    episode = MultiAgentEpisode(id_="game", observation_space={("pair", 1): box}, **keywords)
    episode.add_env_reset(observations={("pair", 1): np.zeros(2, np.float32)})
    episode.add_env_step({"b": 0.0}, {("pair", 1): {"x": np.ones(2)}}, {"b": 0.5, "never": 0.25})
    episode.custom_data["k"] = [1]
    return episode


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(one) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return value is None or isinstance(value, (str, bool, int, float, np.ndarray, np.generic))


def test_a_state_is_plain_data_and_gives_the_episode_again() -> None:
    episode = an_episode()
    state = episode.get_state()
    assert plain(state)
    other = MultiAgentEpisode.from_state(state)
    assert other.equals(episode) and pickle.loads(pickle.dumps(episode)).equals(episode)
    assert other.get_state().keys() == state.keys()
    assert other.observation_space == episode.observation_space
    other.custom_data["k"].append(2)
    other.add_env_step({("pair", 1): np.ones(2, np.float32)}, {"b": 1}, {"b": 1.0})
    assert episode.custom_data == state["custom_data"] == {"k": [1]}
    assert MultiAgentEpisode.from_state(state).equals(episode)


def test_the_mapping_function_is_asked_for_when_it_is_needed() -> None:
    state = an_episode(agent_to_module_mapping_fn=mapping).get_state()
    other = MultiAgentEpisode.from_state(state)
    assert other.module_for("b") == other.cut().module_for("b") == "m_b"
    with pytest.raises(EpisodeStateError, match="agent_to_module_mapping_fn= to from_state"):
        other.module_for("new")
    with pytest.raises(EpisodeStateError, match="mapping function"):
        other.cut().module_for("new")
    assert MultiAgentEpisode.from_state(state, agent_to_module_mapping_fn=mapping).module_for("new") == "m_new"
    assert MultiAgentEpisode.from_state(an_episode().get_state()).module_for("new") == "default_policy"


@pytest.mark.parametrize(("state", "found"), [({}, "no id_, env_t_started"), (3, "int 3")])
def test_something_else_is_refused(state: Any, found: str) -> None:
    with pytest.raises(CheckpointError, match=found):
        MultiAgentEpisode.from_state(state)
