"""Recording several multi-agent environments; the runner's tests compare whole runs with what the games played."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box

from epibatch.core.errors import SpaceError
from epibatch.env_runner.multi_agent_env_runner import MultiAgentRecorder
from epibatch.env_runner.vector_envs import VectorAgentStep
from epibatch.episodes import MultiAgentEpisode


def step(observations, rewards=None, ended=(), reset=(), failures=None):
    count = len(observations)
    flags = [{"__all__": env in ended} for env in range(count)]
    rewards = rewards or [dict.fromkeys(own, 1.0) for own in observations]
    was_reset = np.array([env in reset for env in range(count)])
    running = [{"__all__": False}] * count
    return VectorAgentStep(observations, rewards, flags, running, [{}] * count, was_reset, failures or {})


ACTIONS, NONE = [{"a": 1}, {"a": 0}], [{}, {}]


@pytest.fixture
def recorder():
    made = MultiAgentRecorder(2, MultiAgentEpisode)
    made.reset([{"a": 0.0}, {"a": 10.0}], [{}, {"a": {"k": 1}}])
    return made


def test_an_ended_episode_stays_until_its_environment_is_reset(recorder):
    ended, failures = recorder.step(ACTIONS, NONE, step([{"a": 1.0}, {"a": 11.0}], ended=[1]))
    assert [(each.env, each.episode) for each in ended] == [(1, recorder.episodes[1])] and failures == {}
    assert recorder.view(ended[0]).is_terminated and recorder.observed == [0, 1]
    over = recorder.episodes[1]
    ended, _ = recorder.step([{"a": 1}, {}], NONE, step([{"a": 2.0}, {"a": 20.0}], [{"a": 1.0}, {}], reset=[1]))
    assert ended == [] and recorder.episodes[1] is not over and len(recorder.episodes[1]) == 0
    finished, running = recorder.flush(0)
    assert finished == [over] and [(each.env, len(each.episode)) for each in running] == [(0, 2)]


def test_harvested_episodes_go_on_and_those_without_steps_stay(recorder):
    before = recorder.episodes[1]
    recorder.step([{"a": 1}, {}], NONE, step([{"a": 1.0}, {}], failures={1: ValueError("no")}))
    ended, running = recorder.flush(1)
    assert ended == [] and [each.env for each in running] == [0]
    assert recorder.episodes[0] is not running[0].episode and recorder.episodes[0].id_ == running[0].episode.id_
    assert (recorder.episodes[0].env_t_started, recorder.episodes[0].lookback) == (1, 1)
    assert recorder.episodes[1] is before
    assert recorder.flush(1) == ([], [])


def test_environments_without_a_new_observation_are_not_observed(recorder):
    recorder.step(ACTIONS, NONE, step([{}, {"a": 11.0}], [{"a": 2.0}, {"a": 1.0}]))
    assert recorder.observed == [1]
    assert recorder.episodes[0].pending_rewards == {"a": 2.0}


def test_outputs_are_kept_with_their_actions(recorder):
    recorder.step(ACTIONS, [{"a": {"v": 0.5}}, {"a": {"v": 0.25}}], step([{"a": 1.0}, {"a": 11.0}]))
    found = [episode.get_extra_model_outputs("v") for episode in recorder.episodes]
    assert [rows["a"].tolist() for rows in found] == [[0.5], [0.25]]


def test_a_refused_step_is_a_fault_of_its_environment_alone(recorder):
    ended, failures = recorder.step(ACTIONS, NONE, step([{"a": 1.0}, {"a": 11.0}], [{}, {"a": 1.0}], ended=[1]))
    assert list(failures) == [0] and str(failures[0]).startswith("environment 0:") and "a reward" in str(failures[0])
    assert [each.env for each in ended] == [1] and recorder.observed == [1] and len(recorder.episodes[0]) == 0
    assert recorder.abort() == [ended[0].episode] and recorder.abort() == []


def test_an_announced_episode_is_the_one_that_begins(recorder):
    coming = MultiAgentEpisode()
    recorder.name_next_episode(1, coming)
    coming.custom_data["k"] = 1
    recorder.step(ACTIONS, NONE, step([{"a": 1.0}, {"a": 11.0}], ended=[1]))
    recorder.step([{"a": 1}, {}], NONE, step([{"a": 2.0}, {"a": 20.0}], [{"a": 1.0}, {}], reset=[1]))
    assert recorder.episodes[1] is coming and coming.get_observations(-1) == {"a": 20.0}
    recorder.reset([{"a": 0.0}] * 2, [{}] * 2)
    assert all(episode is not coming for episode in recorder.episodes)


def test_history_is_that_of_the_agent_with_the_most_steps(recorder):
    assert recorder.history == 0
    for t in range(3):
        recorder.step(ACTIONS, NONE, step([{"a": 1.0 + t}, {"a": 11.0 + t}], ended=[1] if t == 2 else ()))
        if t == 1:
            recorder.flush(2)
    assert recorder.history == 3


def test_a_reset_observation_that_an_episode_refuses_names_the_environment():
    space = {"a": Box(-9, 9, (2,), np.float32)}
    recorder = MultiAgentRecorder(2, lambda: MultiAgentEpisode(observation_space=space))
    with pytest.raises(SpaceError, match="environment 1:"):
        recorder.reset([{"a": np.zeros(2, np.float32)}, {"a": np.zeros(3, np.float32)}], [{}, {}])


def test_whose_environment_an_episode_is(recorder):
    recorder.step(ACTIONS, NONE, step([{"a": 1.0}, {"a": 11.0}], ended=[1]))
    over = recorder.episodes[1]
    recorder.step([{"a": 1}, {}], NONE, step([{"a": 2.0}, {"a": 20.0}], [{"a": 1.0}, {}], reset=[1]))
    finished, running = recorder.flush(0)
    handed_over = [*finished, *(each.episode for each in running), *recorder.episodes]
    assert [recorder.env_of(episode) for episode in handed_over] == [1, 0, 0, 1]
    recorder.flush(0)
    with pytest.raises(KeyError):  # handed over earlier, and forgotten
        recorder.env_of(over)
