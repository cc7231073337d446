"""What a run keeps, shows and stops by: any of its results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from epibatch.algorithms import PPOConfig, RunFolder, TrainingRun
from epibatch.cli import app

VALUES = [3.0, 5.0, float("nan"), 4.0, 5.0, 2.0]


def config(**checkpointing) -> PPOConfig:
    def score(algorithm, result, **kwargs):
        result["mine"] = {"value": VALUES[algorithm.training_iteration - 1]}

    settings = PPOConfig().environment("CartPole-v1").training(train_batch_size=20, minibatch_size=20, num_epochs=1)
    settings.callbacks(on_train_result=score).debugging(seed=3)
    return settings.checkpointing(**{"checkpoint_score_attribute": "mine/value", **checkpointing})


def run(path: Path, settings: PPOConfig, iterations: int) -> None:
    folder = RunFolder.create(path)
    folder.write_config("algorithm: ppo\nenvironment: {env: CartPole-v1}\n")
    assert TrainingRun(settings.build_algo(), folder, "run").run(iterations) == 0


def iteration_of(path: Path) -> int:
    return int(re.search(r'"training_iteration":(\d+)', (path / "state.json").read_text())[1])


@pytest.mark.parametrize(("order", "best"), [("max", 2), ("min", 6)])
def test_the_first_best_iteration_is_kept_beside_the_newest(tmp_path, capsys, order, best):
    run(tmp_path, config(checkpoint_score_order=order, num_to_keep=1), 6)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"best", "best.json", "000006"}
    assert iteration_of(tmp_path / "checkpoints" / "best") == best
    assert f"best:       {tmp_path / 'checkpoints' / 'best'}" in capsys.readouterr().out


def test_a_resumed_run_replaces_the_best_only_by_a_better_one(tmp_path, monkeypatch):
    text = (
        config().callbacks(on_train_result=None).checkpointing(checkpoint_score_attribute="time_this_iter_s").to_yaml()
    )
    path = tmp_path / "config.yaml"
    path.write_text(text)
    first = TrainingRun.start(path, tmp_path / "run")
    first.run(1)
    best = tmp_path / "run" / "checkpoints" / "best"
    stored = tmp_path / "run" / "checkpoints" / "best.json"
    score = json.loads(stored.read_text())["score"]
    for factor, kept in ((1000.0, 1), (1000.0, 1), (1e-6, 4)):  # as if the first iteration had taken so much longer
        stored.write_text(json.dumps({"score": score * factor}))
        TrainingRun.resume(tmp_path / "run").run(1)
        assert iteration_of(best) == kept


def test_the_best_checkpoint_follows_no_link(tmp_path):
    """A run's folder from elsewhere must not choose where a checkpoint is written."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config("algorithm: ppo\nenvironment: {env: CartPole-v1}\n")
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "best").symlink_to(elsewhere)
    assert TrainingRun(config().build_algo(), folder, "run").run(1) == 3
    assert not list(elsewhere.iterdir())


def test_a_result_that_is_not_there_is_named_after_the_first_iteration(tmp_path, capsys):
    settings = config().stopping(results={"mine/valu": 9}).reporting(curve="nothing/like/it")
    run(tmp_path, settings, 2)
    printed = capsys.readouterr().out
    assert printed.count("no result 'mine/valu' yet, which stop.results mine/valu waits for; did you mean") == 1
    assert "no result 'nothing/like/it' yet, which reporting.curve waits for" in printed
    assert "checkpoint_score_attribute waits" not in printed


def test_a_result_of_evaluations_that_is_not_there_is_named_after_the_first_one(tmp_path, capsys):
    settings = config().stopping(results={"evaluation/env_runners/episode_retrun_mean": 9})
    run(tmp_path / "a", settings.evaluation(evaluation_interval=2, evaluation_duration=1), 1)
    assert "waits for" not in capsys.readouterr().out
    run(tmp_path / "b", settings, 3)
    assert capsys.readouterr().out.count("did you mean 'evaluation/env_runners/episode_return_mean'") == 1


def test_a_run_stops_by_a_result_of_its_own(tmp_path, capsys):
    run(tmp_path, config().stopping(results={"mine/value": 4.5}), 6)
    assert "solved: mine/value 5, after" in capsys.readouterr().out
    assert len(RunFolder(tmp_path).rows()) == 2


def test_the_curve_is_drawn_while_the_run_goes_on(tmp_path):
    drawn = []
    settings = config(checkpoint_frequency=1)
    look = lambda algorithm, result, **kwargs: drawn.append((tmp_path / "learning_curve.png").exists())  # noqa: E731
    run(tmp_path, settings.callbacks(on_train_result=look), 3)
    assert drawn == [False, True, True]


def test_the_best_checkpoint_is_played_by_its_name(tmp_path, capsys):
    run(tmp_path, config(checkpoint_score_attribute="training_iteration").callbacks(on_train_result=None), 2)
    with pytest.raises(SystemExit) as end:
        app(["play", str(tmp_path), "--checkpoint", "best", "--episodes", "1"])
    assert end.value.code == 0 and "checkpoints/best" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------- curves


def metrics(path: Path, seed: int, values: list[float], lr: float = 1e-3) -> str:
    """A run's folder, written by hand."""
    path.mkdir()
    text = f"algorithm: ppo\ntraining: {{lr: {lr}}}\ndebugging: {{seed: {seed}}}\n"
    (path / "config.yaml").write_text(text)
    rows = [
        {"training_iteration": i, "num_env_steps_sampled_lifetime": 100 * i, "time_total_s": i, "mine": value}
        for i, value in enumerate(values, 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def colors(path: Path) -> set[tuple[int, ...]]:
    """The colours of more than a line's edge."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    return {tuple(map(int, color)) for color, count in zip(found, counts) if count > 300}


@pytest.mark.parametrize("over", ["steps", "iterations", "seconds"])
def test_runs_of_one_config_are_a_line_with_a_band_and_other_configs_other_lines(tmp_path, capsys, over):
    seeds = [metrics(tmp_path / f"a-{seed}", seed, [seed, 2, 3 + seed]) for seed in (0, 1, 2)]
    other = metrics(tmp_path / "b", 0, [5, 5, 5], lr=2e-3)
    out = tmp_path / "curves.png"
    with pytest.raises(SystemExit) as end:
        app(["plot", *seeds, other, "--key", "mine", "--over", over, "--out", str(out)])
    assert end.value.code == 0 and capsys.readouterr().out.strip() == str(out)
    blue, orange = (31, 119, 180), (255, 127, 14)  # the first two colours of a plot
    assert {blue, orange} <= colors(out)
    assert any(
        abs(np.array(color) - (210, 228, 240)).max() < 3 for color in colors(out)
    )  # the band, at an opacity of 0.2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--key", "min"], "did you mean 'mine'"),
        (["--over", "step"], "did you mean 'steps'"),
        (["nowhere"], "no such folder"),
        (["--out", "x.jpg"], "ends in .png"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path, capsys, arguments, text):
    with pytest.raises(SystemExit) as end:
        app(["plot", metrics(tmp_path / "a", 0, [1, 2]), "--out", str(tmp_path / "x.png"), *arguments])
    assert end.value.code == 2 and text in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
