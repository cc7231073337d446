"""The table of tests/test_named_errors.py, for mistakes in using what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch import Policy
from epibatch.algorithms import PPOConfig
from epibatch.algorithms.checkpoint import read_checkpoint, write_checkpoint
from epibatch.algorithms.playing import Player, VideoWriter
from epibatch.core.errors import (
    CheckpointError,
    ColumnError,
    ConfigError,
    EpisodeStateError,
    RunnerError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.registry import register_env


def cart_pole() -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})


def nested() -> Any:
    """CartPole, but for observations of a Discrete and a Box."""
    space = gym.spaces.Dict(code=gym.spaces.Discrete(2), where=gym.spaces.Box(-1, 1, (2,)))

    def make(config: Any) -> Any:
        return gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda obs: space.sample(), space)

    return PPOConfig().environment(make).rl_module(model_config={"fcnet_hiddens": [4]})


def rewarded() -> Any:
    from epibatch.connectors.env_to_module import PrevActionsPrevRewards

    return cart_pole().env_runners(env_to_module_connector=lambda env, spaces, device: PrevActionsPrevRewards())


def acts(use: Any, config: Any = None) -> Any:
    """Call a function with the policy of a new algorithm."""
    algorithm = (config or cart_pole()).build_algo()
    try:
        return use(algorithm.get_policy())
    finally:
        algorithm.stop()


def saved(folder: Any, config: Any = None) -> Any:
    algorithm = (config or cart_pole()).build_algo()
    try:
        return algorithm.save_to_path(folder / "saved")
    finally:
        algorithm.stop()


def evaluates(overrides: Any) -> Any:
    algorithm = cart_pole().evaluation(evaluation_config=overrides).build_algo()
    try:
        return algorithm.evaluate()
    finally:
        algorithm.stop()


def blind(config: Any) -> Any:
    return gym.make("CartPole-v1")


def plays(folder: Any, env: Any, **options: Any) -> Any:
    """Play in another environment than that of the training, under its name."""
    description, state = read_checkpoint(saved(folder))
    if callable(env):
        register_env("blind_of_named_errors", env)
        env = "blind_of_named_errors"
    description["config"]["environment"]["env"] = env
    return Player(write_checkpoint(folder / "changed", description, state), **options)


def empty_run(folder: Any) -> Any:
    (folder / "config.yaml").write_text(cart_pole().to_yaml())
    return Policy.from_checkpoint(folder)


def local_pieces(folder: Any) -> Any:
    from epibatch.connectors import ConnectorV2

    class Mine(ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

    config = cart_pole().env_runners(env_to_module_connector=lambda env, spaces, device: Mine())
    return Policy.from_checkpoint(saved(folder, config))


TWO = np.zeros((2, 4))

# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    "observation of another shape": (SpaceError, lambda: acts(lambda policy: policy.act(np.zeros(3))), [
        "observation for Policy.act", "(4,)", "shape (3,)"]),
    "observation that is text": (SpaceError, lambda: acts(lambda policy: policy.act("left")), [
        "observation for Policy.act", "str of <U4"]),
    "observation that is NaN": (ColumnError, lambda: acts(lambda policy: policy.act(np.full(4, np.nan))), [
        "in Policy.act", "observation of environment 0", "NaN", "correct the environment"]),
    "part of an observation that is NaN": (ColumnError, lambda: acts(lambda policy: policy.act(
        {"code": [0, 1], "where": [[0.0, 0.0], [0.0, np.nan]]}), nested()), [
            "observation ['where'] of environment 1", "NaN"]),
    "code outside of its space": (SpaceError, lambda: acts(lambda policy: policy.act(
        {"code": [0, -1], "where": np.zeros((2, 2))}), nested()), ["part ['code']", "[-1] in rows [1]"]),
    "part of an observation of another shape": (SpaceError, lambda: acts(lambda policy: policy.act(
        {"code": 0, "where": np.zeros(3)}), nested()), ["its part obs['where']", "shape (3,)"]),
    "part of an observation of another type": (SpaceError, lambda: acts(lambda policy: policy.act(
        {"code": 0.5, "where": np.zeros(2)}), nested()), ["its part obs['code']", "float64"]),
    "observation of which one part is a batch": (SpaceError, lambda: acts(lambda policy: policy.act(
        {"code": np.array([1]), "where": np.zeros(2)}), nested()), ["obs['code'] a batch of 1; obs['where'] single"]),
    "no reward though a piece reads it": (ColumnError, lambda: acts(lambda policy: policy.act(
        TWO, policy.act(TWO)[1]), rewarded()), [
            "(PrevActionsPrevRewards)", "none for 2", "policy.act(obs, state, reward=reward)"]),
    "state of another number of rows": (EpisodeStateError, lambda: acts(
        lambda policy: policy.act(np.zeros((3, 4)), policy.act(TWO)[1])), ["a state of 3 rows", "PolicyState(2 rows)"]),
    "state of a batch for one observation": (EpisodeStateError, lambda: acts(
        lambda policy: policy.act(np.zeros(4), policy.act(TWO)[1])), ["a state of one environment", "(2 rows)"]),
    "state of another policy": (EpisodeStateError, lambda: acts(lambda policy: policy.act(
        TWO, acts(lambda other: other.act(TWO))[1])), ["this policy's last act", "one of another policy"]),
    "state that is none": (EpisodeStateError, lambda: acts(lambda policy: policy.act(TWO, np.zeros(2))), [
        "state for Policy.act", "ndarray"]),
    "one reward for several rows": (ColumnError, lambda: acts(lambda policy: policy.act(TWO, reward=1.0)), [
        "reward for Policy.act", "2 numbers", "shape ()"]),
    "starts that are no booleans": (ColumnError, lambda: acts(lambda policy: policy.act(TWO, starts=[0, 1])), [
        "starts for Policy.act", "2 booleans", "int64"]),
    "info that is a list": (ColumnError, lambda: acts(lambda policy: policy.act(TWO, info=[{}, {}])), [
        "info for Policy.act", "list"]),
    "seed that is none": (ConfigError, lambda: acts(lambda policy: policy.seed(-1)), ["Policy.seed", "-1"]),
    # evaluation
    "evaluation of a setting that is the training's": (
        ConfigError, lambda: cart_pole().evaluation(evaluation_config={"lr": 1.0}), [
            "evaluation.evaluation_config.lr", "belongs to training"]),
    "evaluation in other spaces": (ConfigError, lambda: evaluates({"env": "Acrobot-v1"}), [
        "evaluation_config, environment", "shape (4,)", "shape (6,)"]),
    "evaluation in an unknown environment": (UnknownNameError, lambda: evaluates({"env": "CartPol-v1"}), [
        "'CartPol-v1'", "did you mean 'CartPole-v1'"]),
    "goal that nothing measures": (ConfigError, lambda: cart_pole().stopping(evaluation_return_mean=9).build_algo(), [
        "stop.evaluation_return_mean", "evaluation.evaluation_interval"]),
    # playing
    "playing a run without checkpoint": (CheckpointError, lambda folder: Player(folder / "none"), ["no such folder"]),
    "playing in an environment that is not there": (UnknownNameError, lambda folder: plays(folder, "Own-v3"), [
        "environment", "'Own-v3'", "check the spelling"]),
    "playing a config that is code": (CheckpointError, lambda folder: Player(Path(saved(
        folder, cart_pole().environment(lambda config: gym.make("CartPole-v1"))))), [
        "playing", "environment.env", "Policy.from_checkpoint(path, config=config)"]),
    "video of an environment that does not render": (RunnerError, lambda folder: plays(folder, blind, render=True), [
        "rgb_array", "render_mode None", "leave out --video"]),
    "video that is no mp4": (ConfigError, lambda folder: VideoWriter(folder / "out.gif", 30), [".mp4", "out.gif"]),
    "frame that is none": (RunnerError, lambda folder: VideoWriter(folder / "out.mp4", 30).add(np.zeros(3)), [
        "frame 0", "(height, width, 3)", "float64 of shape (3,)"]),
    # checkpoints
    "policy from nowhere": (CheckpointError, lambda folder: Policy.from_checkpoint(folder / "none"), [
        "none", "no such folder"]),
    "policy from a run without checkpoint": (CheckpointError, lambda folder: empty_run(folder), [
        "a whole checkpoint", "none"]),
    "policy whose pieces are code": (CheckpointError, lambda folder: local_pieces(folder), [
        "env_to_module[0]: piece class", "Mine", "config=config"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
