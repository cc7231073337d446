from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from epibatch.porting import module_here, port_source
from epibatch.porting.rllib_names import MOVED_NAMES, RULES, offered_names

OURS = sorted({ours.removesuffix(".*") for ours in RULES.values()})


def test_modules_are_there():
    assert [module for module in OURS if importlib.util.find_spec(module) is None] == []


@pytest.mark.parametrize("module", OURS)
def test_names_that_imports_are_changed_to_are_in_the_module(module):
    loaded = importlib.import_module(module)
    assert offered_names(module) == set(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


def test_moved_names_are_where_the_table_says():
    for module, name in MOVED_NAMES.values():
        assert hasattr(importlib.import_module(module), name), (module, name)


@pytest.mark.parametrize("theirs", RULES)
def test_no_rule_hides_another(theirs):
    base, ours = theirs.removesuffix(".*"), RULES[theirs].removesuffix(".*")
    assert module_here(base) == ours
    if theirs.endswith(".*"):
        assert module_here(f"{base}.some.leaf") == (f"{ours}.some.leaf" if RULES[theirs].endswith(".*") else ours)


@pytest.mark.parametrize(
    "stranger",
    ["ray", "ray.rllib", "ray.rllib.policy", "ray.rllib.corex", "ray.rllib.core.columns.x", "ray.tune", "os", "rayx"],
)
def test_modules_without_a_rule(stranger):
    assert module_here(stranger) is None


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("ray.rllib.policy.sample_batch", "SampleBatch", "old API stack"),
        ("ray.rllib.utils.replay_buffers", "ReservoirReplayBuffer", "replay buffers of the old API stack"),
        ("ray.rllib.offline", "JsonReader", "offline data"),
        ("ray.rllib.utils.framework", "try_import_tf", "TensorFlow"),
        ("ray.rllib.algorithms.dreamerv3", "DreamerV3Config", "docs/algorithms.md"),
        ("ray.rllib.algorithms.cql", "CQLConfigs", "the nearest is CQLConfig"),
        ("ray.rllib.algorithms.ppo.ppo_catalog", "PPOCatalog", "write an RLModule"),
        ("ray.rllib.utils.test_utils", "check", "assert_allclose"),
        ("ray.tune", "Tuner", "algo.train"),
        ("ray", "init", "no cluster"),
        ("ray.rllib.env.multi_agent_env", "MultiAgentEnvs", "the nearest is MultiAgentEnv"),
        ("ray.rllib.core", "COMPONENT_RL_MODULES", "no such name in epibatch.core"),
        ("ray.rllib.core", "Colums", "the nearest is Columns"),
    ],
)
def test_reasons(module, name, said):
    (left,) = port_source(f"from {module} import {name}\n{name}").leftovers
    assert left.name == f"{module}.{name}" and said in left.reason


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("", "EpisodeReplayBuffer"),
        ("", "PrioritizedEpisodeReplayBuffer"),
        (".episode_replay_buffer", "EpisodeReplayBuffer"),
        (".prioritized_episode_buffer", "PrioritizedEpisodeReplayBuffer"),
    ],
)
def test_replay_buffers(module, name):
    ported = port_source(f"from ray.rllib.utils.replay_buffers{module} import {name}\n{name}")
    assert ported.text == f"from epibatch.episodes.replay import {name}\n{name}" and not ported.leftovers


def test_porting_loads_no_torch():
    code = (
        "import sys\nfrom epibatch.porting import port_source\n"
        "text = port_source('from ray.rllib.core.rl_module.rl_module import RLModule').text\n"
        "assert text == 'from epibatch.core.rl_module import RLModule', text\n"
        "print([name for name in ('torch', 'ray', 'gymnasium') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() in ("[]", "['gymnasium']")
