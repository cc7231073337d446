"""docs/configuration.md lists every setting of every section, in order, with its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from epibatch.algorithms import APPOConfig, CQLConfig, DQNConfig, IMPALAConfig, IQLConfig, MARWILConfig, SACConfig
from epibatch.algorithms.config.pipelines import PIPELINES
from epibatch.algorithms.config.settings import TrainingSettings
from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.rl_module import DefaultModelConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS = PPOConfig.model.sections()
HOOKS = [hook.setting for hook in PIPELINES.values()]
ROW = re.compile(r"^\| `([\w./-]+)` \| (.*?) \| (.*) \|$", re.MULTILINE)


def table_below(line):
    """The rows of the first table below a line of the page: {name: (second cell, last cell)}."""
    rest = PAGE.partition(f"\n{line}\n")[2]
    assert rest, line
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE).group()
    return {name: (second, last) for name, second, last in ROW.findall(table)}


def value_of(cell):
    """A default as the page spells it: `none`, or YAML in backticks."""
    return None if cell == "none" else YAML(typ="safe").load(cell.strip("`"))


def same(found, expected):
    return (float(found) if isinstance(expected, float) else found) == expected


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_and_their_defaults(section):
    model = SECTIONS[section]
    table = table_below(f"### {section}")
    assert list(table) == [name for name in model.names() if name not in HOOKS]
    wrong = [name for name, (cell, _) in table.items() if not same(value_of(cell), model.default_of(name))]
    assert wrong == []


@pytest.mark.parametrize(
    ("heading", "config", "base"),
    [
        ("IMPALA", IMPALAConfig, None),
        ("APPO", APPOConfig, IMPALAConfig),
        ("DQN", DQNConfig, None),
        ("SAC", SACConfig, DQNConfig),
        ("MARWIL", MARWILConfig, None),
        ("CQL", CQLConfig, SACConfig),
        ("IQL", IQLConfig, SACConfig),
    ],
)
def test_settings_that_algorithms_have_beside_others(heading, config, base):
    model = config.model.sections()["training"]
    others = TrainingSettings if base is None else base.model.sections()["training"]
    known = {name: others.default_of(name) for name in others.names()}
    own = {n: model.default_of(n) for n in model.names() if n not in known or known[n] != model.default_of(n)}
    table = table_below(f"#### {heading}")
    assert list(table) == list(own)
    assert [name for name, (cell, _) in table.items() if not same(value_of(cell), own[name])] == []


def test_second_spellings_are_mentioned():
    for section, model in SECTIONS.items():
        table = table_below(f"### {section}")
        for spelling in set(model.spellings()) - set(model.names()):
            assert f"also `{spelling}`" in table[model.first_spelling(spelling)][1]


def test_settings_of_the_default_network():
    table = {name: value_of(cell) for name, (cell, _) in table_below("### rl_module").items()}
    rest = PAGE.partition("| in `model_config` |")[2].partition("\n\n")[0]
    table = {name: value_of(cell) for name, cell, _ in ROW.findall(rest)}
    assert table == dataclasses.asdict(DefaultModelConfig())


def test_sections_and_pipelines_are_all_there():
    headings = re.findall(r"^### (\w+)$", PAGE.partition("## Sections")[2].partition("\n## ")[0], re.MULTILINE)
    assert headings == list(SECTIONS)
    assert all(f"`{name}`" in PAGE for hook in PIPELINES.values() for name in (hook.name, hook.setting))


def test_example_files_are_configs():
    examples = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for text in examples:
        PPOConfig.from_yaml(text)


def test_exit_codes_are_those_of_the_command():
    from epibatch.algorithms.run import training_run
    from epibatch.cli import WRONG_USE

    table = PAGE.partition("### Exit codes")[2].partition("\n### ")[0]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \| ", table, re.M)]
    signals = [128 + number for number in training_run._SIGNALS]
    assert codes == [0, training_run.GOAL_MISSED, WRONG_USE, training_run.FAILED, *signals]
