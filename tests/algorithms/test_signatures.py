"""Methods of configs have their settings as typed keywords: at run time, in the stubs, and in the JSON schema."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import epibatch
from epibatch.algorithms import AlgorithmConfig, PPOConfig
from epibatch.cli import app

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
        def training(self, *, speed: float = 1.0):
            return super().training(lr=speed)

    assert list(inspect.signature(Mine.training).parameters) == ["self", "speed"]
    assert Mine().training(speed=0.5).lr == 0.5
    assert "clip_param" in inspect.signature(PPOConfig().training).parameters


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
