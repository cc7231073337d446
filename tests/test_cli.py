from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import epibatch.cli
from epibatch.cli import app, first_sentence

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
env_runners: {num_envs_per_env_runner: 4}
training: {train_batch_size: 128, minibatch_size: 64, num_epochs: 1, lr: 0.001}
rl_module: {model_config: {fcnet_hiddens: [8]}}
debugging: {seed: 1}
stop: {num_env_steps_sampled_lifetime: 256}
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_version(run):
    assert run("--version").output == f"epibatch {epibatch.__version__}\n"


def test_trains_into_a_new_folder(run, tmp_path):
    result = run("train", "small.yaml")
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("small-")
    files = {path.name for path in folder.iterdir()}
    assert files == {"metrics.jsonl", "metrics.csv", "learning_curve.png", "config.yaml", "checkpoint"}
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert "finished: the limit of 256 env steps is used up" in result.output
    assert "steps/s" in result.output


def test_goal_that_is_missed(run, tmp_path):
    (tmp_path / "hard.yaml").write_text(CONFIG.replace("stop: {", "stop: {episode_return_mean: 475, "))
    result = run("train", "hard.yaml", "--run", "out")
    assert result.exit_code == 1
    assert "not solved" in result.output


def test_resume_goes_on_in_the_same_folder(run, tmp_path):
    assert run("train", "small.yaml", "--run", "out", "--iterations", 1, "--seed", 5).exit_code == 0
    assert "seed: 5" in (tmp_path / "out" / "config.yaml").read_text()
    result = run("train", "--resume", "out")
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "give either a CONFIG file or --resume RUN"),
        (["train", "small.yaml", "--resume", "x"], "give either"),
        (["train", "--resume", "x", "--seed", "3"], "leave out --run and --seed"),
        (["train", "missing.yaml"], "missing.yaml"),
        (["train", "--resume", "nowhere"], "no config.yaml and no checkpoint"),
        (["train", "small.yaml", "--iterations", "0"], "Invalid value"),
        (["train", "small.yaml", "--run", "."], "never overwritten"),
        (["trian"], "No such command"),
    ],
)
def test_wrong_use(run, words, message):
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr: 0.001", "lr: -1", "training.lr"),
        ("algorithm: ppo", "", "algorithm"),
        ("algorithm: ppo", "algorithm: pppo", "did you mean 'ppo'"),
        ("CartPole-v1", "CartPol-v1", "CartPol"),
        ("minibatch_size: 64", "minibatch_size: 256", "at most train_batch_size"),
        ("environment: {env: CartPole-v1}", "", "expected: an environment"),
    ],
)
def test_wrong_config(run, tmp_path, old, new, message):
    (tmp_path / "wrong.yaml").write_text(CONFIG.replace(old, new))
    result = run("train", "wrong.yaml")
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert message in result.output


def test_pieces_show_their_first_sentence_as_it_is(run, monkeypatch):
    monkeypatch.setattr(epibatch.cli, "first_sentence", lambda docstring: "Gives [B, T] and [bold].")
    assert "Gives [B, T] and [bold]." in run("pieces").output


def test_pieces(run):
    result = run("pieces")
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if line.strip().startswith("frame_stacking")]
    assert len(lines) == 1
    assert "epibatch" in lines[0]


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        (None, ""),
        ("One.", "One."),
        ("One\n  line. Two.", "One line."),
        ("No stop\n\nMore.", "No stop"),
        ("By A et al. 2015. B.", "By A et al. 2015."),
    ],
)
def test_first_sentence(docstring, sentence):
    assert first_sentence(docstring) == sentence


def test_help_is_fast_and_loads_no_torch():
    code = "import sys, epibatch.cli; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
