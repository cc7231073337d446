"""`epibatch train`: runs, what goes on after them, and wrong use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import gymnasium as gym
import pytest
from fixture_cases import slow
from typer.testing import CliRunner

import epibatch.cli
from epibatch.algorithms import PPOConfig
from epibatch.cli import app
from epibatch.core.registry import register_env
from epibatch.env_runner import make_multi_agent

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
env_runners: {num_envs_per_env_runner: 4}
training: {train_batch_size: 32, minibatch_size: 32, num_epochs: 1, lr: 0.001}
rl_module: {model_config: {fcnet_hiddens: [4]}}
debugging: {seed: 1}
stop: {num_env_steps_sampled_lifetime: 64}
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def rows_in(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_trains_into_a_new_folder(run, tmp_path):
    result = run("train", "small.yaml")
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("small-")
    files = {path.name for path in folder.iterdir()}
    assert files == {"metrics.jsonl", "metrics.csv", "learning_curve.png", "config.yaml", "checkpoints"}
    assert len(rows_in(folder)) == 2
    assert "finished: the limit of 64 env steps is used up" in result.output
    assert "steps/s" in result.output
    assert run("--version").output == f"epibatch {epibatch.__version__}\n"


SEVERAL = """
algorithm: ppo
environment: {env: cli_carts}
training: {train_batch_size: 48, minibatch_size: 32, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
multi_agent:
  policies: {first: {config: {lr: 0.01}}, others: }
  policy_mapping_fn: {"0": first, "*": others}
debugging: {seed: 1}
stop: {training_iteration: 2}
"""


@pytest.mark.slow
def test_several_agents_train_go_on_and_play(run, tmp_path):
    carts = make_multi_agent("CartPole-v1")
    register_env("cli_carts", lambda config: carts({"num_agents": 2}))
    (tmp_path / "carts.yaml").write_text(SEVERAL)
    result = run("train", "carts.yaml", "--run", "out", "--set", "multi_agent.policies_to_train=[first]")
    assert result.exit_code == 0, result.output
    rows = rows_in(tmp_path / "out")
    assert rows[-1]["learners/first/lr"] == 0.01
    assert "learners/others/lr" not in rows[-1]
    assert rows[-1]["env_runners/agent_episode_returns_mean/1"] > 0
    assert "out | 2/2 iterations | return" in result.output
    result = run("train", "--resume", "out", "--set", "stop.training_iteration=3")
    assert result.exit_code == 0, result.output
    result = run("play", "out", "--episodes", 2, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "mean" in result.output


PIECES = """
from epibatch.connectors.connector_v2 import ConnectorV2

class FailsLater(ConnectorV2):
    calls = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.calls += 1
        if self.calls > 1:
            raise ValueError("this is the user's mistake")
        return batch
"""


@pytest.fixture
def own_pieces(tmp_path, monkeypatch):
    """A module beside the config, which only --allow-imports finds."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "pieces_of_cli_test.py").write_text(PIECES)
    (tmp_path / "own.yaml").write_text(CONFIG + 'learner: ["pieces_of_cli_test:FailsLater"]\n')
    yield
    sys.modules.pop("pieces_of_cli_test", None)


def test_an_error_in_a_piece_saves_and_can_be_gone_on_from(run, tmp_path, own_pieces):
    result = run("train", "own.yaml", "--run", "out", "--allow-imports")
    assert result.exit_code == 3
    assert "(FailsLater):\nthis is the user's mistake\n" in result.output
    assert "pieces_of_cli_test.py" in result.output
    assert "typer" not in result.output and "algorithm.py" not in result.output
    assert "checkpoint: out/checkpoints/000001 (after 1 iterations)" in result.output
    again = run("train", "--resume", "out", "--iterations", 1, "--allow-imports")
    assert again.exit_code == 0, again.output
    assert len(rows_in(tmp_path / "out")) == 2


def test_an_environment_that_cannot_be_made(run, tmp_path):
    class Broken(gym.Env):
        def __init__(self, env_config):
            raise ZeroDivisionError("no floor")

    register_env("broken_of_cli_test", Broken)
    (tmp_path / "broken.yaml").write_text(CONFIG.replace("CartPole-v1", "broken_of_cli_test"))
    result = run("train", "broken.yaml")
    assert result.exit_code == 3
    assert result.output.startswith("Traceback (from your code on):")
    assert "ZeroDivisionError: no floor\n\nthe run could not be built" in result.output


def test_a_run_that_was_never_saved_starts_again(run, tmp_path):
    assert run("train", "small.yaml", "--run", "out").exit_code == 0
    before = rows_in(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    result = run("train", "--resume", "out", "--iterations", 1)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("out has no checkpoint: the run starts again from the beginning")
    (after,) = rows_in(tmp_path / "out")
    assert len(before) == 2 and after["env_runners/episode_return_mean"] == before[0]["env_runners/episode_return_mean"]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        slow("out/checkpoints/000001", {"000001", "000002", "000002.later", "000003.later", "best", "best.json"}),
        ("out/checkpoints/best", {"000001", "000002", "000002.later", "000003.later", "best", "best.json"}),
        slow("out", {"000002", "best", "best.json"}),
    ],
)
def test_a_run_goes_on_from_an_earlier_checkpoint_and_from_the_best_if_it_is_all_there_is(run, tmp_path, path, left):
    scored = "checkpoint_score_attribute: training_iteration, checkpoint_score_order: min"  # the first is the best
    settings = ["--set", f"checkpointing={{checkpoint_frequency: 1, num_to_keep: null, {scored}}}"]
    assert run("train", "small.yaml", "--run", "out", *settings, "--set", "stop={training_iteration: 3}").exit_code == 0
    before = rows_in(tmp_path / "out")
    for number in (1, 2, 3) if path == "out" else ():
        shutil.rmtree(tmp_path / "out" / "checkpoints" / f"{number:06d}")
    result = run("train", "--resume", path, "--iterations", 1)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("going on after iteration 1, from out/checkpoints/")
    after = rows_in(tmp_path / "out")
    assert after[0] == before[0] and [row["num_env_steps_sampled_lifetime"] for row in after] == [32, 64]
    assert len((tmp_path / "out" / "metrics.csv").read_text().splitlines()) == 3
    assert {entry.name for entry in (tmp_path / "out" / "checkpoints").iterdir()} == left


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_exact_resume_is_asked_for_by_name(run, tmp_path, exact):
    """A run of 4 iterations that saves after 2, and one of 2 that is resumed for 2 more."""
    settings = ["--set", f"checkpointing={{end_episodes: {str(exact).lower()}, checkpoint_frequency: 2}}"]
    settings += ["--set", "stop={training_iteration: 4}"]
    for words in (["whole", "--iterations", 4], ["parts", "--iterations", 2]):
        result = run("train", "small.yaml", "--run", *words, *settings)
        assert result.exit_code == 0, result.output
    assert run("train", "--resume", "parts", "--iterations", 2).exit_code == 0
    whole, parts = (
        [row["learners/default_policy/total_loss"] for row in rows_in(tmp_path / folder)]
        for folder in ("whole", "parts")
    )
    assert len(whole) == len(parts) == 4
    assert whole[:2] == parts[:2]
    assert (whole[2:] == parts[2:]) is exact


def test_settings_are_changed_from_the_command_line(run, tmp_path):
    words = ["--set", "learner.lr=1e-3", "--set", "training.num_epochs=2", "--set", "stop={training_iteration: 1}"]
    words += ["--seed", "5"]
    result = run("train", "small.yaml", "--run", "out", *words)
    assert result.exit_code == 0, result.output
    config = PPOConfig.from_yaml(tmp_path / "out" / "config.yaml")
    assert (config.lr, config.num_epochs, config.training_iteration, config.seed) == (0.001, 2, 1, 5)
    again = run("train", "--resume", "out", "--set", "stop.training_iteration=2")
    assert again.exit_code == 0, again.output
    assert PPOConfig.from_yaml(tmp_path / "out" / "config.yaml").training_iteration == 2
    assert len(rows_in(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "give either a CONFIG file or --resume RUN"),
        (["train", "small.yaml", "--resume", "x"], "give either"),
        (["train", "--resume", "x", "--seed", "3"], "leave out --run and --seed"),
        (["train", "missing.yaml"], "missing.yaml"),
        (["train", "--resume", "nowhere"], "no such folder"),
        (["train", "--resume", "."], "no config.yaml"),
        (["train", "--resume", "x/checkpoints/best"], "run folder x"),
        (["train", "small.yaml", "--iterations", "0"], "Invalid value"),
        (["train", "small.yaml", "--run", "."], "never overwritten"),
        (["train", "small.yaml", "--set", "training.lr=fast"], "error: small.yaml --set training.lr=fast"),
        (["train", "small.yaml", "--seed", "3", "--set", "trainin.gamma=1"], "did you mean 'training'"),
        (["trian"], "No such command"),
        (["play", "x", "--episodes", "9" * 30], "Invalid value"),
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
        ("algorithm: ppo", "", "add the line `algorithm: ppo`"),
        (
            "algorithm: ppo",
            "algorithm: pppo",
            "(line 2, column 12): no algorithm that is installed; did you mean 'ppo'",
        ),
        ("CartPole-v1", "CartPol-v1", "CartPol"),
        ("environment: {env: CartPole-v1}", "", "add the line `environment: {env: CartPole-v1}`"),
        ("CartPole-v1}", "CartPole-v1, env_config: {render: 1}}", "did you mean 'render_mode'"),
        ("lr: 0.001", "lr: -1}\nenv_runner: {x: 1", "these 2 settings"),
    ],
)
def test_wrong_config(run, tmp_path, old, new, message):
    (tmp_path / "wrong.yaml").write_text(CONFIG.replace(old, new))
    result = run("train", "wrong.yaml")
    assert result.exit_code == 2
    assert result.output.startswith("error: wrong.yaml")
    assert message in result.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_training_says_that_nothing_is_saved(run, tmp_path, monkeypatch, number, code):
    monkeypatch.setattr(PPOConfig, "build_algo", lambda config: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    result = run("train", "small.yaml")
    assert (result.exit_code, signal.getsignal(signal.SIGTERM)) == (code, before)
    assert result.output == "interrupted before training began; nothing is saved\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.slow
def test_a_run_goes_on_where_nobody_reads_its_lines(tmp_path):
    (tmp_path / "small.yaml").write_text(
        "algorithm: ppo\nenvironment: {env: CartPole-v1}\nstop: {training_iteration: 3}\n"
        "training: {train_batch_size: 32, minibatch_size: 32, num_epochs: 1}\n"
    )
    command = [sys.executable, "-m", "epibatch", "train", "small.yaml", "--run", "out $(x)"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0 and "standard output was closed; training goes on" in errors
    assert [path.name for path in (tmp_path / "out $(x)" / "checkpoints").iterdir()] == ["000003"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 2 and "--resume 'out $(x)'" in again.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.slow
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "epibatch", "pieces", "--short"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: writing to standard output: No space left on device\n"


def test_settings_are_listed_from_the_models(run):
    lines = run("settings").output.splitlines()
    models = PPOConfig.model.sections().items()
    assert [line.partition(":")[0] for line in lines] == [f"{part}.{name}" for part, m in models for name in m.names()]
    assert all("  " in line for line in lines), "each with what it sets"
    assert run("settings", "coeff", "--algorithm", "bc").output.startswith("training.entropy_coeff: float")
    assert "did you mean 'ppo'" in run("settings", "--algorithm", "pppo").output
    assert run("settings", "num_to_keep").output.startswith("checkpointing.num_to_keep: int | None = 2  ")
    wrong = run("settings", "num_epoch_s")
    assert wrong.exit_code == 2 and "did you mean 'num_epochs'" in wrong.output
