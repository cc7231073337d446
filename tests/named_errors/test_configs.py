"""The table of test_library.py, for mistakes in configs, pieces as data, and on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epibatch.algorithms import PPOConfig
from epibatch.cli import app
from epibatch.core.errors import (
    ConfigError,
    RegistryError,
    UnknownNameError,
)
from epibatch.core.registry import piece_class
from epibatch.env_runner import make_multi_agent

CartPoles = make_multi_agent("CartPole-v1")


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Refused(ValueError):
    """What the command printed when it refused to work, with exit code 2."""


def command(folder: Path, *words: str) -> None:
    """Run `epibatch`; `train` gets a good config file unless it goes on with a run."""
    file = [] if words[0] != "train" or "--resume" in words else [str(written(folder / "config.yaml", GOOD))]
    words = tuple(str(folder) if word == "." and "--run" in words else word for word in words)
    with chdir(folder):
        result = CliRunner().invoke(app, [words[0], *file, *words[1:]])
    if result.exit_code == 2:
        raise Refused(result.output)


def written(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


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
    "import path in YAML": (ConfigError, lambda: PPOConfig.from_yaml("learner: [{piece: os.path.join}]\n"), [
        "learner[0].piece", "os.path", "runs code", "--allow-imports"]),
    "one agent in an environment of several": (
        ConfigError, lambda: PPOConfig().environment(CartPoles).build_algo(), [
            "one of several", ".multi_agent(policies="]),
    "an agent without module": (
        ConfigError, lambda: PPOConfig().environment(CartPoles, env_config={"num_agents": 2}).multi_agent(
            policy_mapping_fn={"0": "a"}).build_algo(), ["policy_mapping_fn", "no entry that fits 1 among 0"]),
    "a module that is not there": (
        ConfigError, lambda: PPOConfig().environment(CartPoles).multi_agent(
            policies={"red"}, policy_mapping_fn={"*": "rad"}).build_algo(), ["'rad'", "did you mean 'red'"]),
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
    "setting in another section": (ConfigError, lambda: PPOConfig.from_yaml("debugging: {lr: 0.1}"), [
        "debugging.lr", "belongs to training"]),
    "setting of an earlier RLlib": (ConfigError, lambda: PPOConfig.from_yaml("training: {num_sgd_iter: 3}"), [
        "training.num_sgd_iter", "num_epochs"]),
    "keywords for no initializer": (ConfigError, lambda: network(fcnet_kernel_initializer_kwargs={"gain": 2}), [
        "fcnet_kernel_initializer_kwargs", "there is no fcnet_kernel_initializer"]),
    "keywords that an initializer lacks": (ConfigError, lambda: network(
        fcnet_kernel_initializer="normal_", fcnet_kernel_initializer_kwargs={"sd": 1.0}), ["'normal_'", "'sd'"]),
    # YAML
    "word for a switch": (ConfigError, lambda: PPOConfig.from_yaml("env_runners: {explore: off}"), [
        "env_runners.explore", "valid boolean", "found str 'off'"]),
    "minutes for seconds": (ConfigError, lambda: PPOConfig.from_yaml("stop: {time_total_s: 1:30}"), [
        "stop.time_total_s", "valid number", "found str '1:30'"]),
    "list for a section": (ConfigError, lambda: PPOConfig.from_yaml("training: [lr, 0.1]"), [
        "training", "a mapping with some of", "found list"]),
    "nothing": (ConfigError, lambda: PPOConfig.from_yaml(""), ["sections such as", "nothing"]),
    "file that is no text": (ConfigError, lambda folder: PPOConfig.from_yaml(written(folder / "b.yaml", b"\xff")), [
        "b.yaml", "utf-8"]),
    # pieces as data, names and plugins
    "text for a number, piece": (ConfigError, lambda: PPOConfig.from_yaml(
        "learner: [{piece: frame_stacking, num_frames: '4'}]"), ["learner[0].num_frames", "integer", "str '4'"]),
    "piece without a name": (ConfigError, lambda: PPOConfig.from_yaml("learner: [{num_frames: 4}]"), [
        "learner[0]", "the key 'piece'", "num_frames"]),
    "mapping for a list of pieces": (ConfigError, lambda: PPOConfig.from_yaml("learner: {piece: frame_stacking}"), [
        "learner", "expected a list"]),
    "import path that leads nowhere": (RegistryError, lambda: piece_class("os:Piece", allow_imports=True), [
        "'os:Piece'", "os has no 'Piece'"]),
    # the command and its folders
    "run folder that is taken": (Refused, lambda folder: command(folder, "train", "--run", "."), [
        "run folder", "files in it", "--resume"]),
    "run that is none": (Refused, lambda folder: command(folder, "train", "--resume", "nowhere"), [
        "run folder nowhere", "no such folder", "epibatch train"]),
    "folder that is no run": (Refused, lambda folder: command(folder, "train", "--resume", "."), [
        "run folder .", "no config.yaml"]),
    "change that leads nowhere": (Refused, lambda folder: command(folder, "train", "--set", "training.lr_=1"), [
        "training.lr_", "did you mean 'lr'"]),
    "change without a value": (Refused, lambda folder: command(folder, "train", "--set", "training.lr"), [
        "--set", "training.lr", "path=value"]),
    "change to a wrong value": (Refused, lambda folder: command(folder, "train", "--set", "training.lr=fast"), [
        "training.lr", "valid number", "'fast'"]),
    "config without an environment": (Refused, lambda folder: command(
        folder, "train", "--set", "environment.env=null"), ["environment.env", "environment: {env: CartPole-v1}"]),
    "seed that no generator takes": (Refused, lambda folder: command(folder, "train", "--seed", str(2**40)), [
        "debugging.seed", "4294967296"]),
    "import that the command was not allowed": (Refused, lambda folder: command(
        folder, "train", "--set", "learner=[os.path]"), ["learner[0].piece", "'os.path'", "--allow-imports"]),
    "run to play that is none": (Refused, lambda folder: command(folder, "play", "nowhere"), [
        "nowhere", "a complete checkpoint", "no such folder"]),
    "unknown piece, command": (Refused, lambda folder: command(folder, "pieces", "frame_stackin"), [
        "'frame_stackin'", "did you mean 'frame_stacking'"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
