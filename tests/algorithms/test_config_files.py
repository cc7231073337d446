"""Configs as data: YAML, dicts, what cannot be written, and changes such as `--set training.lr=1e-3`."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from epibatch.algorithms import AlgorithmConfig, PPOConfig, TrainingRun
from epibatch.algorithms.config.config_io import changed, parse_yaml, to_yaml_text
from epibatch.cli import app
from epibatch.core import registry
from epibatch.core.errors import ConfigError, NotAvailableError
from epibatch.core.registry import register_env
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import write_episodes

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


def test_yaml_and_dict_and_methods_agree(tmp_path):
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
    assert PPOConfig.from_dict(from_yaml.to_dict()).to_dict() == from_yaml.to_dict()
    assert PPOConfig.from_yaml(from_yaml.to_yaml()).to_dict() == from_yaml.to_dict()
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    assert PPOConfig.from_yaml(path).lr == PPOConfig.from_yaml(str(path)).lr == 0.0003
    assert PPOConfig.from_yaml("training:\nenvironment:\n").to_dict() == PPOConfig().to_dict()


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
        "learner": ["frame_stacking", {"piece": "frame_stacking", "num_frame": 2}],
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
        "- learner[1].num_frame: ",
        "did you mean 'num_frames'?",
        "- module_to_env[0].piece: piece 'get_action'",
        "did you mean 'get_actions'?",
        "- stop.reward: unknown setting",
        "correct these 12 settings",
    ):
        assert text in str(caught.value), text


def test_contradictions_and_what_is_not_there_are_reported_with_the_rest():
    data = {
        "training": {"train_batch_size": 10, "minibatch_size": 20, "gama": 0.9},
        "env_runners": {"num_env_runners": -2, "explore": 2},
        "debugging": {"sed": 1},
    }
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(data)
    for path in ("training.minibatch_size", "training.gama", "env_runners.num_env_runners", "env_runners.explore"):
        assert f"- {path}: " in str(caught.value)
    assert "these 5 settings" in str(caught.value)


def test_settings_of_processes_that_have_no_meaning():
    data = {
        "learners": {"num_gpus_per_learner": 1},
        "evaluation": {"evaluation_config": {"num_env_runners": 2}},
    }
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(data)
    assert "- learners.num_gpus_per_learner: needs num_learners; device='cuda'" in str(caught.value)
    assert "- evaluation.evaluation_config.num_env_runners: expected 0" in str(caught.value)
    data["learners"]["num_learners"], data["evaluation"]["evaluation_config"]["num_env_runners"] = 1, 0
    assert PPOConfig.from_dict(data).num_gpus_per_learner == 1
    data["learners"]["num_gpus_per_learner"] = 2
    with pytest.raises(ConfigError, match=r"num_gpus_per_learner: expected at most 1, as a learner uses one GPU"):
        PPOConfig.from_dict(data)


def test_what_the_command_needs_is_reported_with_the_rest(tmp_path):
    (tmp_path / "my.yaml").write_text("training: {lr: -1}")
    with pytest.raises(ConfigError) as caught:
        TrainingRun.start(tmp_path / "my.yaml", tmp_path / "run")
    for text in (
        "my.yaml\n",
        "- algorithm: missing; add the line `algorithm: ppo`",
        "- environment.env: missing; add the line `environment: {env: CartPole-v1}`",
        "- training.lr",
    ):
        assert text in str(caught.value)


def test_recorded_episodes_take_the_place_of_the_environment(tmp_path):
    episode = SingleAgentEpisode(observations=np.zeros((6, 2)), actions=[0, 1, 0, 1, 0], rewards=[1.0] * 5,
                                 terminated=True, len_lookback_buffer=0)  # fmt: skip
    write_episodes([episode], tmp_path / "data")
    for name in ("input", "input_"):
        (tmp_path / "my.yaml").write_text(f"algorithm: bc\noffline_data: {{{name}: '{tmp_path / 'data'}'}}")
        session = TrainingRun.start(tmp_path / "my.yaml", tmp_path / name)
        assert session.run(iterations=1) == 0
        played = CliRunner().invoke(app, ["play", str(tmp_path / name)])
        assert played.exit_code == 2 and "a run in an environment" in played.stderr
    for text in ("algorithm: bc", "algorithm: bc\nenvironment: {env: CartPole-v1}"):
        (tmp_path / "my.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"- offline_data\.input: missing; add the line"):
            TrainingRun.start(tmp_path / "my.yaml", tmp_path / "other")


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


def test_spaces_are_data():
    spaces = {"observation_space": gym.spaces.Box(-np.inf, 1.0, (2,)), "action_space": gym.spaces.Discrete(2, start=3)}
    data = PPOConfig().environment(**spaces).to_dict()
    assert data["environment"]["action_space"] == {"type": "Discrete", "n": 2, "start": 3, "dtype": "int64"}
    restored = PPOConfig.from_yaml(PPOConfig().environment(**spaces).to_yaml())
    assert {name: getattr(restored, name) for name in spaces} == spaces
    with pytest.raises(ConfigError, match=r"environment\.action_space: .*did you mean .Discrete"):
        PPOConfig.from_dict({"environment": {"action_space": {"type": "Discret", "n": 2}}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: PPOConfig().environment(gym.Env), r"environment\.env: .*is code, not data"),
        (lambda: PPOConfig().environment(action_space=gym.Space()), "gymnasium.spaces.space.Space"),
        (lambda: PPOConfig().env_runners(env_to_module_connector=spaces_of), "env_to_module_connector is a function"),
        (lambda: PPOConfig().training(model={"fcnet_kernel_initializer": print}), r"rl_module\.model_config"),
        (lambda: PPOConfig().environment(wrappers=[gym.Wrapper]), r"environment\.wrappers: .*is code, not data"),
    ],
)
def test_code_is_no_data(config, message):
    with pytest.raises(ConfigError, match=message):
        config().to_dict()
    with pytest.raises(NotAvailableError, match="use PPOConfig"):
        AlgorithmConfig().build_algo()


# ----------------------------------------- YAML means what it looks like, or is refused with its place


def read(text):
    """The value that a setting has after it was read."""
    return PPOConfig.from_yaml(f"environment:\n  env_config:\n    x: {text}\n").env_config["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1000.0),
        ("2.5e2", 250.0),
        ("-1e2", -100.0),
        ("1e", "1e"),
        (".inf", float("inf")),
        (".5", 0.5),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("0x10", 16),
        ("0b11", 3),
        ("-7", -7),
        ("True", True),
        ("null", None),
        ("~", None),
        ("'no'", "no"),
        ('"010"', "010"),
        ("0o17", 15),
        ("no", "no"),
        ("On", "On"),
        ("010", 10),
        ("1:30", "1:30"),
    ],
)
def test_numbers_as_yaml_1_2_reads_them(text, value):
    assert read(text) == value and type(read(text)) is type(value)


@pytest.mark.parametrize("text", ["{0}", "# {0}\n'{0}'", '"{0}"', "|\n  {0}", ">\n  {0}\n  {0}"])
@pytest.mark.parametrize("brackets", ["[" * 300, "{[" * 200])
def test_brackets_in_comments_and_strings_are_no_levels(text, brackets):
    if text == "{0}":
        with pytest.raises(ConfigError, match="at most 200 levels"):
            parse_yaml(text.format(brackets), "a text")
    else:
        assert parse_yaml(text.format(brackets), "a text").strip().split()[-1] == brackets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!timestamp ten", "failed to construct timestamp"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("!own 3", "could not determine a constructor"),
        ("{a: 1, a: 2}", 'found duplicate key "a"'),
        ("{? {a: 1} : 2}", "found unhashable key"),
        ("*other", "undefined alias"),
        ("&a [*a]", "found an alias of the value itself"),
    ],
)
def test_what_yaml_might_misread_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigError) as caught:
        read(text)
    found = str(caught.value)
    assert message in found and found.startswith("YAML text, line 3, column ")
    assert "expected: YAML" in found and "do:" in found


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("training:\n\tlr: 1", "YAML text, line 2"),
        ("x: !!int ten", "YAML text\n"),
        ("a: 1\x00", "YAML text\n"),
        ("\x00", "YAML text\n"),
        ("--- {}\n--- {}", "YAML text, line 2"),
        ("{" * 1200, "YAML text, line 1\n  expected: YAML of at most 200 levels"),
        ("a: 1\nb: " + "[" * 100_000, "YAML text, line 2\n  expected: YAML of at most 200 levels"),
        ("x" * 2000 + ".yaml", "xxx"),
        ("a\0b.yaml", "a\0b.yaml\n  expected: a readable YAML file"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_text_that_is_no_yaml(text, where):
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_yaml(text)
    assert str(caught.value).startswith(where)


@pytest.mark.parametrize(
    "value", ["no", "010", "1:30", "1e3", "0.5", "null", "", 1e-5, 1e300, True, None, [1, {"a": 2}]]
)
def test_what_is_written_is_read_back(value):
    text = PPOConfig().environment(env_config={"x": value}).to_yaml()
    found = PPOConfig.from_yaml(text).env_config["x"]
    assert found == value and type(found) is type(value)


# ------------------------------------------------------------------------------ `--set path=value`

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
        ("lr=1e-3", ("training", "lr"), 0.001),
        ("learner.lr=1e-3", ("training", "lr"), 0.001),
        ("learner.num_learners=0", ("learners", "num_learners"), 0),
        ("training.lambda=0.9", ("training", "lambda_"), 0.9),
        ("training.grad_clip=null", ("training", "grad_clip"), None),
        ("seed=4", ("debugging", "seed"), 4),
        ("debugging.log_level=INFO", ("debugging", "log_level"), "INFO"),
        ("environment.env=a=b", ("environment", "env"), "a=b"),
        ("environment.env_config.map.size=[4, 4]", ("environment", "env_config", "map", "size"), [4, 4]),
        ("rl_module.model_config.fcnet_hiddens=[32]", ("rl_module", "model_config", "fcnet_hiddens"), [32]),
        ("rl_module.model_config.fcnet_hiddens.1=16", ("rl_module", "model_config", "fcnet_hiddens"), [8, 16]),
        ("env_to_module.1.num_frames=2", ("env_to_module", 1, "num_frames"), 2),
        ("env_to_module.0.num_frames=2", ("env_to_module", 0), {"piece": "frame_stacking", "num_frames": 2}),
        ("env_to_module.0=flatten_observations", ("env_to_module", 0), "flatten_observations"),
        ("env_to_module.2=flatten_observations", ("env_to_module", 2), "flatten_observations"),
        ("learner.0=frame_stacking", ("learner",), ["frame_stacking"]),
        ("learner=[{piece: frame_stacking}]", ("learner",), [{"piece": "frame_stacking"}]),
        ("stop={training_iteration: 3}", ("stop",), {"training_iteration": 3}),
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
    assert changed(PPOConfig, DATA, []) == {**DATA, "training": {"train_batch_size": 128, "minibatch_size": 64}}
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


def test_long_floats_of_numpy_are_written_as_floats():
    assert to_yaml_text({"lr": np.longdouble(0.5)}) == "lr: 0.5\n"
    with pytest.raises(Exception, match="cannot represent"):
        to_yaml_text({"lr": np.clongdouble(0.5)})


def test_values_of_numpy_are_written_as_pythons(built):
    """Everywhere: settings, networks, schedules, pieces, rules and modules; and such a config trains."""

    def config(text, whole, number, numbers, flag):
        piece = {text("piece"): text("mean_std_filter"), text("clip_by_value"): number(0.5)}
        return (
            PPOConfig()
            .environment(text("CartPole-v1"), env_config={text("sutton_barto_reward"): flag(True)})
            .env_runners(gym_env_vectorize_mode=text("sync"), env_to_module_connector=[piece])
            .training(lr=numbers([[0, 0.5], [8, 0.25]]), gamma=number(0.5), train_batch_size=whole(8), minibatch_size=8)
            .rl_module(model_config={text("fcnet_hiddens"): list(map(whole, [4, 4])), "use_lstm": flag(True)})
            .rl_module(model_config={"max_seq_len": whole(4), "lstm_cell_size": whole(4), "burn_in": whole(1)})
            .stopping(results={text("learners/x"): number(0.5)}, training_iteration=whole(2))
            .checkpointing(checkpoint_score_order=text("max"), checkpoint_score_attribute=text("learners/x"))
        )

    def nested(rows):
        return [[int(rows[0][0]), rows[0][1]], [int(rows[1][0]), rows[1][1]]]

    found = config(np.str_, np.int64, np.float32, np.array, np.bool_)
    assert found.to_yaml() == config(str, int, float, nested, bool).to_yaml()
    assert np.isfinite(built(found).train()["learners"]["default_policy"]["total_loss"])
