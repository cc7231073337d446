"""The table of tests/test_named_errors.py, for mistakes in using what was trained."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.playing import VideoWriter
from epibatch.core.errors import (
    ConfigError,
    EpisodeStateError,
    RunnerError,
    SpaceError,
)


def cart_pole() -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})


def nested() -> Any:
    """CartPole, but for observations of a Discrete and a Box."""
    space = gym.spaces.Dict(code=gym.spaces.Discrete(2), where=gym.spaces.Box(-1, 1, (2,)))

    def make(config: Any) -> Any:
        return gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda obs: space.sample(), space)

    return PPOConfig().environment(make).rl_module(model_config={"fcnet_hiddens": [4]})


def acts(use: Any, config: Any = None) -> Any:
    """Call a function with the policy of a new algorithm."""
    algorithm = (config or cart_pole()).build_algo()
    try:
        return use(algorithm.get_policy())
    finally:
        algorithm.stop()


def evaluates(overrides: Any) -> Any:
    algorithm = cart_pole().evaluation(evaluation_config=overrides).build_algo()
    try:
        return algorithm.evaluate()
    finally:
        algorithm.stop()


TWO = np.zeros((2, 4))

# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    "observation of another shape": (SpaceError, lambda: acts(lambda policy: policy.act(np.zeros(3))), [
        "observation for Policy.act", "(4,)", "shape (3,)"]),
    "observation that is text": (SpaceError, lambda: acts(lambda policy: policy.act("left")), [
        "observation for Policy.act", "str of <U4"]),
    "code outside of its space": (SpaceError, lambda: acts(lambda policy: policy.act(
        {"code": [0, -1], "where": np.zeros((2, 2))}), nested()), ["part ['code']", "[-1] in rows [1]"]),
    "observation of which one part is a batch": (SpaceError, lambda: acts(lambda policy: policy.act(
        {"code": np.array([1]), "where": np.zeros(2)}), nested()), ["obs['code'] a batch of 1; obs['where'] single"]),
    "state that is none": (EpisodeStateError, lambda: acts(lambda policy: policy.act(TWO, np.zeros(2))), [
        "state for Policy.act", "ndarray"]),
    # evaluation
    "evaluation in other spaces": (ConfigError, lambda: evaluates({"env": "Acrobot-v1"}), [
        "evaluation_config, environment", "shape (4,)", "shape (6,)"]),
    # playing
    "frame that is none": (RunnerError, lambda folder: VideoWriter(folder / "out.mp4", 30).add(np.zeros(3)), [
        "frame 0", "(height, width, 3)", "float64 of shape (3,)"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
