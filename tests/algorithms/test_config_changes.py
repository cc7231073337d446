"""`--set path=value`: what a path means, and what is said about one that means nothing."""

from __future__ import annotations

import copy

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.config_io import changed
from epibatch.core.errors import ConfigError

DATA = {
    "algorithm": "ppo",
    "environment": {"env": "CartPole-v1"},
    "training": {"train_batch_size_per_learner": 128, "minibatch_size": 64},
    "rl_module": {"model_config": {"fcnet_hiddens": [8, 8]}},
    "debugging": None,
    "env_to_module": ["frame_stacking", {"piece": "frame_stacking", "num_frames": 4}],
}


def at(data, *path):
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("training.lr=1e-3", ("training", "lr"), 0.001),
        ("training.lr = 5E-4", ("training", "lr"), 0.0005),
        ("lr=1e-3", ("training", "lr"), 0.001),
        ("learner.lr=1e-3", ("training", "lr"), 0.001),
        ("learner.num_learners=0", ("learners", "num_learners"), 0),
        ("training.lambda=0.9", ("training", "lambda_"), 0.9),
        ("training.grad_clip=null", ("training", "grad_clip"), None),
        ("training.minibatch_size=32", ("training", "minibatch_size"), 32),
        ("seed=4", ("debugging", "seed"), 4),
        ("debugging.log_level=INFO", ("debugging", "log_level"), "INFO"),
        ("environment.env=a=b", ("environment", "env"), "a=b"),
        ("environment.env_config.map.size=[4, 4]", ("environment", "env_config", "map", "size"), [4, 4]),
        ("rl_module.model_config.use_lstm=true", ("rl_module", "model_config", "use_lstm"), True),
        ("rl_module.model_config.fcnet_hiddens=[32]", ("rl_module", "model_config", "fcnet_hiddens"), [32]),
        ("rl_module.model_config.fcnet_hiddens.1=16", ("rl_module", "model_config", "fcnet_hiddens"), [8, 16]),
        ("env_to_module.1.num_frames=2", ("env_to_module", 1, "num_frames"), 2),
        ("env_to_module.0.num_frames=2", ("env_to_module", 0), {"piece": "frame_stacking", "num_frames": 2}),
        ("env_to_module.0=flatten_observations", ("env_to_module", 0), "flatten_observations"),
        ("env_to_module.2=flatten_observations", ("env_to_module", 2), "flatten_observations"),
        ("learner.0=frame_stacking", ("learner",), ["frame_stacking"]),
        ("learner=[{piece: frame_stacking}]", ("learner",), [{"piece": "frame_stacking"}]),
        ("stop={training_iteration: 3}", ("stop",), {"training_iteration": 3}),
        ("algorithm=ppo", ("algorithm",), "ppo"),
    ],
)
def test_what_a_path_means(change, path, value):
    before = copy.deepcopy(DATA)
    found = at(changed(PPOConfig, DATA, [change]), *path)
    assert found == value and type(found) is type(value)
    assert before == DATA, "what was given stays as it is"


def test_several_changes_are_made_in_order():
    data = changed(PPOConfig, DATA, ["lr=1", "training.lr=2", "env_to_module.0=a", "env_to_module.0.b=1"])
    assert data["training"]["lr"] == 2
    assert data["env_to_module"][0] == {"piece": "a", "b": 1}


@pytest.mark.parametrize(
    ("changes", "model_config"),
    [
        (["model_config={use_lstm: true}", "model_config.max_seq_len=4"], {"use_lstm": True, "max_seq_len": 4}),
        (["model_config.use_lstm=true", "model_config={fcnet_hiddens: [4]}"], {"fcnet_hiddens": [4]}),
        (["model_config.use_lstm=true", "model_config=null"], None),
        (["model_config.use_lstm=true", "model_config={use_lstm: true}"], {"use_lstm": True}),
        (["model_config.a=1", "model_config.b=2"], {"fcnet_hiddens": [8, 8], "a": 1, "b": 2}),
    ],
)
def test_the_last_change_wins(changes, model_config):
    assert changed(PPOConfig, DATA, changes)["rl_module"]["model_config"] == model_config


def test_another_spelling_in_the_file_is_replaced():
    data = changed(PPOConfig, DATA, ["training.train_batch_size=256"])
    assert data["training"] == {"train_batch_size": 256, "minibatch_size": 64}
    assert PPOConfig.from_dict(data | {"env_to_module": []}).train_batch_size == 256


def test_nothing_to_change():
    training = {"train_batch_size": 128, "minibatch_size": 64}
    assert changed(PPOConfig, DATA, []) == {**DATA, "training": training}
    assert changed(PPOConfig, None, ["lr=1"]) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("env_to_module.num_frames=2", ["env_to_module has no entry 'num_frames'", "env_to_module.0.num_frames"]),
        ("env_to_module.2.num_frames=2", ["env_to_module has no entry '2': it has 2, counted from 0"]),
        ("env_to_module.3=a", ["no entry '3'"]),
        ("module_to_env.0.a=1", ["module_to_env has no entry '0': it has none"]),
        ("learner.gama=1", ["learner has no entry 'gama'"]),
        ("rl_module.model_config.fcnet_hiddens.first=1", ["no entry 'first'"]),
        ("training.minibatch_size.half=1", ["training.minibatch_size is 64, in which nothing has a name"]),
        ("training.lr", ["training.lr: expected path=value"]),
        ("training.lr=", ["for no value write null"]),
        ("=3", ["expected path=value"]),
        ("training.lr=[1", ["the value of training.lr, line 1", "expected ',' or ']'"]),
    ],
)
def test_what_a_path_cannot_mean(change, words):
    with pytest.raises(ConfigError) as caught:
        changed(PPOConfig, DATA, [change])
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
    assert str(caught.value).startswith("--set\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("trainig.lr=1", ["- trainig: no such section; did you mean 'training'?"]),
        ("training.lrr=1", ["- training.lrr: unknown setting; did you mean 'lr'?"]),
        ("learners.lr=1", ["- learners.lr: unknown setting here; it belongs to training"]),
        ("lrr=1", ["- lrr: no such section; ", "Known: "]),
        (".=1", ["- : no such section"]),
        ("training.=1", ["- training.: unknown setting"]),
    ],
)
def test_a_path_that_leads_nowhere_is_reported_with_the_rest_of_the_file(change, words):
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(changed(PPOConfig, {"environment": {"env": "CartPole-v1"}}, [change]))
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError, match="correct these 2 settings"):
        changed(PPOConfig, DATA, ["env_to_module.7=a", "lr=1", "training.c"])


def test_a_copy_shares_no_dict_or_list_with_the_original():
    original = PPOConfig().environment(env_config={"sizes": [1]}).rl_module(model_config={"fcnet_hiddens": [8]})
    copied = original.copy()
    copied.env_config["sizes"].append(2)
    copied.model_config["fcnet_hiddens"].append(4)
    assert original.env_config == {"sizes": [1]} and original.model_config == {"fcnet_hiddens": [8]}
    assert copied.env_config == {"sizes": [1, 2]}
