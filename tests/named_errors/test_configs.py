"""The table of test_library.py, for mistakes in configs, pieces as data, and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epibatch.algorithms import Logger, PPOConfig, TrainingRun
from epibatch.cli import app
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import (
    CheckpointError,
    ConfigError,
    UnknownNameError,
)
from epibatch.env_runner import make_multi_agent

CartPoles = make_multi_agent("CartPole-v1")


class Refused(ValueError):
    """What the command printed when it refused to work, with exit code 2."""


def command(folder: Path, *words: str) -> None:
    """Run `epibatch`; `train` gets a good config file unless it goes on with a run."""
    file = [] if words[0] != "train" or "--resume" in words else [str(written(folder / "config.yaml", GOOD))]
    result = CliRunner().invoke(app, [words[0], *file, *words[1:]])
    if result.exit_code == 2:
        raise Refused(result.output)


def written(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


class Logs(ConnectorV2):
    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        metrics.log_value("sample", 1.0)
        return batch


def logs_a_taken_name() -> None:
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=8, minibatch_size=8, num_epochs=1)
    algorithm = config.env_runners(env_to_module_connector=lambda env: Logs()).build_algo()
    try:
        algorithm.train()
    finally:
        algorithm.stop()


def network(**model_config: Any) -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config=model_config).build_algo()


GOOD = b"""
algorithm: ppo
environment: {env: CartPole-v1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
"""

YAML = (
    "training: {lr: fast, gamma: 1.5, clip_parm: 1}\nenv_runner: {}\nlearner: [{piece: frame_stacking, num_frame: 4}]"
)

# What is done wrong: (error, how it is done, what the message names).

# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # configs
    "many wrong settings": (ConfigError, lambda: PPOConfig.from_yaml(YAML), [
        "training.lr (line 1, column 16)", "training.gamma", "training.clip_parm", "env_runner (line 2,",
        "learner[0].num_frame (line 3", "these 5"]),
    "an agent without module": (
        ConfigError, lambda: PPOConfig().environment(CartPoles, env_config={"num_agents": 2}).multi_agent(
            policy_mapping_fn={"0": "a"}).build_algo(), ["policy_mapping_fn", "no entry that fits 1 among 0"]),
    "environment that its module does not register": (
        UnknownNameError, lambda: PPOConfig().environment(
            "gymnasium.envs.classic_control:CartPoleEnv-v9").build_algo(), [
            "registers no 'CartPoleEnv-v9', but has the class CartPoleEnv", "gym.register("]),
    # values that mean something else than they look like
    "rate without end": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: .inf}"), [
        "training.lr", "found float"]),
    "size that no computer has": (ConfigError, lambda: PPOConfig().training(train_batch_size=10**30), [
        "training.train_batch_size", "less than"]),
    "seed that is too long": (ConfigError, lambda: PPOConfig().debugging(seed=2**32), ["debugging.seed", "4294967296"]),
    "two spellings of one setting": (ConfigError, lambda: PPOConfig.from_yaml(
        "training: {lambda: 0.9, lambda_: 0.8}"), ["training.lambda", "given twice"]),
    "setting of an earlier RLlib": (ConfigError, lambda: PPOConfig.from_yaml("training: {num_sgd_iter: 3}"), [
        "training.num_sgd_iter", "num_epochs"]),
    "keywords for no initializer": (ConfigError, lambda: network(fcnet_kernel_initializer_kwargs={"gain": 2}), [
        "fcnet_kernel_initializer_kwargs", "there is no fcnet_kernel_initializer"]),
    "keywords that an initializer lacks": (ConfigError, lambda: network(
        fcnet_kernel_initializer="normal_", fcnet_kernel_initializer_kwargs={"sd": 1.0}), ["'normal_'", "'sd'"]),
    # YAML
    "word for a switch": (ConfigError, lambda: PPOConfig.from_yaml("env_runners: {explore: off}"), [
        "env_runners.explore", "be True, False, 'sample'", "found str 'off'"]),
    "minutes for seconds": (ConfigError, lambda: PPOConfig.from_yaml("stop: {time_total_s: 1:30}"), [
        "stop.time_total_s", "valid number", "found str '1:30'"]),
    "file that is no text": (ConfigError, lambda folder: PPOConfig.from_yaml(written(folder / "b.yaml", b"\xff")), [
        "b.yaml", "utf-8"]),
    "text for a number, piece": (ConfigError, lambda: PPOConfig.from_yaml(
        "learner: [{piece: frame_stacking, num_frames: '4'}]"), ["learner[0].num_frames", "integer", "str '4'"]),
    # loggers and devices
    "logger without log": (ConfigError, lambda: PPOConfig().reporting(loggers=[print]), [
        "reporting.loggers", "a method log(results)"]),
    "logger class": (ConfigError, lambda: PPOConfig().reporting(loggers=[Logger]), [
        "reporting.loggers", "log(results)"]),
    "loggers that are no list": (ConfigError, lambda: PPOConfig().reporting(loggers="csv"), ["[jsonl, csv]"]),
    "metric under a taken name": (ConfigError, logs_a_taken_name, ["environment runner", "sample", "another name"]),
    "device of no values": (ConfigError, lambda: PPOConfig().learners(device="meta"), ["learners.device", "have none"]),
    "device of another name": (ConfigError, lambda: PPOConfig().learners(device="gpu"), ["learners.device", "cuda:0"]),
    "device of no number": (ConfigError, lambda: PPOConfig().learners(device="cuda:x"), ["learners.device", "cuda:0"]),
    # the command and its folders
    "change of a part of a text": (Refused, lambda folder: command(folder, "train", "--set", "environment.env.x=1"), [
        "environment.env is 'CartPole-v1'"]),
    "going on with a file": (CheckpointError, lambda folder: TrainingRun.resume(
        written(folder / "config.yaml", GOOD)), [
        "found:    a file", "give the folder"]),
    "run folder that is taken": (Refused, lambda folder: command(folder, "train", "--run", "."), [
        "run folder", "files in it", "--resume"]),
    "config without an environment": (Refused, lambda folder: command(
        folder, "train", "--set", "environment.env=null"), ["environment.env", "environment: {env: CartPole-v1}"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
