"""A stranger's config and module checkpoint: refused by name, within bounded memory, and nothing in them runs code."""

from __future__ import annotations

import os
import tracemalloc

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig, TrainingRun
from epibatch.connectors.views import View
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError, SpaceError
from epibatch.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from epibatch.core.spaces import space_from_dict

MIB = 2**20
START = "algorithm: ppo\nenvironment: {env: CartPole-v1}\n"
BOMB = "\n".join([f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" if n else "a0: &a0 [x]" for n in range(12)])
YAML = {
    "aliases in a config": f"{START}env_config:\n  " + BOMB.replace("\n", "\n  "),
    "a list that holds itself": "a: &a [*a]",
    "a mapping that holds itself": "&a {b: *a}",
    "code": "!!python/object/apply:os.mkdir [stolen]",
    "a name": "!!python/name:os.system",
    "repeated keys": "a: 1\na: 2",
    "a merge of a merge": "a: &a {b: 1}\nc: {<<: *a, <<: *a}",
    "a number of many digits": "a: " + "9" * 5000,
}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
def test_yaml_that_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        PPOConfig.from_yaml(text)
    assert os.listdir(tmp_path) == []


def test_large_yaml_takes_no_memory(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text(START)
    few = "training: {lr: &a 0.5, clip_param: *a}"
    assert PPOConfig.from_yaml(START + few).clip_param == 0.5
    os.truncate(path, 5 * 2**30)
    monkeypatch.setattr("epibatch.algorithms.config.config_io._MOST_NODES", 500)
    tracemalloc.start()
    try:
        for source in (BOMB, "[" + "1," * 600 + "]", "[" * 600, path):
            with pytest.raises(ConfigError, match=r"aliases|more than|open brackets|RecursionError"):
                PPOConfig.from_yaml(source)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


SETTINGS = {
    "hidden layers": {"rl_module": {"model_config": {"fcnet_hiddens": [2**40]}}},
    "an lstm": {"rl_module": {"model_config": {"use_lstm": True, "lstm_cell_size": 2**40}}},
    "environments": {"env_runners": {"num_envs_per_env_runner": 10**9}},
    "a piece of code": {"env_to_module": [{"piece": "os:system"}]},
    "a callback of code": {"callbacks": {"on_episode_end": "os:system"}},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_are_refused(settings):
    with pytest.raises(EpibatchError):
        PPOConfig.from_dict({"algorithm": "ppo", "environment": {"env": "CartPole-v1"}, **settings})


@pytest.mark.parametrize("shift", [10**30, [0, -(10**12)], "-10000000000:0"])
def test_views_of_steps_beyond_memory_are_refused(shift):
    with pytest.raises(ConfigError, match="steps up to"):
        View("obs", shift)


@pytest.mark.parametrize("shape", [[2**20, 2**20], [10**30]])
def test_spaces_beyond_memory_are_refused(shape):
    with pytest.raises(SpaceError):
        space_from_dict({"type": "Box", "low": 0.0, "high": 1.0, "shape": shape, "dtype": "float32"})
    image = {"type": "Box", "low": 0, "high": 255, "shape": [1080, 1920, 3], "dtype": "uint8"}
    assert space_from_dict({"type": "Tuple", "spaces": [image, image]})[1].shape == (1080, 1920, 3)


# -- module checkpoints --------------------------------------------------------------------------------


SPACES = {"observation_space": gym.spaces.Box(-1, 1, (4,)), "action_space": gym.spaces.Discrete(2)}


@pytest.fixture
def saved(tmp_path):
    """A module's checkpoint, and its content."""
    module = RLModuleSpec(**SPACES, model_config={"fcnet_hiddens": [4]}).build()
    path = module.save_to_path(tmp_path / "module")
    return path, load_state(path)


def spec(**entries):
    return lambda content: content["rl_module"]["spec"].update(entries)


MODULES = {
    "a class of code": spec(module_class="os:system"),
    "layers beyond the file": spec(model_config={"fcnet_hiddens": [2000, 2000]}),
    "a space beyond memory": spec(
        observation_space={"type": "Box", "low": 0, "high": 1, "shape": [10**12], "dtype": "f4"}
    ),
    "a state from elsewhere": spec(load_state_path="/dev/zero"),
    "no spec": lambda content: content["rl_module"].update(spec=[1]),
    "weights of no axes": lambda content: content["state"].update({"pi.net.0.weight": np.float32(1)}),
}


@pytest.mark.parametrize("attack", MODULES.values(), ids=MODULES)
def test_module_checkpoints_that_are_refused(saved, attack):
    path, content = saved
    attack(content)
    save_state(path, content)
    for cls in (RLModule, MultiRLModule):
        with pytest.raises(CheckpointError):
            cls.from_checkpoint(path)


def test_module_checkpoints_read_nothing_elsewhere(tmp_path, saved):
    """A state that fits lies elsewhere."""
    spec = RLModuleSpec(**SPACES, model_config={"fcnet_hiddens": [4]})
    path, elsewhere = tmp_path / "stranger", saved[0]
    for module, part in ((spec.build(), ""), (MultiRLModuleSpec(rl_module_specs={"main": spec}).build(), "main")):
        content = load_state(module.save_to_path(path))
        own = content["rl_module"]["spec"]
        (own["rl_module_specs"]["main"] if part else own).update(load_state_path=str(elsewhere))
        save_state(path, content)
        with pytest.raises(CheckpointError, match="no load_state_path, because the state is in the checkpoint"):
            type(module).from_checkpoint(path)


@pytest.mark.parametrize("changes", [[], ["stop.training_iteration=9"]])
def test_networks_of_a_run_are_no_larger_than_its_checkpoint(run, changes):
    """Building one is refused before it takes memory, also with the command that an ended run suggests."""
    config = run / "config.yaml"
    narrow, wide = "fcnet_hiddens:\n    - 4\n", "fcnet_hiddens: [3000, 3000]\n"
    assert config.read_text().count(narrow) == 1
    config.write_text(config.read_text().replace(narrow, wide))
    with pytest.raises(CheckpointError, match="weights of at most"):
        TrainingRun.resume(run, changes=changes)
