"""The README is short, each of its blocks runs by itself, and the batch made by hand is the batch of the pipeline."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from epibatch.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
LARGEST = 8 * 1024
PYTHON = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
(YAML,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
BY_HAND, WITH_PIPELINES = PYTHON[:2]


def run(source, monkeypatch):
    """Run a block in a namespace of its own; returns its names."""
    module = types.ModuleType("readme_block")
    monkeypatch.setitem(sys.modules, "readme_block", module)  # dataclasses look their module up
    torch.manual_seed(0)
    exec(compile(source, "README.md", "exec"), module.__dict__)
    return module.__dict__


def test_it_is_read_in_a_minute():
    assert len(README.encode()) <= LARGEST


@pytest.mark.parametrize("source", PYTHON, ids=range(len(PYTHON)))
def test_each_block_runs_by_itself(source, monkeypatch):
    run(source, monkeypatch)


def test_the_yaml_file_trains_and_plays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(YAML.splitlines()) == 1 + 6  # its name, and the six lines
    Path("cartpole.yaml").write_text(YAML, encoding="utf-8")
    for command in re.findall(r"^    epibatch ((?:train|play) [^#\n]*)", README, re.MULTILINE):
        short = ["--iterations", "1"] if command.startswith("train") else ["--episodes", "1"]
        result = CliRunner().invoke(app, [*command.split(), *short])
        assert result.exit_code == 0, result.output
    assert Path("my_run/learning_curve.png").exists()


def test_targets_of_make_exist():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"^    make ([\w-]+)", README, re.MULTILINE)
    assert named and all(f"\n{target}:" in makefile for target in named)


def cells(line):
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def test_speed_rows_are_those_of_the_page():
    page = (REPOSITORY / "docs/benchmarks.md").read_text(encoding="utf-8")
    measured = {row[0]: row for row in map(cells, page.splitlines()) if len(row) > 5}
    rows = [cells(line) for line in README.splitlines() if re.match(r"\| [A-Z]\d", line)]
    assert len(rows) == 5
    for name, _, *figures in rows:
        assert figures == [figure.split(" (")[0] for figure in measured[name][2:5]], name


def as_chunk(episode, module):
    """An episode as the block by hand takes it: tensors, and the state before each step."""
    first, later = module.get_initial_state(), episode.get_extra_model_outputs("state_out")
    states = {key: torch.cat([torch.as_tensor(first[key])[None], torch.as_tensor(later[key])]) for key in first}
    return {
        "obs": torch.as_tensor(episode.get_observations()),
        "rewards": episode.get_rewards().tolist(),
        "terminated": episode.is_terminated,
        **states,
    }


def test_the_batch_by_hand_is_the_batch_of_the_pipeline(monkeypatch):
    by_hand = run(BY_HAND, monkeypatch)["by_hand"]
    names = run(WITH_PIPELINES, monkeypatch)
    module, pipeline, first = names["module"], names["pipeline"], names["episode"]
    rng = np.random.default_rng(0)
    for length, ends in ((19, "terminated"), (20, "truncated"), (41, "terminated"), (60, "")):
        episode = type(first)()
        episode.add_env_reset(rng.normal(size=4).astype(np.float32))
        for step in range(length):
            end = {ends: True} if ends and step == length - 1 else {}
            state = {key: rng.normal(size=np.shape(row)).astype(np.float32) for key, row in first_state(first).items()}
            outputs = {"state_out": state, "action_logp": 0.0}
            episode.add_env_step(
                rng.normal(size=4).astype(np.float32), 0, rng.normal(), extra_model_outputs=outputs, **end
            )
        batch = pipeline(rl_module=module, batch={}, episodes=[episode])
        hand = by_hand(module, [as_chunk(episode, module)])
        mask, raw = hand["loss_mask"], hand["advantages"]
        assert torch.equal(batch["obs"], hand["obs"]) and torch.equal(batch["loss_mask"], mask)
        assert all(torch.equal(batch["state_in"][key], hand["state_in"][key]) for key in ("h", "c"))
        torch.testing.assert_close(batch["advantages"][mask], raw[mask], rtol=1e-4, atol=1e-4)


def first_state(episode):
    """The state that the module gave at an episode's first step."""
    return {key: rows[0] for key, rows in episode.get_extra_model_outputs("state_out").items()}
