"""A name in a config, a checkpoint or a run that would import a module is refused at every door, unless allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epibatch.algorithms import PPO, Policy, PPOConfig
from epibatch.cli import app
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError, RegistryError
from epibatch.core.registry import build_piece, piece_class
from fixture_configs import cart_pole

NAME = "imported_by_mistake"
MODULE = """
from epibatch.connectors import ConnectorV2
from epibatch.env_runner import SingleAgentEnvRunner

class Runner(SingleAgentEnvRunner):
    pass

class Piece(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch
"""
PIECE, DOTTED, ENV = f"{NAME}:Piece", f"{NAME}.Piece", f"{NAME}:ImportedByMistake-v0"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop(NAME, None)


def small(**sections):
    return PPOConfig.from_dict({**cart_pole().to_dict(), **sections}, allow_imports=True)


def from_yaml(text):
    return lambda **allowed: PPOConfig.from_yaml(text, **allowed)


DOORS = {
    **{f"{name} in YAML": from_yaml(f"{name}: ['{PIECE}']") for name in ("env_to_module", "module_to_env", "learner")},
    "a dotted path in YAML": from_yaml(f"learner: [{{piece: {DOTTED}}}]"),
    "a hook's setting in YAML": from_yaml(f"env_runners: {{env_to_module_connector: [{DOTTED}]}}"),
    "a learner's hook in YAML": from_yaml(f"learners: {{learner_connector: [{DOTTED}]}}"),
    "a piece in a dict": lambda **allowed: PPOConfig.from_dict({"learner": [{"piece": PIECE}]}, **allowed),
    "a piece in Python": lambda **allowed: PPOConfig(**allowed).training(learner_connector=[PIECE]),
    "build_piece": lambda **allowed: build_piece(PIECE, **allowed),
    "piece_class": lambda **allowed: piece_class(DOTTED, **allowed),
    "an environment": from_yaml(f"environment: {{env: '{ENV}'}}"),
    "an environment to evaluate in": from_yaml(f"evaluation: {{evaluation_config: {{env: '{ENV}'}}}}"),
    "one inside another to evaluate in": from_yaml(
        f"evaluation: {{evaluation_config: {{env_config: {{env_id: '{ENV}'}}}}}}"
    ),
    "a callback": from_yaml(f"callbacks: {{on_sample_end: '{PIECE}'}}"),
    "a list of callbacks": from_yaml(f"callbacks: {{on_episode_end: ['{PIECE}']}}"),
    "a class of callbacks": from_yaml(f"callbacks: {{callbacks_class: '{PIECE}'}}"),
    "a class of runners": from_yaml(f"env_runners: {{env_runner_cls: '{NAME}:Runner'}}"),
    "a class of runners to evaluate with": from_yaml(
        f"evaluation: {{evaluation_config: {{env_runner_cls: '{NAME}:Runner'}}}}"
    ),
    "a callback in Python": lambda **allowed: PPOConfig(**allowed).callbacks(on_train_result=PIECE),
    "an environment inside another": from_yaml(
        f"environment: {{env: GymV26Environment-v0, env_config: {{env_id: '{ENV}'}}}}"
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_configs(door):
    with pytest.raises(EpibatchError) as caught:
        DOORS[door]()
    assert NAME not in sys.modules
    message = str(caught.value)
    assert NAME in message and "runs code" in message
    assert "PPOConfig(allow_imports=True)" in message and "--allow-imports" in message
    assert isinstance(caught.value, (ConfigError, RegistryError))
    DOORS[door](allow_imports=True)


def test_a_pipeline_never_imports():
    with pytest.raises(RegistryError, match="runs code"):
        LearnerConnectorPipeline(connectors=[PIECE])
    assert NAME not in sys.modules


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"rl_module: {{rl_module_spec: '{PIECE}'}}", "rl_module.rl_module_spec"),
        (f"rl_module: {{model_config: {{fcnet_kernel_initializer: {DOTTED}}}}}", "initializer"),
        (f"rl_module: {{model_config: {{fcnet_activation: {DOTTED}}}}}", "fcnet_activation"),
        (f"environment: {{env: CartPole-v1, wrappers: ['{DOTTED}']}}", "environment.wrappers"),
        (f"reporting: {{loggers: ['{DOTTED}']}}", "reporting.loggers"),
        (f"algorithm: {DOTTED}", "algorithm"),
        (f"evaluation: {{evaluation_config: {{wrappers: ['{DOTTED}']}}}}", "evaluation_config.wrappers"),
        (f"evaluation: {{evaluation_config: {{env_to_module_connector: ['{DOTTED}']}}}}", "evaluation_config.env_to"),
        (f"x: !!python/name:{DOTTED}", "could not determine a constructor"),
        (f"x: !!python/module:{NAME}", "could not determine a constructor"),
        (f"x: !!python/object:{DOTTED} {{}}", "could not determine a constructor"),
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
def test_names_that_are_never_paths(text, path, allowed):
    with pytest.raises(EpibatchError) as caught:
        PPOConfig.from_yaml(text, allow_imports=allowed).environment("CartPole-v1").build_algo()
    assert path in str(caught.value)
    assert NAME not in sys.modules


@pytest.mark.parametrize("load", [PPO.from_checkpoint, Policy.from_checkpoint])
def test_checkpoints(load, tmp_path):
    algorithm = small(env_to_module=[PIECE]).build_algo()
    path = algorithm.save_to_path(tmp_path / "saved")
    algorithm.stop()
    del sys.modules[NAME]
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert NAME not in sys.modules
    assert PIECE in str(caught.value) and "allow_imports=True" in str(caught.value)
    loaded = load(path, allow_imports=True)
    assert NAME in sys.modules
    getattr(loaded, "stop", lambda: None)()


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    "change",
    [
        f"learner=['{PIECE}']",
        f"environment.env={ENV}",
        f"environment.env_config.env_id={ENV}",
        f"callbacks.on_sample_end={PIECE}",
    ],
)
def test_the_command_line(change):
    Path("small.yaml").write_text(small().to_yaml())
    done = command("train", "small.yaml", "--set", change, "--iterations", 1)
    assert done.exit_code == 2 and "--allow-imports" in done.output, done.output
    assert NAME not in sys.modules


def test_a_run_that_is_gone_on_with():
    Path("small.yaml").write_text(small(env_to_module=[PIECE]).to_yaml())
    done = command("train", "small.yaml", "--run", "run", "--iterations", 1, "--allow-imports")
    assert done.exit_code == 0, done.output
    del sys.modules[NAME]
    for words in (("train", "--resume", "run", "--iterations", 1), ("play", "run", "--episodes", 1)):
        done = command(*words)
        assert done.exit_code == 2 and "--allow-imports" in done.output, done.output
        assert NAME not in sys.modules
    assert command("train", "--resume", "run", "--iterations", 1, "--allow-imports").exit_code == 0
