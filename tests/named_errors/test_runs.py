"""The table of tests/test_named_errors.py, for mistakes with runs: their config, folder, checkpoints and loggers."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epibatch.algorithms import PPO, PPOConfig, RunFolder, TrainingRun
from epibatch.algorithms.config_io import ConfigDocument, changed_document
from epibatch.algorithms.loggers import Loggers, make_logger
from epibatch.algorithms.saved_checkpoints import newest_checkpoint
from epibatch.connectors import ConnectorV2
from epibatch.core import checkpoints
from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import (
    CheckpointError,
    ConfigError,
    LoggerError,
    MissingExtraError,
    StorageError,
)


def run_folder(folder: Path, *iterations: int) -> Path:
    """A run's folder with checkpoints after so many iterations."""
    (folder / "config.yaml").write_text("algorithm: ppo\nenvironment: {env: CartPole-v1}\n")
    for iteration in iterations:
        save_state(folder / "checkpoints" / f"{iteration:06d}", {"w": np.arange(iteration)})
    return folder


def damage(folder: Path, *names: str) -> Path:
    """Truncate files."""
    for name in names:
        (folder / name).write_bytes((folder / name).read_bytes()[:-3])
    return folder


def full_disk(folder: Path) -> None:
    def write(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "create_file", write)
        save_state(folder / "saved", {})


def without_tensorboard(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        patch.setitem(sys.modules, "tensorboard", None)
        make_logger("tensorboard", folder)


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
    "--set: misspelt setting": (ConfigError, lambda: sets("training.lrr=1"), [
        "--set training.lrr=1", "did you mean 'lr'"]),
    "--set: wrong section": (ConfigError, lambda: sets("learners.lr=1"), ["learners.lr", "belongs to training"]),
    "--set: no such section": (ConfigError, lambda: sets("trainin.lr=1"), [
        "trainin: no such section", "did you mean 'training'"]),
    "--set: no value": (ConfigError, lambda: sets("training.lr="), ["training.lr", "null"]),
    "--set: no equals sign": (ConfigError, lambda: sets("training.lr"), ["training.lr", "path=value"]),
    "--set: value that is no YAML": (ConfigError, lambda: sets("training.lr={a"), [
        "the value of training.lr", "line 1"]),
    "--set: below a number": (ConfigError, lambda: sets("training.lr.x=1"), ["training.lr is 0.1"]),
    "--set: entry that is not there": (ConfigError, lambda: sets("env_to_module.2.num_frames=1"), [
        "env_to_module has no entry '2'", "it has 1"]),
    "--set: entry by name": (ConfigError, lambda: sets("env_to_module.frame_stacking.num_frames=1"), [
        "env_to_module has no entry 'frame_stacking'", "env_to_module.0."]),
    "--set: several at once": (ConfigError, lambda: sets("a.b=1", "c.d=2", "lr=1"), ["a.b", "c.d", "these 2"]),
    # settings
    "smoothing over no episode": (ConfigError, lambda: PPOConfig().reporting(metrics_num_episodes_for_smoothing=0), [
        "reporting.metrics_num_episodes_for_smoothing", "found int 0"]),
    "keeping no checkpoint": (ConfigError, lambda: PPOConfig().checkpointing(num_to_keep=0), [
        "checkpointing.num_to_keep", "found int 0"]),
    "saving every -1 iterations": (ConfigError, lambda: PPOConfig().checkpointing(checkpoint_frequency=-1), [
        "checkpointing.checkpoint_frequency", "found int -1"]),
    "unknown logger": (ConfigError, lambda: PPOConfig().reporting(loggers=["cvs"]), [
        "reporting.loggers", "did you mean 'csv'"]),
    "logger without log": (ConfigError, lambda: PPOConfig().reporting(loggers=[print]), [
        "reporting.loggers", "a method log(results)"]),
    "logger class": (ConfigError, lambda: PPOConfig().reporting(loggers=[Broken]), [
        "reporting.loggers", "log(results)"]),
    "loggers that are no list": (ConfigError, lambda: PPOConfig().reporting(loggers="csv"), ["[jsonl, csv]"]),
    "device without values": (ConfigError, lambda: PPOConfig().learners(device="meta"), ["learners.device", "'meta'"]),
    "device of another name": (ConfigError, lambda: PPOConfig().learners(device="gpu"), ["learners.device", "cuda:0"]),
    "device that is not there": (ConfigError, lambda: PPOConfig().environment("CartPole-v1").learners(
        device="cuda:63").build_algo(), ["learners.device", "'cuda:63' cannot be used here"]),
    # loggers
    "logger given to a run that is none": (ConfigError, lambda folder: make_logger(object(), folder), [
        "loggers", "log(self, results)"]),
    "logger that raises": (LoggerError, lambda: Loggers([Broken()]).log({"training_iteration": 3}), [
        "logger Broken, iteration 3", "KeyError: 'loss'"]),
    "logger without its extra": (MissingExtraError, lambda folder: without_tensorboard(folder), [
        "logger 'tensorboard'", "pip install 'epibatch[tensorboard]'"]),
    "metric under a taken name": (ConfigError, logs_a_taken_name, ["environment runner", "sample", "another name"]),
    # folders and checkpoints
    "run folder that is not empty": (ConfigError, lambda folder: RunFolder.create(run_folder(folder)), [
        "run folder", "never overwritten", "--resume"]),
    "going on with no run": (CheckpointError, lambda folder: TrainingRun.resume(folder), ["no config.yaml"]),
    "going on with a file": (CheckpointError, lambda folder: TrainingRun.resume(
        run_folder(folder) / "config.yaml"), ["found:    a file", "give the folder"]),
    "loading from a file": (CheckpointError, lambda folder: newest_checkpoint(
        run_folder(folder) / "config.yaml"), ["found:    a file"]),
    "going on with a checkpoint": (CheckpointError, lambda folder: TrainingRun.resume(
        run_folder(folder, 3) / "checkpoints" / "000003"), ["a checkpoint", "one above"]),
    "loading from a run without checkpoints": (CheckpointError, lambda folder: newest_checkpoint(run_folder(folder)), [
        "a whole checkpoint", "none"]),
    "loading from a run whose checkpoints are all damaged": (CheckpointError, lambda folder: newest_checkpoint(
        damage(run_folder(folder, 1, 2) / "checkpoints", "000001/state.json", "000002/state.json")), [
        "000001", "000002", "state.json has", "restore one from a copy"]),
    "truncated checkpoint": (CheckpointError, lambda folder: load_state(
        damage(run_folder(folder, 1) / "checkpoints/000001", "arrays.npz")), ["arrays.npz has", "were written"]),
    "checkpoint without its mark": (CheckpointError, lambda folder: [
        (run_folder(folder, 1) / "checkpoints/000001/COMPLETE").unlink(),
        PPO.from_checkpoint(folder / "checkpoints/000001")], ["no file named COMPLETE"]),
    "a pickle in place of a checkpoint": (CheckpointError, lambda folder: [
        (folder / "state.pkl").write_bytes(b"\x80\x04N."), PPO.from_checkpoint(folder)], ["no file named COMPLETE"]),
    "saving over somebody's files": (CheckpointError, lambda folder: save_state(run_folder(folder), {}), [
        "a new folder", "config.yaml", "a folder of its own"]),
    "saving on a full disk": (StorageError, lambda folder: full_disk(folder), [
        "saving to", "No space left on device", "still whole"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
