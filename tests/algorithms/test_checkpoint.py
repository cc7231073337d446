from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.checkpoint import (
    CONFIGS,
    config_class,
    config_from_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from epibatch.core.checkpoints import save_state
from epibatch.core.errors import CheckpointError, ConfigError

DATA = PPOConfig().environment("CartPole-v1").training(vf_clip_param=float("inf")).to_dict()
DESCRIPTION = {"algorithm": "ppo", "config": DATA, "not_data": []}


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_config_classes(algorithm):
    assert config_class(algorithm)().algorithm == algorithm


def test_unknown_algorithm():
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        config_class("pppo")


def test_round_trip(tmp_path):
    path = write_checkpoint(tmp_path / "a" / "checkpoint", DESCRIPTION, {"x": np.arange(3), "n": None})
    description, state = read_checkpoint(path)
    assert description == DESCRIPTION
    assert state["n"] is None
    np.testing.assert_array_equal(state["x"], [0, 1, 2])
    assert config_from_checkpoint(path, description, allow_imports=False).to_dict() == DATA


def test_a_module_out_of_an_algorithms_checkpoint(tmp_path):
    def build(seed):
        config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})
        return config.debugging(seed=seed).build_algo()

    algo, other = build(0), build(1)
    path = algo.save_to_path(tmp_path / "checkpoint")
    other.get_module().restore_from_path(path, component="state/learner/module/default_policy")
    np.testing.assert_equal(other.get_module().get_state(), algo.get_module().get_state())
    with pytest.raises(CheckpointError, match=r"(?s)lerner.*did you mean 'learner'"):
        other.get_module().restore_from_path(path, component="state/lerner/module/default_policy")
    algo.stop()
    other.stop()


def test_saving_again_replaces(tmp_path):
    for value in (1, 2):
        write_checkpoint(tmp_path / "checkpoint", DESCRIPTION, {"value": value})
    assert read_checkpoint(tmp_path / "checkpoint")[1] == {"value": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        write_checkpoint(tmp_path, DESCRIPTION, {})


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        read_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize("content", [{"x": 1}, {"description": {"algorithm": "ppo"}, "state": {}}, [1]])
def test_checkpoint_of_something_else(tmp_path, content):
    save_state(tmp_path / "other", content)
    with pytest.raises(CheckpointError, match="the checkpoint of an algorithm"):
        read_checkpoint(tmp_path / "other")


def test_config_that_was_code(tmp_path):
    description = {"algorithm": "ppo", "config": {}, "not_data": [[["learner", 0], "piece Bonus, argument 'f'"]]}
    with pytest.raises(CheckpointError, match=r"(?s)the original config.*piece Bonus, argument 'f'.*config=config"):
        config_from_checkpoint(tmp_path, description, allow_imports=False)


def test_config_with_a_piece_that_is_not_here(tmp_path):
    description = {"algorithm": "ppo", "config": {**DATA, "learner": [{"piece": "bonus"}]}, "not_data": []}
    with pytest.raises(CheckpointError, match=r"(?s)can be rebuilt here.*learner\[0\]\.piece: piece 'bonus'"):
        config_from_checkpoint(tmp_path, description, allow_imports=False)
