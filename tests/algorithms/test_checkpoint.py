"""Checkpoints of algorithms: what a policy and an algorithm need beside them, and what is refused."""

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
from epibatch.algorithms import PPO
from epibatch.connectors.observations import Clip
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.rl_module import DefaultActorCritic, RLModuleSpec
from fixture_configs import cart_pole, weights

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


@pytest.mark.slow
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


def test_the_description_is_plain_data(built, tmp_path):
    algo = built(cart_pole().rl_module(model_config={"use_lstm": True, "max_seq_len": 5}))
    data = load_state(algo.save_to_path(tmp_path / "checkpoint"))["description"]
    assert (data["algorithm"], data["not_data"], data["lookback"]) == ("ppo", [], 1)
    assert data["config"] == algo.config.to_dict()
    assert json.loads(json.dumps(data)) == data


def test_exploration_goes_on_at_the_step_where_training_was(built, tmp_path):
    algo = built(cart_pole())
    steps = algo.train()["num_env_steps_sampled_lifetime"]
    algo.save_to_path(tmp_path / "checkpoint")
    assert Policy.from_checkpoint(tmp_path / "checkpoint").steps == steps >= 32


def test_a_module_out_of_an_algorithms_checkpoint(built, tmp_path):
    algo, other = built(cart_pole()), built(cart_pole().debugging(seed=1))
    path = algo.save_to_path(tmp_path / "checkpoint")
    other.get_module().restore_from_path(path, component="state/learner/module/default_policy")
    np.testing.assert_equal(weights(other), weights(algo))
    with pytest.raises(CheckpointError, match=r"(?s)lerner.*did you mean 'learner'"):
        other.get_module().restore_from_path(path, component="state/lerner/module/default_policy")


# --------------------------------------------- a pipeline that was edited after its config built it


def clipping(*limits):
    return cart_pole().env_runners(
        env_to_module_connector=[{"piece": "clip", "low": -limit, "high": limit} for limit in limits]
    )


def replace_by_another(pipeline):
    pipeline.remove("clip")
    pipeline.prepend(Clip(low=-0.5, high=0.5))


def add_one(pipeline):
    pipeline.prepend(Clip(low=-0.5, high=0.5))


@pytest.mark.parametrize(("edit", "limits"), [(replace_by_another, [0.5]), (add_one, [0.5, 1.0])])
def test_an_edited_pipeline_needs_a_config_with_its_pieces(built, tmp_path, edit, limits):
    algo = built(clipping(1.0))
    path = algo.save_to_path(tmp_path / "before")
    assert Policy.from_checkpoint(path)
    edit(algo.pipelines["env_to_module"])
    path = algo.save_to_path(tmp_path / "checkpoint")
    for load in (Policy.from_checkpoint, PPO.from_checkpoint):
        with pytest.raises(CheckpointError, match=r"(?s)env_to_module: clip, .*edited after the config built it.*pass"):
            load(path)
    with pytest.raises(CheckpointError, match="pieces of the pipeline that was saved"):
        Policy.from_checkpoint(path, config=cart_pole())
    assert Policy.from_checkpoint(path, config=clipping(*limits))


# -------------------------------------------------------------------------------------- what is refused


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The description and the state in a checkpoint."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    saved(cart_pole(), folder)
    return load_state(folder)


def test_checkpoints_of_earlier_versions(content, tmp_path):
    description = dict(content["description"])
    acting = {name: description.pop(name) for name in ("spaces", "lookback")}
    old = {**content, "description": {**description, "not_data": None, "acting": acting}}
    save_state(tmp_path / "old", old)
    assert Policy.from_checkpoint(tmp_path / "old") and PPO.from_checkpoint(tmp_path / "old")
    old["description"].update(config=None, not_data="code")
    save_state(tmp_path / "code", old)
    for load in (Policy.from_checkpoint, PPO.from_checkpoint):
        with pytest.raises(CheckpointError, match="the original config"):
            load(tmp_path / "code")
    assert Policy.from_checkpoint(tmp_path / "code", config=cart_pole())


@pytest.mark.parametrize("load", [Policy.from_checkpoint, PPO.from_checkpoint])
@pytest.mark.parametrize("other", [{"x": 1}, {"description": {"algorithm": "ppo"}, "state": {}}, [1], None])
def test_a_checkpoint_of_something_else_or_none(tmp_path, load, other):
    if other is not None:
        save_state(tmp_path / "other", other)
    with pytest.raises(CheckpointError, match="no such folder" if other is None else "the checkpoint of an algorithm"):
        load(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"config": {}, "not_data": [[["learner", 0], "piece Bonus, argument 'f'"]]},
            r"(?s)the original config.*piece Bonus, argument 'f'.*config=config",
        ),
        ({"config": {"learner": [{"piece": "bonus"}]}}, r"(?s)can be rebuilt here.*learner\[0\]\.piece: piece 'bonus'"),
        ({"algorithm": "pppo"}, "did you mean 'ppo'"),
    ],
)
def test_descriptions_that_do_not_fit(content, tmp_path, change, message):
    description = {**content["description"], **change}
    if "learner" in description["config"]:
        description["config"] = {**content["description"]["config"], **change["config"]}
    save_state(tmp_path / "checkpoint", {**content, "description": description})
    with pytest.raises((CheckpointError, ConfigError), match=message):
        PPO.from_checkpoint(tmp_path / "checkpoint")


def test_other_files_are_left_alone(built, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        built(cart_pole()).save_to_path(tmp_path)
