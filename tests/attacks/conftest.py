"""A run folder that tests change as a stranger could."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from epibatch.algorithms import TrainingRun

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
training: {train_batch_size: 32, minibatch_size: 32, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
debugging: {seed: 1}
checkpointing: {checkpoint_frequency: 1, num_to_keep: 2}
stop: {training_iteration: 3}
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of one iteration."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.yaml").write_text(CONFIG)
    assert TrainingRun.start(folder / "config.yaml", folder / "run").run(1) == 0
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
