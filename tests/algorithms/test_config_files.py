from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.algorithms import AlgorithmConfig, PPOConfig
from epibatch.algorithms.config_io import ConfigDocument, read_yaml, to_yaml_text, yaml_name
from epibatch.core import registry
from epibatch.core.errors import ConfigError, NotAvailableError
from epibatch.core.registry import register_env

TEXT = """
algorithm: ppo
environment:
  env: CartPole-v1
training:
  lr: 3e-4
  lambda: 0.95
  vf_clip_param: .inf
env_to_module:
  - {piece: frame_stacking, num_frames: 4}
learner:
  - {piece: frame_stacking, num_frames: 4}
stop: {episode_return_mean: 475, num_env_steps_sampled_lifetime: 150_000}
"""


def test_yaml_and_dict_and_methods_agree():
    stack = [{"piece": "frame_stacking", "num_frames": 4}]
    by_methods = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(env_to_module_connector=stack)
        .training(lr=3e-4, lambda_=0.95, vf_clip_param=float("inf"), learner_connector=stack)
        .stopping(episode_return_mean=475, num_env_steps_sampled_lifetime=150_000)
    )
    from_yaml = PPOConfig.from_yaml(TEXT)
    assert from_yaml.to_dict() == by_methods.to_dict()
    assert (from_yaml.lr, from_yaml.stop_rules.episode_return_mean) == (0.0003, 475.0)
    assert from_yaml.to_dict()["env_to_module"] == stack


def test_round_trips():
    config = PPOConfig.from_yaml(TEXT)
    assert PPOConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert PPOConfig.from_yaml(config.to_yaml()).to_dict() == config.to_dict()


def test_from_a_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    assert PPOConfig.from_yaml(path).lr == PPOConfig.from_yaml(str(path)).lr == 0.0003


def test_everything_wrong_is_reported_at_once_with_its_path():
    data = {
        "algorithm": "dqn",
        "trainin": {},
        "lr": 0.1,
        "environment": {"env": "CartPole-v1", "env_conf": {}},
        "env_runners": {"num_envs_per_env_runner": "8"},
        "training": [],
        "rl_module": {"model_config": {"fcnet_hidden": [8], "max_seq_len": 0}},
        "env_to_module": "frame_stacking",
        "module_to_env": [{"piece": "get_action"}],
        "stop": {"reward": 475},
    }
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(data)
    for text in (
        "- algorithm: input should be 'ppo', found str 'dqn'",
        "- trainin: no such section; did you mean 'training'?",
        "- lr: no section; this setting belongs to training",
        "- environment.env_conf: unknown setting; did you mean 'env_config'?",
        "- env_runners.num_envs_per_env_runner: input should be a valid integer, found str '8'",
        "- training: expected a mapping with some of lr, gamma",
        "- rl_module.model_config.fcnet_hidden: unknown setting; did you mean 'fcnet_hiddens'?",
        "- rl_module.model_config: DefaultModelConfig: max_seq_len",
        "- env_to_module: expected a list such as",
        "- module_to_env[0].piece: piece 'get_action'",
        "did you mean 'get_actions'?",
        "- stop.reward: unknown setting",
        "correct these 11 settings",
    ):
        assert text in str(caught.value), text


def test_wrong_piece_keyword_has_its_path():
    with pytest.raises(ConfigError, match=r"env_to_module\[1\]\.num_frame: .*did you mean 'num_frames'"):
        PPOConfig.from_dict({"env_to_module": ["frame_stacking", {"piece": "frame_stacking", "num_frame": 2}]})


def test_contradictions_and_what_is_not_there_are_reported_with_the_rest():
    data = {
        "training": {"train_batch_size": 10, "minibatch_size": 20, "gama": 0.9},
        "env_runners": {"num_env_runners": 2, "explore": 1},
        "debugging": {"sed": 1},
    }
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(data)
    for path in ("training.minibatch_size", "training.gama", "env_runners.num_env_runners", "env_runners.explore"):
        assert f"- {path}: " in str(caught.value)
    assert "these 5 settings" in str(caught.value)


def test_what_the_command_needs_is_reported_with_the_rest():
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_document(ConfigDocument("my.yaml", {"training": {"lr": 0}}), complete=True)
    for text in (
        "my.yaml\n",
        "- algorithm: missing; add the line `algorithm: ppo`",
        "- environment.env: missing; add the line `environment: {env: CartPole-v1}`",
        "- training.lr: ",
    ):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("pipeline", "piece", "made_for"),
    [
        ("learner", "get_actions", "module_to_env"),
        ("module_to_env", {"piece": "frame_stacking", "num_frames": 2}, "env_to_module and learner"),
        ("env_to_module", "general_advantage_estimation", "learner"),
    ],
)
def test_a_piece_in_a_pipeline_that_it_is_not_made_for(pipeline, piece, made_for):
    with pytest.raises(ConfigError, match=rf"{pipeline}\[0\]\.piece: \w+ is made for {made_for}, not for {pipeline}"):
        PPOConfig.from_dict({pipeline: [piece]})


def test_messages_name_the_file(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("training:\n  lr: fast\n")
    with pytest.raises(ConfigError, match=r"PPOConfig from .*my\.yaml\n"):
        PPOConfig.from_yaml(path)
    path.write_text("training: {lr: 1\nenv: 3\n")
    with pytest.raises(ConfigError, match=r"my\.yaml, line 2, column 4\n") as caught:
        PPOConfig.from_yaml(path)
    assert "unicode string" not in str(caught.value)


def test_environment_that_imports_needs_leave():
    data = {"environment": {"env": "some_module:Env-v0"}}
    with pytest.raises(ConfigError, match=r"environment\.env: .*runs code.*--allow-imports"):
        PPOConfig.from_dict(data)
    assert PPOConfig.from_dict(data, allow_imports=True).env == "some_module:Env-v0"


def test_registered_name_with_a_colon_is_no_import():
    register_env("mine:small", lambda env_config: None)
    try:
        assert PPOConfig.from_dict({"environment": {"env": "mine:small"}}).env == "mine:small"
    finally:
        del registry._env_creators["mine:small"]


def test_empty_sections_are_empty():
    assert PPOConfig.from_yaml("training:\nenvironment:\n").to_dict() == PPOConfig().to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1\nlr: 2\n", "line 2, column 1\n.*\n.*duplicate key .lr."),
        ("a: [1\n", "line 2, column 1"),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("- 1\n", "expected: sections such as"),
        ("missing.yaml", "missing.yaml\n.*\n.*No such file"),
    ],
)
def test_text_that_is_no_config(text, message):
    with pytest.raises(ConfigError, match=message):
        PPOConfig.from_yaml(text)


def spaces_of(env, spaces, device):
    return []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: PPOConfig().environment(gym.Env), r"environment\.env: .*is code, not data"),
        (lambda: PPOConfig().environment(action_space=gym.spaces.Discrete(2)), r"environment\.action_space: Discrete"),
        (lambda: PPOConfig().env_runners(env_to_module_connector=spaces_of), "env_to_module_connector is a function"),
        (lambda: PPOConfig().training(model={"fcnet_kernel_initializer": print}), r"rl_module\.model_config"),
    ],
)
def test_code_is_no_data(config, message):
    with pytest.raises(ConfigError, match=message):
        config().to_dict()


def test_general_config_builds_nothing():
    with pytest.raises(NotAvailableError, match="use PPOConfig"):
        AlgorithmConfig().build_algo()


# ----------------------------------------- yAML means what it looks like, or is refused with its place


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1000.0),
        ("2.5e2", 250.0),
        ("-1e2", -100.0),
        ("1e", "1e"),
        ("12", 12),
        (".inf", float("inf")),
        (".5", 0.5),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("0x10", 16),
        ("0b11", 3),
        ("0", 0),
        ("-7", -7),
        ("True", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("'no'", "no"),
        ('"010"', "010"),
        ("norm", "norm"),
        ("0o17", 15),
        ("no", "no"),
        ("On", "On"),
        ("010", 10),
        ("1:30", "1:30"),
    ],
)
def test_numbers_as_yaml_1_2_reads_them(text, value):
    found = read_yaml(f"x: {text}\n")["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!int ten", "invalid literal"),
        ("!!timestamp ten", "failed to construct timestamp"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("!!python/tuple [1]", "could not determine a constructor"),
        ("!own 3", "could not determine a constructor"),
        ("{a: 1, a: 2}", 'found duplicate key "a"'),
        ("{? {a: 1} : 2}", "found unhashable key"),
        ("*other", "undefined alias"),
        ("&a [*a]", "found an alias of the value itself"),
    ],
)
def test_what_yaml_might_misread_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigError) as caught:
        read_yaml(f"first: 1\nx: {text}\n")
    found = str(caught.value)
    assert message in found
    assert found.startswith("YAML text") and "expected: YAML" in found and "do:" in found
    if "place" not in message and "literal" not in message:
        assert found.startswith("YAML text, line 2, column ")


@pytest.mark.parametrize("text", ["training:\n\tlr: 1", "a: 1\x00", "\x00", "--- {}\n--- {}", "{" * 5000])
def test_text_that_is_no_yaml(text):
    with pytest.raises(ConfigError, match="YAML text"):
        read_yaml(text)


@pytest.mark.parametrize("text", ["x" * 2000 + ".yaml", "a\0b.yaml"])
def test_paths_that_cannot_be_read(text):
    with pytest.raises(ConfigError, match="a readable YAML file"):
        read_yaml(text)


@pytest.mark.parametrize(
    "value", ["no", "010", "1:30", "1e3", "0.5", "null", "", 1e-5, 1e300, True, None, [1, {"a": 2}]]
)
def test_what_is_written_is_read_back(value):
    found = read_yaml(to_yaml_text({"x": value}))["x"]
    assert found == value and type(found) is type(value)


def test_names_of_sources(tmp_path):
    assert yaml_name("a: 1") == "YAML text"
    assert yaml_name("a.yaml") == "a.yaml"
    assert yaml_name(tmp_path) == str(tmp_path)
