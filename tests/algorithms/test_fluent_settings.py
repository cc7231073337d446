"""Methods of configs: what calls and attributes do; settings as typed keywords in signatures, stubs and schema."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from typer.testing import CliRunner

import epibatch
from epibatch.algorithms import AlgorithmConfig, PPOConfig
from epibatch.cli import app
from epibatch.core.errors import ConfigError


def test_methods_return_the_config_and_settings_read_flat():
    config = PPOConfig()
    assert config.environment("CartPole-v1", env_config={"a": 1}) is config
    assert config.env_runners(num_envs_per_env_runner=4, explore=False) is config
    assert config.learners(num_learners=0) is config
    assert config.training(lr=0.01, train_batch_size_per_learner=64) is config
    assert config.rl_module(model_config={"fcnet_hiddens": [8]}) is config
    assert config.debugging(seed=3) is config
    assert config.stopping(training_iteration=2) is config
    assert (config.env, config.env_config, config.num_envs_per_env_runner, config.explore) == (
        "CartPole-v1",
        {"a": 1},
        4,
        False,
    )
    assert (config.lr, config.train_batch_size, config.train_batch_size_per_learner) == (0.01, 64, 64)
    assert (config.model_config, config.seed, config.stop_rules.training_iteration) == ({"fcnet_hiddens": [8]}, 3, 2)
    assert config.training(gamma=0.5).lr == 0.01, "settings of earlier calls stay"
    merged = config.training(model={"fcnet_hiddens": [9]}).rl_module(model_config_dict={"max_seq_len": 5})
    assert merged.model_config == {"fcnet_hiddens": [9], "max_seq_len": 5}
    assert config.environment(observation_space=gym.spaces.Discrete(2)).env == "CartPole-v1"
    assert PPOConfig().environment(env="A").env == "A"
    assert repr(PPOConfig().training(lr=0.5)) == "PPOConfig(lr=0.5)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.training(lr=-1, gama=2), r"(?s)PPOConfig\.training\n.*training\.lr.*training\.gama.*2 settings"),
        (
            lambda c: c.training(model={"a": 1}, learner_connector=3, lr=-1),
            r"(?s)learner_connector.*training\.lr.*2 settings",
        ),
        (lambda c: c.environment("A", env_confg={}), "did you mean 'env_config'"),
        (
            lambda c: c.learners(num_aggregator_actors_per_learner=2, num_runnr=3),
            r"(?s)available yet.*num_runnr: .*these 2 settings",
        ),
        (lambda c: c.training(learner_connector={"piece": "clip"}), "learner_connector"),
        (lambda c: c.stopping(reward=1), r"PPOConfig\.stopping"),
        (lambda c: setattr(c, "lrr", 1), "did you mean 'lr'"),
        (lambda c: setattr(c, "lr", -1), "greater than or equal to 0"),
    ],
)
def test_wrong_calls_change_nothing(call, message):
    config = PPOConfig().training(lr=0.5, learner_connector=lambda observations, actions: [])
    before = repr(config)
    with pytest.raises(ConfigError, match=message):
        call(config)
    assert repr(config) == before


def test_setting_attributes():
    config = PPOConfig()
    config.lr = 0.25
    config.train_batch_size_per_learner = 32
    hook = lambda env: None  # noqa: E731
    config.env_to_module_connector = hook
    assert (config.lr, config.train_batch_size, config.env_to_module_connector) == (0.25, 32, hook)


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no setting or method 'gama'; did you mean 'gamma'"):
        _ = PPOConfig().gama
    assert not hasattr(PPOConfig(), "_nothing")


def test_hooks_may_be_given_in_learners_and_in_training():
    hook = lambda obs_space, act_space: None  # noqa: E731
    assert PPOConfig().training(learner_connector=hook).learner_connector is hook
    assert PPOConfig().learners(learner_connector=hook).learner_connector is hook
    assert PPOConfig().training(add_default_connectors_to_learner_pipeline=False).lr == 5e-5


def test_copy_is_independent_and_configs_pickle():
    config = PPOConfig().training(lr=0.5).env_runners(env_to_module_connector=[{"piece": "frame_stacking"}])
    config.env_runners(module_to_env_connector=[])
    twin = config.copy().training(lr=0.25)
    twin.env_to_module_connector.append("mean_std_filter")
    twin.module_to_env_connector.append("clip_actions")
    assert (len(config.env_to_module_connector), config.module_to_env_connector) == (1, [])
    assert (config.lr, twin.lr) == (0.5, 0.25)
    config = PPOConfig().environment(env_config={"sizes": [1]}).rl_module(model_config={"fcnet_hiddens": [8]})
    twin = config.copy()
    twin.env_config["sizes"].append(2)
    twin.model_config["fcnet_hiddens"].append(4)
    assert config.env_config == {"sizes": [1]} and config.model_config == {"fcnet_hiddens": [8]}
    assert pickle.loads(pickle.dumps(config)).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("settings", "length"),
    [({}, 4000), ({"num_envs_per_env_runner": 16}, 250), ({"num_envs_per_env_runner": 3}, 1334)],
)
def test_auto_fragment_length_covers_the_train_batch(settings, length):
    config = PPOConfig().env_runners(**settings)
    assert config.get_rollout_fragment_length() == length
    assert config.env_runners(rollout_fragment_length=7).get_rollout_fragment_length() == 7


def test_the_minibatch_size_that_nobody_gave_fits():
    config = PPOConfig().training(train_batch_size=100)
    assert config.minibatch_size == 100
    assert config.training(train_batch_size=4000).minibatch_size == 128
    assert config.training(train_batch_size=100).copy().minibatch_size == 100
    assert PPOConfig.from_dict(config.to_dict()).minibatch_size == 100
    assert config.training(minibatch_size=None).minibatch_size is None
    config.validate()


@pytest.mark.parametrize("mode", ["next_step", gym.vector.AutoresetMode.SAME_STEP, "disabled", None])
def test_autoreset_modes_by_name_or_as_gymnasiums(mode):
    config = PPOConfig().environment("CartPole-v1").env_runners(gym_env_autoreset_mode=mode)
    name = mode.name.lower() if isinstance(mode, gym.vector.AutoresetMode) else mode
    assert config.gym_env_autoreset_mode == name
    assert PPOConfig.from_yaml(config.to_yaml()).gym_env_autoreset_mode == name


# ------------------------------------------------------------------- signatures, stubs and schema

METHODS = "environment env_runners learners training rl_module multi_agent evaluation callbacks debugging reporting"
METHODS = [*METHODS.split(), "checkpointing", "stopping"]
ALGORITHMS = Path(epibatch.__file__).parent / "algorithms"

REPOSITORY = Path(__file__).parents[2]

SNIPPET = """\
from epibatch.algorithms import PPOConfig

config = PPOConfig().environment("CartPole-v1", env_config={"sutton_barto_reward": True})
config.training(lr=1e-3, train_batch_size_per_learner=64, model={"fcnet_hiddens": [8]}).env_runners(explore=False)
rate: float = config.gamma
config.training(lr="fast")
config.training(gama=0.9)
config.env_runners(lr=0.1)
config.env_runners(batch_mode="all")
word: str = config.num_epochs
config.num_epoch
"""


def stub_methods(file):
    """Class -> method -> its keywords with their types, as the stub has them."""
    classes = [node for node in ast.parse((ALGORITHMS / file).read_text()).body if isinstance(node, ast.ClassDef)]
    return {
        cls.name: {
            function.name: {
                each.arg: ast.unparse(each.annotation) for each in [*function.args.args[1:], *function.args.kwonlyargs]
            }
            for function in cls.body
            if isinstance(function, ast.FunctionDef) and function.name in METHODS
        }
        for cls in classes
    }


def test_stubs_and_signatures_have_the_same_settings():
    base, own = stub_methods("algorithm_config.pyi")["AlgorithmConfig"], stub_methods("ppo.pyi")["PPOConfig"]
    for config, stub in ((AlgorithmConfig, base), (PPOConfig, {**base, **own})):
        for method in METHODS:
            parameters = list(inspect.signature(getattr(config, method)).parameters.values())[1:]
            found = {each.name: ast.unparse(ast.parse(each.annotation)) for each in parameters}
            assert found == stub[method], method


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_explained(method):
    function = getattr(PPOConfig, method)
    for name in list(inspect.signature(function).parameters)[1:]:
        line = next(line for line in inspect.getdoc(function).splitlines() if line.strip().startswith(f"{name}: "))
        assert len(line.partition(": ")[2]) > 5


def test_a_config_of_ones_own_keeps_its_methods():
    class Mine(PPOConfig):
        def training(self, *, half_lr: float = 1.0, **settings):
            return super().training(lr=2 * half_lr, **settings)

    assert list(inspect.signature(Mine.training).parameters) == ["self", "half_lr", "settings"]
    assert Mine().training(half_lr=0.1, gamma=0.5).lr == 0.2
    assert "clip_param" in inspect.signature(PPOConfig().training).parameters
    with pytest.raises(TypeError, match="multiple values for env"):
        PPOConfig().environment("CartPole-v1", env="Pendulum-v1")


@pytest.mark.slow
def test_mypy_finds_wrong_names_and_types(tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", str(tmp_path / "snippet.py")]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout
    wrong = [line.split(":")[1] for line in output.splitlines() if ": error:" in line]
    assert wrong == ["6", "7", "8", "9", "10", "11"], output


def test_the_schema_has_every_setting():
    result = CliRunner().invoke(app, ["schema"])
    schema = json.loads(result.output)
    assert result.exit_code == 0
    for name, model in PPOConfig.model.sections().items():
        section = schema["$defs"][schema["properties"][name]["$ref"].rpartition("/")[2]]
        assert set(section["properties"]) == set(model.spellings())
        assert [key for key, value in section["properties"].items() if not value.get("description")] == []
    assert schema["properties"]["env_to_module"]["items"]["anyOf"][1]["required"] == ["piece"]
    assert "explore" in schema["$defs"]["EvaluationOverrides"]["properties"]
    assert "clip_param" in schema["$defs"]["ModuleOverrides"]["properties"]
