"""LSTM memory: what is hidden, what the two configs differ in, and that memory learns."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.rl_module import DefaultActorCritic, DefaultLSTMActorCritic


def test_velocities_are_hidden(load_example):
    env = load_example("lstm_memory").HiddenVelocities()
    observation, _ = env.reset(seed=0)
    position, _, angle, _ = env.unwrapped.state
    assert env.observation_space.contains(observation)
    np.testing.assert_allclose(observation, [position / 2.4, angle / 0.2095], rtol=1e-5)


def test_the_configs_differ_in_memory_only(load_example):
    example = load_example("lstm_memory")
    configs = [example.config_for(example.Options(), memory=memory) for memory in (True, False)]
    one, other = (config.environment("CartPole-v1").to_dict() for config in configs)  # an id is data, a class is not
    assert [config["rl_module"]["model_config"].pop("use_lstm") for config in (one, other)] == [True, False]
    assert one == other
    for memory, kind in ((True, DefaultLSTMActorCritic), (False, DefaultActorCritic)):
        algorithm = example.config_for(example.Options(), memory=memory).build_algo()
        assert type(algorithm.get_module()) is kind
        algorithm.stop()


@pytest.mark.slow
def test_memory_learns(load_example):
    example = load_example("lstm_memory")
    mean, steps = example.train(example.config_for(example.Options(steps=60_000, goal=60.0)))
    assert mean >= 60 and steps <= 60_000  # without memory it stays under 57 for a million steps
