"""The table of test_library.py, for mistakes in configs, pieces as data, and on the command line."""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from epibatch.algorithms import PPOConfig
from epibatch.cli import app
from epibatch.connectors.common import (
    FrameStacking,
)
from epibatch.connectors.learner import (
    GeneralAdvantageEstimation,
)
from epibatch.core import registry
from epibatch.core.errors import (
    ConfigError,
    NotAvailableError,
    PieceError,
    RegistryError,
    UnknownNameError,
)
from epibatch.core.registry import piece_class, register_env
from epibatch.env_runner import make_multi_agent

CartPoles = make_multi_agent("CartPole-v1")


def cart_pole(width: int = 4) -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [width]})


def hook(value: Any) -> Any:
    return cart_pole().env_runners(env_to_module_connector=lambda env, spaces, device: value).build_algo()


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


def offered(path: str) -> type:
    """The class that the entry point `own` of an installed package leads to."""
    point = SimpleNamespace(name="own", value=path, dist=SimpleNamespace(name="a-plugin", version="1.0"))
    with mock.patch.object(importlib.metadata, "entry_points", return_value=[point]):
        registry._offered.cache_clear()
        try:
            return piece_class("own")
        finally:
            registry._offered.cache_clear()


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
    "misspelt setting": (ConfigError, lambda: PPOConfig().training(gama=0.9), [
        "training.gama", "did you mean 'gamma'"]),
    "many wrong settings": (ConfigError, lambda: PPOConfig.from_yaml(YAML), [
        "training.lr (line 1, column 16)", "training.gamma", "training.clip_parm", "env_runner (line 2,",
        "learner[0].num_frame (line 3", "these 5"]),
    "wrong values": (ConfigError, lambda: PPOConfig().training(lr="0.1", gamma=2.0), [
        "training.lr", "found str '0.1'", "training.gamma", "found float 2.0"]),
    "contradicting settings": (ConfigError, lambda: cart_pole().training(
        train_batch_size=64, minibatch_size=128).build_algo(), [
        "training.minibatch_size", "train_batch_size (64)", "128"]),
    "misspelt network setting": (
        ConfigError, lambda: PPOConfig.from_dict({"rl_module": {"model_config": {"fcnet_hidden": [8]}}}), [
            "model_config.fcnet_hidden", "did you mean 'fcnet_hiddens'"]),
    "unknown piece in YAML": (ConfigError, lambda: PPOConfig.from_yaml("env_to_module:\n- frame_stackin\n"), [
        "env_to_module[0]", "'frame_stackin'", "did you mean 'frame_stacking'"]),
    "import path in YAML": (ConfigError, lambda: PPOConfig.from_yaml("learner: [{piece: os.path.join}]\n"), [
        "learner[0].piece", "os.path", "runs code", "--allow-imports"]),
    "broken YAML": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: 1\n"), ["YAML", "line 2"]),
    "hook that returns nothing": (PieceError, lambda: hook(None), ["env_to_module_connector", "NoneType", "return"]),
    "several env runners": (NotAvailableError, lambda: PPOConfig().env_runners(num_env_runners=2), [
        "num_env_runners", "2", "num_envs_per_env_runner"]),
    "several agents in an environment of one": (
        ConfigError, lambda: PPOConfig().environment("CartPole-v1").multi_agent(policies={"a"}).build_algo(), [
            "MultiAgentEnv", "make_multi_agent('CartPole-v1')"]),
    "one agent in an environment of several": (
        ConfigError, lambda: PPOConfig().environment(CartPoles).build_algo(), [
            "one of several", ".multi_agent(policies="]),
    "an agent without module": (
        ConfigError, lambda: PPOConfig().environment(CartPoles, env_config={"num_agents": 2}).multi_agent(
            policy_mapping_fn={"0": "a"}).build_algo(), ["policy_mapping_fn", "no entry that fits 1 among 0"]),
    "a module that is not there": (
        ConfigError, lambda: PPOConfig().environment(CartPoles).multi_agent(
            policies={"red"}, policy_mapping_fn={"*": "rad"}).build_algo(), ["'rad'", "did you mean 'red'"]),
    "no environment": (ConfigError, lambda: PPOConfig().build_algo(), ["an environment", 'environment("CartPole-v1")']),
    "unknown environment": (UnknownNameError, lambda: PPOConfig().environment("CartPol-v1").build_algo(), [
        "'CartPol-v1'", "did you mean 'CartPole-v1'"]),
    "environment that its module does not register": (
        UnknownNameError, lambda: PPOConfig().environment(
            "gymnasium.envs.classic_control:CartPoleEnv-v9").build_algo(), [
            "registers no 'CartPoleEnv-v9', but has the class CartPoleEnv", "gym.register("]),
    "environment object instead of its class": (
        ConfigError, lambda: PPOConfig().environment(gym.make("CartPole-v1")), [
            "environment.env", "class", "TimeLimit"]),
    # values that mean something else than they look like
    "rate that is no number": (ConfigError, lambda: PPOConfig().training(lr=math.nan), [
        "training.lr", "found float nan"]),
    "rate without end": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: .inf}"), [
        "training.lr", "found float"]),
    "switch for a number": (ConfigError, lambda: PPOConfig().training(num_epochs=True), [
        "training.num_epochs", "valid integer", "found bool True"]),
    "number for a switch": (ConfigError, lambda: PPOConfig().env_runners(explore=1), [
        "env_runners.explore", "valid boolean", "found int 1"]),
    "negative size": (ConfigError, lambda: PPOConfig().env_runners(num_envs_per_env_runner=-1), [
        "env_runners.num_envs_per_env_runner", "greater than or equal to 1", "found int -1"]),
    "fraction for a count": (ConfigError, lambda: PPOConfig().training(train_batch_size=512.0), [
        "training.train_batch_size", "valid integer", "found float 512.0"]),
    "size that no computer has": (ConfigError, lambda: PPOConfig().training(train_batch_size=10**30), [
        "training.train_batch_size", "less than"]),
    "seed that is too long": (ConfigError, lambda: PPOConfig().debugging(seed=2**32), ["debugging.seed", "4294967296"]),
    "misspelt choice": (ConfigError, lambda: PPOConfig().env_runners(batch_mode="complete"), [
        "env_runners.batch_mode", "'complete_episodes'", "'complete'"]),
    "two spellings of one setting": (ConfigError, lambda: PPOConfig.from_yaml(
        "training: {lambda: 0.9, lambda_: 0.8}"), ["training.lambda", "given twice"]),
    "setting in another section": (ConfigError, lambda: PPOConfig.from_yaml("debugging: {lr: 0.1}"), [
        "debugging.lr", "belongs to training"]),
    "setting of an earlier RLlib": (ConfigError, lambda: PPOConfig.from_yaml("training: {num_sgd_iter: 3}"), [
        "training.num_sgd_iter", "num_epochs"]),
    "layer without units": (ConfigError, lambda: cart_pole(0).build_algo(), [
        "fcnet_hiddens", "positive integers", "[0]"]),
    "initializer that is none": (ConfigError, lambda: network(fcnet_kernel_initializer="orthogonl"), [
        "torch.nn.init", "'orthogonl'", "did you mean 'orthogonal_'"]),
    "keywords for no initializer": (ConfigError, lambda: network(fcnet_kernel_initializer_kwargs={"gain": 2}), [
        "fcnet_kernel_initializer_kwargs", "there is no fcnet_kernel_initializer"]),
    "keywords that an initializer lacks": (ConfigError, lambda: network(
        fcnet_kernel_initializer="normal_", fcnet_kernel_initializer_kwargs={"sd": 1.0}), ["'normal_'", "'sd'"]),
    # YAML
    "repeated key": (ConfigError, lambda: PPOConfig.from_yaml("training: {lr: 0.1,\n  lr: 0.2}"), [
        "line 2, column 3", 'duplicate key "lr"']),
    "tab": (ConfigError, lambda: PPOConfig.from_yaml("training:\n\tlr: 0.1"), ["line 2", "'\\t'"]),
    "word for a switch": (ConfigError, lambda: PPOConfig.from_yaml("env_runners: {explore: off}"), [
        "env_runners.explore", "valid boolean", "found str 'off'"]),
    "minutes for seconds": (ConfigError, lambda: PPOConfig.from_yaml("stop: {time_total_s: 1:30}"), [
        "stop.time_total_s", "valid number", "found str '1:30'"]),
    "key that is a mapping": (ConfigError, lambda: PPOConfig.from_yaml("? {a: 2}\n: 1"), [
        "line 1", "unhashable key"]),
    "code in YAML": (ConfigError, lambda: PPOConfig.from_yaml("training: !!python/object/apply:os.getcwd []"), [
        "line 1, column 11", "python/object/apply:os.getcwd"]),
    "list for a section": (ConfigError, lambda: PPOConfig.from_yaml("training: [lr, 0.1]"), [
        "training", "a mapping with some of", "found list"]),
    "nothing": (ConfigError, lambda: PPOConfig.from_yaml(""), ["sections such as", "nothing"]),
    "file that is none": (ConfigError, lambda folder: PPOConfig.from_yaml(folder / "none.yaml"), [
        "none.yaml", "No such"]),
    "file that is no text": (ConfigError, lambda folder: PPOConfig.from_yaml(written(folder / "b.yaml", b"\xff")), [
        "b.yaml", "utf-8"]),
    # pieces as data, names and plugins
    "text for a number, piece": (ConfigError, lambda: PPOConfig.from_yaml(
        "learner: [{piece: frame_stacking, num_frames: '4'}]"), ["learner[0].num_frames", "integer", "str '4'"]),
    "switch for a number, piece": (ConfigError, lambda: FrameStacking(num_frames=True), [
        "FrameStacking.num_frames", "integer", "bool True"]),
    "text for a switch, piece": (ConfigError, lambda: FrameStacking(as_learner_connector="no"), [
        "FrameStacking.as_learner_connector", "boolean", "str 'no'"]),
    "discount above 1": (ConfigError, lambda: GeneralAdvantageEstimation(gamma=1.5), [
        "GeneralAdvantageEstimation.gamma", "[0, 1]", "1.5"]),
    "piece in another pipeline": (ConfigError, lambda: PPOConfig.from_yaml("learner: [get_actions]"), [
        "learner[0].piece", "get_actions is made for module_to_env, not for learner"]),
    "piece without a name": (ConfigError, lambda: PPOConfig.from_yaml("learner: [{num_frames: 4}]"), [
        "learner[0]", "the key 'piece'", "num_frames"]),
    "mapping for a list of pieces": (ConfigError, lambda: PPOConfig.from_yaml("learner: {piece: frame_stacking}"), [
        "learner", "expected a list"]),
    "import path that is not allowed": (RegistryError, lambda: piece_class("os.path:join"), [
        "'os.path:join'", "runs code", "allow_imports=True", "--allow-imports"]),
    "import path that leads nowhere": (RegistryError, lambda: piece_class("os:Piece", allow_imports=True), [
        "'os:Piece'", "os has no 'Piece'"]),
    "plugin that cannot be imported": (RegistryError, lambda: offered("no_such_module_here:Piece"), [
        "piece 'own' of a-plugin 1.0 (entry point own = no_such_module_here:Piece)", "ModuleNotFoundError"]),
    "plugin that offers no piece": (PieceError, lambda: offered("fractions:Fraction"), [
        "a-plugin 1.0 (entry point own = ", "the class fractions:Fraction", "ConnectorV2"]),
    "environment without a factory": (RegistryError, lambda: register_env("mine", "CartPole-v1"), [
        "register_env", "'mine'", "str", "lambda env_config"]),
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
