from __future__ import annotations

import time

import gymnasium as gym
import pytest

from epibatch.env_runner import MultiAgentEnv, VectorMultiAgentEnv
from epibatch.env_runner.multi_agent_env_runner import MultiAgentStepper


class Pair(MultiAgentEnv):
    """Two agents that share the object of their spaces."""

    def __init__(self):
        super().__init__()
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(1000))
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return dict.fromkeys(self.agents, 0), {}

    def step(self, action_dict):
        time.sleep(0.002)
        return dict.fromkeys(self.agents, 1), {"a": 1.0, "b": 0.0}, {"__all__": False}, {}, {}


@pytest.fixture
def stepper():
    made = MultiAgentStepper(VectorMultiAgentEnv([Pair] * 2), seconds=5.0)
    yield made
    made.close()


def drawn(stepper, times=3):
    return [stepper.random_actions([["a", "b"], ["b"]]) for _ in range(times)]


def test_random_actions_are_of_those_asked_for_and_follow_the_seed(stepper):
    stepper.reset(4)
    first = drawn(stepper)
    assert [[list(own) for own in one] for one in first] == [[["a", "b"], ["b"]]] * 3
    assert len({action for one in first for own in one for action in own.values()}) > 6
    stepper.reset(None)
    assert drawn(stepper) != first
    stepper.reset(4)
    assert drawn(stepper) == first
    assert [env.seeds for env in stepper.env.envs] == [[4, None, 4], [5, None, 5]]


def test_environments_draw_from_spaces_of_their_own(stepper):
    stepper.reset(4)
    own = stepper.env.envs[0].action_spaces["a"]
    own.seed(0)
    expected = gym.spaces.Discrete(1000, seed=0)
    drawn(stepper)
    assert [own.sample() for _ in range(5)] == [expected.sample() for _ in range(5)]


def test_time_in_steps_is_added_up(stepper):
    stepper.reset(0)
    for _ in range(3):
        stepper.step([{"a": 0, "b": 0}] * 2)
    assert stepper.seconds >= 5.0 + 3 * 2 * 0.002


def test_closed_environments_have_to_be_made_anew(stepper):
    stepper.interrupted()
    assert not stepper.broken
    stepper.close()
    assert stepper.broken
