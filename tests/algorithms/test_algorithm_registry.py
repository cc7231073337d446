"""Algorithms of other packages, found by name in files, checkpoints and the command line."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epibatch.algorithms import (
    Algorithm,
    AlgorithmConfig,
    BCConfig,
    Policy,
    algorithm_names,
    config_class,
    register_algorithm,
)
from epibatch.algorithms.ppo import PPOConfig
from epibatch.cli import app
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchWarning, RegistryError
from epibatch.core.rl_module import DefaultQNetwork, QValueAPI
from epibatch.env_runner import make_multi_agent
from epibatch.learner import Losses, UpdateRule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
A2C = re.search(
    r"## An algorithm of your own.*?```python\n(.*?)\n\nconfig = ", PAGE.read_text(encoding="utf-8"), re.DOTALL
)[1]
"""The module that the page shows, without the lines that train."""

YAML = """
algorithm: a2c
environment: {env: CartPole-v1}
env_runners: {num_envs_per_env_runner: 4}
training: {train_batch_size: 64, minibatch_size: 64, lr: 0.003, vf_coeff: 0.25}
rl_module: {model_config: {fcnet_hiddens: [8]}}
debugging: {seed: 1}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A process with a package that offers A2C by an entry point; each call runs Python or the command line."""
    folder = tmp_path_factory.mktemp("a2c")
    (folder / "a2c_package.py").write_text(A2C, encoding="utf-8")
    (folder / "a2c.yaml").write_text(YAML, encoding="utf-8")
    info = folder / "a2c_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a2c-package\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[epibatch.algorithms]\na2c = a2c_package:A2CConfig\n", encoding="utf-8")

    def called(*words):
        paths = [str(folder), *filter(None, sys.path)]
        command = [sys.executable, *words]
        environment = {**__import__("os").environ, "PYTHONPATH": ":".join(paths)}
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    called.folder = Path(folder)
    return called


def command_line(run, *words):
    return run("-m", "epibatch", *words)


@pytest.mark.slow
def test_an_installed_algorithm_trains_resumes_and_plays_by_name(run):
    trained = command_line(run, "train", "a2c.yaml", "--iterations", "2", "--run", "saved")
    assert trained.returncode == 0, trained.stderr
    resumed = command_line(run, "train", "--resume", "saved", "--iterations", "1")
    assert resumed.returncode == 0, resumed.stderr
    played = command_line(run, "play", "saved", "--episodes", "1")
    assert played.returncode == 0, played.stderr
    program = (
        "from epibatch.algorithms import Algorithm\n"
        "algo = Algorithm.from_checkpoint('saved')\n"
        "print(algo.training_iteration, algo.config.vf_coeff, type(algo.config).__name__)\n"
        "algo.stop()\n"
    )
    restored = run("-c", program)
    assert restored.stdout.split() == ["3", "0.25", "A2CConfig"], restored.stderr


@pytest.mark.slow
def test_a_wrong_setting_of_an_installed_algorithm_is_named_with_its_line(run):
    (run.folder / "wrong.yaml").write_text(YAML.replace("vf_coeff", "vf_cof"), encoding="utf-8")
    refused = command_line(run, "train", "wrong.yaml")
    assert refused.returncode == 2
    assert "training.vf_cof" in refused.stderr and "'vf_coeff'" in refused.stderr and "line 5" in refused.stderr
    schema = json.loads(command_line(run, "schema", "a2c").stdout)
    assert "vf_coeff" in json.dumps(schema) and "clip_param" not in json.dumps(schema)


def test_settings_of_modules_are_those_of_the_algorithm():
    namespace = {"__name__": __name__}
    exec(compile(A2C.replace('"a2c"', '"a2c_here"'), "a2c", "exec", dont_inherit=True), namespace)
    config = namespace["A2CConfig"]()
    assert "a2c_here" in algorithm_names() and config_class("a2c_here") is type(config)
    config.environment("CartPole-v1").training(vf_coeff=0.1, lr=0.01, train_batch_size=64)
    assert (config.vf_coeff, config.algorithm) == (0.1, "a2c_here")
    assert type(config).from_yaml(config.to_yaml()).vf_coeff == 0.1
    for wrong in ({"vf_cof": 0.5}, {"vf_coeff": "much"}):
        with pytest.raises(ConfigError, match="vf_co"):
            config.multi_agent(policies=["red"], algorithm_config_overrides_per_module={"red": wrong})
    algo = config.build_algo()
    assert isinstance(algo, Algorithm) and type(algo) is type(config).get_algorithm_class()
    assert {"total_loss", "vf_loss"} <= algo.train()["learners"]["default_policy"].keys()
    algo.stop()


@pytest.mark.parametrize(("name", "expected"), [("ppo", "a name that is free"), ("my sac", "a name of letters")])
def test_names_that_cannot_be_registered(name, expected):
    with pytest.raises(RegistryError) as raised:
        register_algorithm(name)(type("Other", (AlgorithmConfig,), {}))
    assert raised.value.expected.startswith(expected)


def test_unknown_names_are_answered_with_the_nearest_one():
    assert config_class("ppo") is PPOConfig
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        config_class("pppo")
    with pytest.raises(ConfigError, match=r"algorithm \(line 2, column 12\): .*did you mean 'ppo'"):
        AlgorithmConfig.from_yaml("seed: 3\nalgorithm: pppo\n")


def test_a_general_config_reads_the_file_of_any_algorithm():
    config = AlgorithmConfig.from_yaml("algorithm: bc\ntraining: {entropy_coeff: 0.5}\n")
    assert type(config) is BCConfig and config.entropy_coeff == 0.5
    with pytest.raises(ConfigError, match=r"training\.clip_param \(line 2, column 24\): unknown setting"):
        AlgorithmConfig.from_yaml("algorithm: bc\ntraining: {clip_param: 0.5}\n")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with A2C and with a config that is registered nowhere, which is not imported yet."""
    text = A2C.replace('"a2c"', '"a2c_by_path"') + "\n\nfrom epibatch.algorithms import PPOConfig\n"
    (tmp_path / "a2c_by_path.py").write_text(f"{text}\n\nclass Mine(PPOConfig):\n    pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a2c.yaml").write_text(YAML.replace(": a2c", ": a2c_by_path:A2CConfig"), encoding="utf-8")
    yield "a2c_by_path"
    sys.modules.pop("a2c_by_path", None)


def test_a_file_names_an_algorithm_by_its_import_path_and_its_run_goes_on(module, tmp_path):
    line = r"(?s)algorithm \(line 2, column 12\): an import path, which runs code.*--allow-imports"
    with pytest.raises(ConfigError, match=line):
        AlgorithmConfig.from_yaml("a2c.yaml")
    assert module not in sys.modules
    for missing, text in (("a2c_by_path:Nothing", "has no 'Nothing'"), ("no_such:Config", "No module named")):
        with pytest.raises(ConfigError, match=text):
            AlgorithmConfig.from_yaml(f"algorithm: {missing}\n", allow_imports=True)
    with pytest.raises(ConfigError, match=r"(?s)a2c_by_path.Mine'>, which is not; write @register_algorithm"):
        AlgorithmConfig.from_yaml("algorithm: a2c_by_path:Mine\n", allow_imports=True)
    trained = CliRunner().invoke(app, ["train", "a2c.yaml", "--allow-imports", "--iterations", "1", "--run", "saved"])
    assert trained.exit_code == 0, trained.output
    assert "algorithm: a2c_by_path:A2CConfig\n" in (tmp_path / "saved" / "config.yaml").read_text()
    words = ["train", "--resume", "saved", "--allow-imports", "--iterations", "1"]
    resumed = CliRunner().invoke(app, words)
    assert resumed.exit_code == 0 and "going on after iteration 1" in resumed.output, resumed.output
    algo = Algorithm.from_checkpoint("saved")  # the class is registered here by now
    assert (algo.training_iteration, algo.config.vf_coeff, type(algo.config).__name__) == (2, 0.25, "A2CConfig")
    algo.stop()


def changed(path, **changes):
    """The checkpoint with another description."""
    content = load_state(path)
    save_state(path, {**content, "description": {**content["description"], **changes}})


def test_checkpoints_name_the_class_of_a_config_that_no_package_offers(module, tmp_path):
    mine = importlib.import_module(module).Mine
    algo = cart_pole_of(mine()).build_algo()
    algo.save_to_path("saved")
    algo.stop()
    for allowed, expected in ((False, PPOConfig), (True, mine)):
        warned = contextlib.nullcontext() if allowed else pytest.warns(EpibatchWarning, match="PPOConfig, since")
        with warned:
            restored = Algorithm.from_checkpoint("saved", allow_imports=allowed)
        assert type(restored.config) is expected
        restored.stop()
    changed("saved", algorithm="gone")
    with pytest.raises(
        CheckpointError, match=r"(?s)'a2c_by_path:Mine'.*an import path, which runs code.*allow_imports"
    ):
        Algorithm.from_checkpoint("saved")
    changed("saved", config_class=None, package="gone-package")
    with pytest.raises(CheckpointError, match=r"(?s)algorithm 'gone'.*install gone-package, which offered"):
        Algorithm.from_checkpoint("saved")


def cart_pole_of(config):
    return config.environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32)


class ValuesRule(UpdateRule):
    """Values of actions follow the rewards."""

    needs = (QValueAPI,)

    def losses(self, batch, module, own, coefficients):
        values = module.compute_q_values(batch, batch["actions"])[0]
        return Losses({"total": (values - batch["rewards"]).square().mean()})


@pytest.mark.parametrize("several", [False, True])
def test_an_algorithm_says_what_its_default_network_gives(several, tmp_path):
    """So a policy of its checkpoint acts with such a network, whatever algorithm it was."""

    @register_algorithm("values_of_rewards")
    class Config(AlgorithmConfig):
        rule, heads = ValuesRule, "q_values"

    config = Config().environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32)
    if several:
        env = make_multi_agent("CartPole-v1")
        config.environment(env, env_config={"num_agents": 2})
        config.multi_agent(policies=["p0", "p1"], policy_mapping_fn=lambda agent_id, *_, **__: f"p{agent_id}")
    algorithm = config.build_algo()
    modules = algorithm.env_runner.module
    assert all(type(module) is DefaultQNetwork for module in (modules.values() if several else [modules]))
    algorithm.train()
    algorithm.save_to_path(tmp_path)
    algorithm.stop()
    if not several:
        policy = Policy.from_checkpoint(tmp_path)
        assert type(policy.module) is DefaultQNetwork
        assert policy.module.q.advantages[0].weight.equal(modules.q.advantages[0].weight)
