from __future__ import annotations

import json
import shutil
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch import Policy
from epibatch.algorithms import PPO, PPOConfig
from epibatch.algorithms.checkpoint import (
    CONFIGS,
    config_class,
    config_from_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core import save_state
from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.rl_module import DefaultActorCritic, RLModuleSpec

PACKAGE = """
import numpy as np
import torch
from epibatch.connectors import ConnectorV2
from epibatch.core.rl_module import DefaultActorCritic


class Scaled(ConnectorV2):
    def __init__(self, input_observation_space=None, input_action_space=None, *, factor):
        super().__init__(input_observation_space, input_action_space)
        self.factor = factor

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", self.factor * episode.get_observations(-1), episode)
        return batch


class Own(DefaultActorCritic):
    pass
"""


def cart_pole():
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [8]}).debugging(seed=0)


def saved(config, folder):
    algo = config.build_algo()
    algo.save_to_path(folder)
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    _, state = algo.act(observations)
    algo.stop()
    return observations, state._outputs["action_dist_inputs"]


def logits(policy, observations):
    return policy.act(observations)[1]._outputs["action_dist_inputs"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "robot_pieces.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("robot_pieces")
    del sys.modules["robot_pieces"]


def test_no_environment_and_no_config_is_needed(tmp_path):
    """A process that knows neither the environment nor its function acts with the policy."""

    def secret(env_config):
        return gym.make("CartPole-v1")

    observations, expected = saved(cart_pole().environment(secret), tmp_path / "checkpoint")
    np.savez(tmp_path / "known.npz", observations=observations, expected=expected)
    script = f"""
import sys
import numpy as np
import gymnasium
gymnasium.make = gymnasium.make_vec = None
import epibatch
policy = epibatch.Policy.from_checkpoint({str(tmp_path / "checkpoint")!r})
known = np.load({str(tmp_path / "known.npz")!r})
_, state = policy.act(known["observations"])
np.testing.assert_array_equal(state._outputs["action_dist_inputs"], known["expected"])
assert "epibatch.learner.learner" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_pieces_and_modules_by_path(tmp_path, package):
    config = cart_pole().rl_module(rl_module_spec=RLModuleSpec(module_class=package.Own))
    config.env_runners(env_to_module_connector=lambda env, spaces, device: [package.Scaled(factor=3.0)])
    observations, expected = saved(config, tmp_path / "checkpoint")
    policy = Policy.from_checkpoint(tmp_path / "checkpoint", allow_imports=True)
    np.testing.assert_array_equal(logits(policy, observations), expected)
    assert type(policy.module) is package.Own
    with pytest.raises(CheckpointError, match=r"(?s)robot_pieces:Own.*allow_imports=True"):
        Policy.from_checkpoint(tmp_path / "checkpoint")
    algo = PPO.from_checkpoint(tmp_path / "checkpoint", allow_imports=True)
    assert type(algo.get_module()) is package.Own
    algo.stop()
    del package.Own
    with pytest.raises(CheckpointError, match=r"(?s)module class 'robot_pieces:Own'.*has no 'Own'"):
        Policy.from_checkpoint(tmp_path / "checkpoint", allow_imports=True)
    config.rl_module(rl_module_spec=None)
    saved(config, tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"(?s)env_to_module\[0\].*robot_pieces:Scaled.*allow_imports=True"):
        Policy.from_checkpoint(tmp_path / "other")


def test_what_a_spec_loads_is_not_loaded_again(tmp_path):
    algo = cart_pole().build_algo()
    algo.get_module().save_to_path(tmp_path / "module")
    algo.stop()
    config = cart_pole().rl_module(rl_module_spec=RLModuleSpec(load_state_path=str(tmp_path / "module")))
    observations, expected = saved(config.debugging(seed=1), tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "module")
    np.testing.assert_array_equal(logits(Policy.from_checkpoint(tmp_path / "checkpoint"), observations), expected)
    PPO.from_checkpoint(tmp_path / "checkpoint").stop()


def test_code_needs_the_config(tmp_path, package):
    class Local(DefaultActorCritic):
        pass

    config = cart_pole().rl_module(rl_module_spec=RLModuleSpec(module_class=Local))
    config.env_runners(
        env_to_module_connector=lambda env, spaces, device: package.Scaled(factor=torch.tensor(2.0).numpy())
    )
    observations, expected = saved(config, tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"(?s)class .*Local.*env_to_module\[0\]: .*'factor'.*config=config"):
        Policy.from_checkpoint(tmp_path / "checkpoint")
    policy = Policy.from_checkpoint(tmp_path / "checkpoint", config=config)
    np.testing.assert_array_equal(logits(policy, observations), expected)


def test_functions_that_need_the_environment(tmp_path, package):
    config = cart_pole().env_runners(
        env_to_module_connector=lambda env, spaces, device: package.Scaled(factor=np.array(env.num_envs))
    )
    saved(config, tmp_path / "checkpoint")
    with pytest.raises(AttributeError, match=r"env=None"):
        Policy.from_checkpoint(tmp_path / "checkpoint", config=config)


class OddSpace(gym.spaces.Box):
    """A space that no description covers."""


class OddPole(gym.Wrapper):
    def __init__(self, config=None):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = OddSpace(-100, 100, (4,))


def test_spaces_that_are_no_data(tmp_path):
    config = cart_pole().environment(OddPole)
    observations, expected = saved(config, tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"(?s)spaces: .*OddSpace"):
        Policy.from_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"(?s)OddSpace.*observation_space="):
        Policy.from_checkpoint(tmp_path / "checkpoint", config=config)
    config.environment(observation_space=OddSpace(-100, 100, (4,)), action_space=gym.spaces.Discrete(2))
    policy = Policy.from_checkpoint(tmp_path / "checkpoint", config=config)
    np.testing.assert_array_equal(logits(policy, observations), expected)


def test_checkpoints_of_earlier_versions(tmp_path):
    saved(cart_pole(), tmp_path / "checkpoint")
    description, state = read_checkpoint(tmp_path / "checkpoint")
    acting = {name: description.pop(name) for name in ("spaces", "lookback")}
    write_checkpoint(tmp_path / "old", {**description, "not_data": None, "acting": acting}, state)
    assert Policy.from_checkpoint(tmp_path / "old") and PPO.from_checkpoint(tmp_path / "old")
    write_checkpoint(tmp_path / "old", {**description, "config": None, "not_data": "code", "acting": acting}, state)
    for load in (Policy.from_checkpoint, PPO.from_checkpoint):
        with pytest.raises(CheckpointError, match="the original config"):
            load(tmp_path / "old")
    assert Policy.from_checkpoint(tmp_path / "old", config=cart_pole())


def test_run_folders(tmp_path):
    run = tmp_path / "run"
    saved(cart_pole(), run / "checkpoints" / "000001")
    observations, expected = saved(cart_pole().debugging(seed=1), run / "checkpoints" / "000002")
    (run / "config.yaml").write_text(cart_pole().to_yaml())
    np.testing.assert_array_equal(logits(Policy.from_checkpoint(run), observations), expected)
    np.testing.assert_array_equal(logits(Policy.from_checkpoint(str(run)), observations), expected)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="a whole checkpoint"):
        Policy.from_checkpoint(run)
    with pytest.raises(CheckpointError, match="no such folder"):
        Policy.from_checkpoint(tmp_path / "nothing")


def test_the_description_is_plain_data(tmp_path):
    algo = cart_pole().rl_module(model_config={"use_lstm": True, "max_seq_len": 5}).build_algo()
    data, _ = read_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))
    algo.stop()
    assert data["not_data"] == []
    assert data["lookback"] == 1
    assert data["config"] == algo.config.to_dict()
    assert json.loads(json.dumps(data)) == data


def test_an_edited_pipeline_needs_a_config_with_its_pieces(tmp_path):
    algo = cart_pole().build_algo()
    algo.pipelines["env_to_module"].prepend(MeanStdFilter())
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    for load in (Policy.from_checkpoint, PPO.from_checkpoint):
        with pytest.raises(CheckpointError, match=r"(?s)env_to_module: mean_std_filter, .*edited.*pass it"):
            load(tmp_path / "checkpoint")
    config = cart_pole().env_runners(env_to_module_connector=["mean_std_filter"])
    assert Policy.from_checkpoint(tmp_path / "checkpoint", config=config)


def test_exploration_goes_on_at_the_step_where_training_was(tmp_path):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    algo = config.build_algo()
    steps = algo.train()["num_env_steps_sampled_lifetime"]
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    assert Policy.from_checkpoint(tmp_path / "checkpoint").steps == steps >= 64


# ------------------------------------------------------------------------------------------ checkpoint


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
