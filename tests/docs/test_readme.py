"""The README is short, each of its blocks runs by itself, and its batch is the batch that a loop makes by hand."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.connectors import learner

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
LARGEST = 8 * 1024
PYTHON = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
(YAML,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PRINTED = re.search(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]


def run(source, monkeypatch):
    """Run a block in a namespace of its own; returns its names."""
    module = types.ModuleType("docs_page")  # as for the pages, which register the same names
    monkeypatch.setitem(sys.modules, "docs_page", module)  # dataclasses look their module up
    torch.manual_seed(0)
    exec(compile(source, "README.md", "exec"), module.__dict__)
    return module.__dict__


def test_it_is_read_in_a_minute():
    assert len(README.encode()) <= LARGEST


@pytest.mark.parametrize("source", PYTHON, ids=range(len(PYTHON)))
def test_each_block_runs_by_itself(source, monkeypatch):
    run(source, monkeypatch)


def test_the_first_block_prints_these_columns(monkeypatch, capsys):
    run(PYTHON[0], monkeypatch)
    without_counts = [re.sub(r"\(\d+,", "(B,", text) for text in (PRINTED, capsys.readouterr().out)]
    assert without_counts[0] == without_counts[1]  # how many sequences there are depends on the processor


@pytest.mark.slow
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
    assert len(rows) >= 3
    for name, _, *figures in rows:
        assert figures == [figure.split(" (")[0] for figure in measured[name][2:5]], name


def by_hand(module, chunks, T=20, gamma=0.99, lambda_=0.95):
    starts = [(c, t) for c in chunks for t in range(0, len(c["obs"]), T)]  # obs has one row more, to bootstrap from
    batch = {"obs": pad_sequence([c["obs"][t : t + T] for c, t in starts], batch_first=True)}
    batch["state_in"] = {k: torch.stack([c[k][t] for c, t in starts]) for k in ("h", "c")}
    values, row = module.compute_values(batch).detach(), 0
    batch["advantages"], batch["loss_mask"] = torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool)
    for c in chunks:
        n, advantage, v = len(c["rewards"]), 0.0, values[row:].flatten()
        for t in reversed(range(n)):
            next_value = 0.0 if c["terminated"] and t == n - 1 else v[t + 1]
            advantage = c["rewards"][t] + gamma * next_value - v[t] + gamma * lambda_ * advantage
            batch["advantages"][row + t // T, t % T], batch["loss_mask"][row + t // T, t % T] = advantage, True
        row += n // T + 1
    return batch


def as_chunk(episode, module):
    """An episode as the block by hand takes it: tensors, and the state before each step."""
    state = episode.get_extra_model_outputs("state_out")
    first = episode.get_extra_model_outputs("state_out", -1, neg_index_as_lookback=True) if episode.t_started else None
    first = first or module.get_initial_state()
    states = {key: torch.cat([torch.as_tensor(first[key])[None], torch.as_tensor(state[key])]) for key in state}
    return {
        "obs": torch.as_tensor(episode.get_observations()),
        "rewards": episode.get_rewards().tolist(),
        "terminated": episode.is_terminated,
        **states,
    }


def test_the_batch_is_the_one_made_by_hand(monkeypatch):
    names = run(PYTHON[0], monkeypatch)
    module, pipeline = names["runner"].module, learner.default_pipeline(gamma=0.99, standardize_advantages=False)
    episodes = names["episodes"] + names["runner"].sample(num_timesteps=400)  # some go on from a cut
    assert any(episode.t_started for episode in episodes)
    batch = pipeline(rl_module=module, batch={}, episodes=episodes)
    hand = by_hand(module, [as_chunk(episode, module) for episode in episodes])
    mask = hand["loss_mask"]
    assert torch.equal(batch["obs"], hand["obs"]) and torch.equal(batch["loss_mask"], mask)
    assert all(torch.equal(batch["state_in"][key], hand["state_in"][key]) for key in ("h", "c"))
    torch.testing.assert_close(batch["advantages"][mask], hand["advantages"][mask], rtol=1e-4, atol=1e-4)
