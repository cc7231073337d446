from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from epibatch.porting.module_table import RULES
from epibatch.porting.offered_names import Home, home_of, offered_names

OURS = sorted({rule.ours.removesuffix(".*") for rule in RULES})


@pytest.mark.parametrize("module", [name for name in OURS if importlib.util.find_spec(name)])
def test_offered_names_are_those_the_module_has(module):
    loaded = importlib.import_module(module)
    assert offered_names(module) == set(loaded.__all__)
    assert [name for name in offered_names(module) if not hasattr(loaded, name)] == []


def test_modules_that_are_not_there():
    assert offered_names("epibatch.connectors.agent") is None
    assert offered_names("epibatch.connectors.agent.pipeline") is None


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("ray.rllib.core", "Columns", Home("epibatch.core", "Columns")),
        ("ray.rllib.core", "columns", Home("epibatch.core", "columns", True)),
        ("ray.rllib.core", "rl_module", Home("epibatch.core", "rl_module", True)),
        ("ray.rllib.core.rl_module.rl_module", "RLModule", Home("epibatch.core.rl_module", "RLModule")),
        ("ray.rllib.core.rl_module.rl_module", "NoSuch", None),
        ("ray.rllib.utils", "numpy", Home("epibatch.core", "spaces", True)),
        ("ray.rllib.connectors", "learner", Home("epibatch.connectors", "learner", True)),
        ("ray.rllib.connectors", "agent", None),
        ("ray.tune", "register_env", Home("epibatch.core.registry", "register_env")),
        ("ray.rllib.algorithms.callbacks", "DefaultCallbacks", Home("epibatch.env_runner.callbacks", "RLlibCallback")),
        (
            "ray.rllib.env.multi_agent_env_runner",
            "MultiAgentEnvRunner",
            Home("epibatch.env_runner.multi_agent_env_runner", "MultiAgentEnvRunner"),
        ),
        ("ray.rllib.utils.replay_buffers", "MultiAgentEpisodeReplayBuffer", None),
        ("ray", "tune", None),
    ],
)
def test_homes(module, name, home):
    assert home_of(module, name) == home


def test_looking_names_up_loads_no_torch():
    code = (
        "import sys\nfrom epibatch.porting import port_source\n"
        "text = port_source('from ray.rllib.core.rl_module.rl_module import RLModule').text\n"
        "assert text == 'from epibatch.core.rl_module import RLModule', text\n"
        "print([name for name in ('torch', 'ray', 'gymnasium') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() in ("[]", "['gymnasium']")
