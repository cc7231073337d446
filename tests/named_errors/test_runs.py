"""The table of tests/test_named_errors.py, for mistakes with runs: their config, folder, checkpoints and loggers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig, TrainingRun
from epibatch.algorithms.config_io import ConfigDocument, changed_document
from epibatch.algorithms.loggers import Loggers, make_logger
from epibatch.algorithms.saved_checkpoints import newest_checkpoint
from epibatch.connectors import ConnectorV2
from epibatch.core import save_state
from epibatch.core.errors import (
    CheckpointError,
    ConfigError,
    LoggerError,
)


def run_folder(folder: Path, *iterations: int) -> Path:
    """A run's folder with checkpoints after so many iterations."""
    (folder / "config.yaml").write_text("algorithm: ppo\nenvironment: {env: CartPole-v1}\n")
    for iteration in iterations:
        save_state(folder / "checkpoints" / f"{iteration:06d}", {"w": np.arange(iteration)})
    return folder


class Broken:
    def log(self, results: Any) -> None:
        raise KeyError("loss")


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


def sets(*changes: str) -> Any:
    document = ConfigDocument("a file", {"env_to_module": ["frame_stacking"], "training": {"lr": 0.1}})
    return PPOConfig.from_document(changed_document(PPOConfig, document, changes))


# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # --set
    "--set: below a number": (ConfigError, lambda: sets("training.lr.x=1"), ["training.lr is 0.1"]),
    "--set: several at once": (ConfigError, lambda: sets("a.b=1", "c.d=2", "lr=1"), ["a.b", "c.d", "these 2"]),
    # settings
    "unknown logger": (ConfigError, lambda: PPOConfig().reporting(loggers=["cvs"]), [
        "reporting.loggers", "did you mean 'csv'"]),
    "logger without log": (ConfigError, lambda: PPOConfig().reporting(loggers=[print]), [
        "reporting.loggers", "a method log(results)"]),
    "logger class": (ConfigError, lambda: PPOConfig().reporting(loggers=[Broken]), [
        "reporting.loggers", "log(results)"]),
    "loggers that are no list": (ConfigError, lambda: PPOConfig().reporting(loggers="csv"), ["[jsonl, csv]"]),
    "device without values": (ConfigError, lambda: PPOConfig().learners(device="meta"), ["learners.device", "'meta'"]),
    "device of another name": (ConfigError, lambda: PPOConfig().learners(device="gpu"), ["learners.device", "cuda:0"]),
    # loggers
    "logger given to a run that is none": (ConfigError, lambda folder: make_logger(object(), folder), [
        "loggers", "log(self, results)"]),
    "logger that raises": (LoggerError, lambda: Loggers([Broken()]).log({"training_iteration": 3}), [
        "logger Broken, iteration 3", "KeyError: 'loss'"]),
    "metric under a taken name": (ConfigError, logs_a_taken_name, ["environment runner", "sample", "another name"]),
    # folders and checkpoints
    "going on with a file": (CheckpointError, lambda folder: TrainingRun.resume(
        run_folder(folder) / "config.yaml"), ["found:    a file", "give the folder"]),
    "loading from a file": (CheckpointError, lambda folder: newest_checkpoint(
        run_folder(folder) / "config.yaml"), ["found:    a file"]),
    "saving over somebody's files": (CheckpointError, lambda folder: save_state(run_folder(folder), {}), [
        "a new folder", "config.yaml", "a folder of its own"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
