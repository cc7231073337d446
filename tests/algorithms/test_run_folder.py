"""A run's folder: its rows, its checkpoints whatever happened to them, the best one, and curves."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image
from typer.testing import CliRunner

from epibatch.algorithms import PPO, PPOConfig, RunFolder, TrainingRun
from epibatch.cli import app
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError, StorageError
from epibatch.learner import PPOLoss
from fixture_configs import cart_pole


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path)


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_used_folder_is_never_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"a new or an empty folder\n.*never overwritten\n.*--resume"):
        RunFolder.create(tmp_path)
    with pytest.raises(ConfigError, match="run folder"):
        RunFolder.create(tmp_path / "notes.txt")


def test_a_run_that_was_killed_while_it_wrote_its_config_can_begin_again(tmp_path):
    (tmp_path / ".config.yaml.0123456789abcdef.writing").write_text("algor")
    (tmp_path / ".lock").write_text("process 1 on another")
    folder = RunFolder.create(tmp_path)
    folder.lock(new=True)
    folder.write_config("algorithm: ppo\n")
    folder.unlock()
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_opening_needs_a_config(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        RunFolder.open_existing(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"):
        RunFolder.open_existing(tmp_path)
    (tmp_path / "COMPLETE").write_text("")
    with pytest.raises(CheckpointError, match="two above"):
        RunFolder.open_existing(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    assert RunFolder.open_existing(tmp_path).path == tmp_path


def test_a_full_disk_is_a_named_error_and_keeps_what_was_there(folder, monkeypatch):
    folder.write_config("a: 1\n")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"writing .*config.yaml\n(.|\n)*No space left"):
        folder.write_config("a: 2\n")
    with pytest.raises(StorageError, match=r"writing .*learning_curve.png\n(.|\n)*No space left"):
        folder.draw_learning_curve("title")
    assert folder.config_path.read_text() == "a: 1\n"


# ---------------------------------------------------------------------------------------------------- rows


def row(number, **values):
    counts = {"training_iteration": number, "num_env_steps_sampled_lifetime": 32 * number, "time_total_s": 0.5}
    return json.dumps({**counts, **values}).encode() + b"\n"


def iterations_of(rows):
    return [row["training_iteration"] for row in rows]


@pytest.mark.parametrize("turned", [False, True])
def test_last_results_are_nested_again(folder, turned):
    """Also a value beside values below it."""
    assert folder.last_results() is None and folder.rows_until(5) == []
    flat = {"a/loss": 1.0, "a/loss/policy": 2.0, "a/loss/policy/mean": 3.0, "a/b/c": 4, "text": "x"}
    folder.jsonl_path.write_bytes(row(1) + row(2, **dict(reversed(flat.items()) if turned else flat)))
    counts = {"training_iteration": 2, "num_env_steps_sampled_lifetime": 64, "time_total_s": 0.5}
    nested = {"loss": 1.0, "loss/policy": 2.0, "loss/policy/mean": 3.0, "b": {"c": 4}}
    assert folder.last_results() == {**counts, "a": nested, "text": "x"}


def test_rows_up_to_a_checkpoint(folder):
    folder.jsonl_path.write_bytes(row(1) + row(2) + row(3) + b'{"training_iteration": 4, "half')
    assert iterations_of(folder.rows()) == [1, 2, 3] and iterations_of(folder.rows_until(2)) == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\x00",
        b"\xff{",
        b"[]",
        b"5",
        b'{"training_iteration": 2}',
        row(2, training_iteration=None).strip(),
        row(2, training_iteration=True).strip(),
        row(2, num_env_steps_sampled_lifetime="64").strip(),
        row(2, time_total_s=None).strip(),
        b"[" * 99999,
    ],
    ids=lambda line: repr(line[:30]),
)
def test_damaged_lines_are_left_out_and_counted(folder, caplog, line):
    folder.jsonl_path.write_bytes(row(1) + line + b"\n" + row(2) + line + b"\n")
    with caplog.at_level(logging.WARNING, "epibatch"):
        assert iterations_of(folder.rows_until(9)) == [1, 2]
    assert "metrics.jsonl: 2 damaged lines are left out, the first is line 2" in caplog.text


# --------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run's folder with the checkpoints 2, 9 and 10, of an algorithm that trained 1, 2 and 3 iterations by then."""
    folder, algorithm = tmp_path_factory.mktemp("trained") / "run", cart_pole().build_algo()
    for number in (2, 9, 10):
        algorithm.train()
        algorithm.save_to_path(folder / "checkpoints" / f"{number:06d}")
    algorithm.stop()
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def iterations_loaded(path):
    algorithm = PPO.from_checkpoint(path)
    algorithm.stop()
    return algorithm.training_iteration


def truncate(folder):
    (folder / "arrays.npz").write_bytes((folder / "arrays.npz").read_bytes()[:-5])


def flip_a_bit(folder):
    content = bytearray((folder / "state.json").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "state.json").write_bytes(bytes(content))


def half_copied(folder):
    (folder / "COMPLETE").unlink()
    (folder / "arrays.npz").unlink()


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def test_numbers_are_iterations(run):
    checkpoints = RunFolder(run).checkpoints
    assert checkpoints.iterations() == [10, 9, 2]
    assert checkpoints.path_of(9) == run / "checkpoints" / "000009"
    (run / "checkpoints" / "000011").write_text("a file")
    (run / "checkpoints" / ".000012.saving-abc").mkdir()
    assert checkpoints.iterations() == [10, 9, 2]
    save_state(checkpoints.path_of(1_000_000), {})
    checkpoints.path_of(11_000_000).with_name(".11000000.previous").mkdir()
    assert checkpoints.iterations() == [11_000_000, 1_000_000, 10, 9, 2]
    assert RunFolder(run / "nowhere").checkpoints.iterations() == []


@pytest.mark.parametrize("name", ["12", "0000012", ".000012", "000012.previous", "000012.copy", "٠٠٠٠١٢"])
def test_folders_with_other_names_are_not_counted(run, name, caplog):
    """Pruning by them would keep none of the real ones."""
    own = run / "checkpoints" / name
    own.mkdir()
    checkpoints = RunFolder(run).checkpoints
    checkpoints.prune(1)
    assert checkpoints.iterations() == [10] and own.is_dir()
    assert checkpoints.newest() == checkpoints.path_of(10) and not caplog.records


@pytest.mark.parametrize(
    ("path", "iterations"), [("", 3), ("checkpoints", 3), ("checkpoints/000010", 3), ("checkpoints/000002", 1)]
)
def test_a_runs_folder_means_its_newest_checkpoint_and_a_named_one_is_taken(run, path, iterations):
    assert iterations_loaded(run / path) == iterations_loaded(str(run / path)) == iterations


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate, "arrays.npz has"),
        (flip_a_bit, "state.json was changed"),
        (half_copied, "no file"),
        (emptied, "no file"),
    ],
)
def test_damaged_ones_are_passed_over_and_named_and_refused_by_name(run, caplog, damage, why):
    damage(run / "checkpoints" / "000010")
    with caplog.at_level(logging.WARNING, "epibatch"):
        assert iterations_loaded(run) == 2
    (message,) = caplog.messages
    assert str(run / "checkpoints" / "000010") in message and why in message
    assert f"instead:  {run / 'checkpoints' / '000009'} is used" in message
    with pytest.raises(CheckpointError, match=why):
        iterations_loaded(run / "checkpoints" / "000010")


def test_all_damaged_or_none_at_all_is_an_error(run, tmp_path):
    for iteration in (2, 9, 10):
        truncate(run / "checkpoints" / f"{iteration:06d}")
    with pytest.raises(CheckpointError, match=r"000010(.|\n)*000009(.|\n)*000002(.|\n)*restore one from a copy"):
        iterations_loaded(run)
    (tmp_path / "config.yaml").write_text("algorithm: ppo\n")
    with pytest.raises(CheckpointError, match=r"found: +none"):
        iterations_loaded(tmp_path)


def test_a_save_that_was_killed_while_it_replaced_one(run):
    """Between its two renames the old checkpoint has another name."""
    (run / "checkpoints" / "000010").rename(run / "checkpoints" / ".000010.previous")
    assert iterations_loaded(run) == 3
    assert RunFolder(run).checkpoints.newest() == run / "checkpoints" / "000010"


@pytest.mark.parametrize(("keep", "left"), [(1, [10]), (2, [10, 9]), (3, [10, 9, 2]), (5, [10, 9, 2])])
def test_the_oldest_go(run, keep, left):
    checkpoints = RunFolder(run).checkpoints
    checkpoints.prune(None)
    assert checkpoints.iterations() == [10, 9, 2]
    checkpoints.prune(keep)
    assert checkpoints.iterations() == left


def test_going_on_clears_what_killed_saves_left(run):
    folder, checkpoints = run / "checkpoints", RunFolder(run).checkpoints
    (folder / ".000011.saving-abc").mkdir()
    truncate(folder / "000010")
    (folder / "000010.damaged").mkdir()
    assert checkpoints.discard_later(9) == [folder / "000010.damaged-1"]
    left = ["000002", "000009", "000010.damaged", "000010.damaged-1"]
    assert sorted(entry.name for entry in folder.iterdir()) == left
    assert checkpoints.iterations() == [9, 2]
    assert RunFolder(folder / "nowhere").checkpoints.discard_later(0) == []


# ------------------------------------------------------------------------------------------- any result


VALUES = [3.0, 5.0, float("nan"), 4.0, 5.0, 2.0]


def scored(**checkpointing) -> PPOConfig:
    def score(algorithm, result, **kwargs):
        result["mine"] = {"value": VALUES[algorithm.training_iteration - 1]}

    settings = cart_pole(train_batch_size=20, minibatch_size=20).callbacks(on_train_result=score)
    return settings.checkpointing(**{"checkpoint_score_attribute": "mine/value", **checkpointing})


def train(path: Path, settings: PPOConfig, iterations: int, code: int = 0) -> None:
    folder = RunFolder.create(path)
    folder.write_config("algorithm: ppo\nenvironment: {env: CartPole-v1}\n")
    assert TrainingRun(settings.build_algo(), folder, "run").run(iterations) == code


def iteration_of(path: Path) -> int:
    return load_state(path)["state"]["counters"]["training_iteration"]


@pytest.mark.parametrize(("order", "best"), [("max", 2), ("min", 6)])
def test_the_first_best_iteration_is_kept_beside_the_newest(tmp_path, capsys, order, best):
    train(tmp_path, scored(checkpoint_score_order=order, num_to_keep=1), 6)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"best", "best.json", "000006"}
    assert iteration_of(tmp_path / "checkpoints" / "best") == best
    assert f"best:       {tmp_path / 'checkpoints' / 'best'}" in capsys.readouterr().out


def test_a_resumed_run_replaces_the_best_only_by_a_better_one(tmp_path):
    settings = scored().callbacks(on_train_result=None)
    path, run = tmp_path / "config.yaml", tmp_path / "checkpoints" / "run"  # a user's folder of that name
    path.write_text(settings.checkpointing(checkpoint_score_attribute="time_this_iter_s").to_yaml())
    TrainingRun.start(path, run).run(1)
    best = run / "checkpoints" / "best"
    stored = run / "checkpoints" / "best.json"
    score = json.loads(stored.read_text())["score"]
    for factor, kept in ((1000.0, 1), (1e-6, 3)):  # as if the first iteration had taken so much longer
        stored.write_text(json.dumps({"score": score * factor}))
        TrainingRun.resume(run).run(1)
        assert iteration_of(best) == kept
    played = command("play", run, "--checkpoint", "best", "--episodes", 1)
    assert played.exit_code == 0 and "checkpoints/best" in "".join(played.output.split()), played.output


def test_the_best_checkpoint_follows_no_link(tmp_path):
    """A run's folder from elsewhere must not choose where a checkpoint is written."""
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    folder = RunFolder.create(run)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best").symlink_to(elsewhere)
    assert TrainingRun(scored().build_algo(), folder, "run").run(1) == 3
    assert not list(elsewhere.iterdir())


def test_results_that_are_not_there_are_named_after_the_first_of_their_kind(tmp_path, capsys):
    waiting = {"mine/valu": 9, "evaluation/env_runners/episode_retrun_mean": 9}
    settings = scored().stopping(results=waiting).reporting(curve="nothing/like/it")
    train(tmp_path / "a", settings.evaluation(evaluation_interval=2, evaluation_duration=1), 1)
    printed = capsys.readouterr().out
    assert printed.count("no result 'mine/valu' yet, which stop.results mine/valu waits for; did you mean") == 1
    assert "no result 'nothing/like/it' yet, which reporting.curve waits for" in printed
    assert "checkpoint_score_attribute waits" not in printed and "evaluation" not in printed
    train(tmp_path / "b", settings, 3)
    printed = capsys.readouterr().out
    assert printed.count("did you mean 'evaluation/env_runners/episode_return_mean'") == 1
    assert printed.count("no result 'mine/valu' yet") == 1


def test_a_run_stops_by_a_result_of_its_own_and_draws_on_the_way(tmp_path, capsys):
    drawn = []

    def look(algorithm, result, **kwargs):
        drawn.append((tmp_path / "learning_curve.png").exists())
        result["mine"] = {"value": VALUES[algorithm.training_iteration - 1]}

    train(
        tmp_path,
        scored(checkpoint_frequency=1).callbacks(on_train_result=look).stopping(results={"mine/value": 4.5}),
        6,
    )
    assert "solved: mine/value 5, after" in capsys.readouterr().out
    assert len(RunFolder(tmp_path).rows()) == 2 and drawn == [False, True]


# -------------------------------------------------------------------------------------------------- curves


def test_the_learning_curve_shows_returns_evaluations_and_the_goal(folder, monkeypatch):
    assert folder.draw_learning_curve("CartPole").read_bytes().startswith(b"\x89PNG"), "without a row"
    drawn, means, measured = {}, [10.0, None, 30.0], [None, 20.0, 40.0]
    keys = ("env_runners/episode_return_mean", "evaluation/env_runners/episode_return_mean")
    rows = [row(i, **dict(zip(keys, pair))) for i, pair in enumerate(zip(means, measured), 1)]
    folder.jsonl_path.write_bytes(b"".join(rows))
    close = pyplot.close

    def look(figure):
        drawn.update({line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines})
        close(figure)

    monkeypatch.setattr(pyplot, "close", look)
    assert folder.draw_learning_curve("CartPole", goal=475).read_bytes().startswith(b"\x89PNG")
    assert drawn["evaluation"] == [20.0, 40.0] and drawn["last 100 episodes"] == [10.0, 30.0]
    assert drawn["goal 475"] == [475, 475]


class OwnLoss(PPOLoss):
    """A class that no config file holds."""


def metrics(path: Path, seed: int, values: list[float], lr: float = 1e-3) -> Path:
    """A run's folder, written by hand."""
    path.mkdir()
    text = f"algorithm: ppo\ntraining: {{lr: {lr}}}\ndebugging: {{seed: {seed}}}\n"
    (path / "config.yaml").write_text(text)
    RunFolder(path).jsonl_path.write_bytes(b"".join(row(i, mine=value) for i, value in enumerate(values, 1)))
    return path


def ticks_of(monkeypatch) -> list[str]:
    """The labels of the horizontal axis of the pictures that are drawn from here on."""
    labels: list[str] = []
    close = pyplot.close
    texts = lambda figure: [label.get_text() for label in figure.axes[0].get_xticklabels()]  # noqa: E731
    monkeypatch.setattr(pyplot, "close", lambda figure: (labels.extend(texts(figure)), close(figure)))
    return labels


def test_a_run_with_code_in_its_config_is_drawn_and_cannot_be_resumed(tmp_path, monkeypatch):
    """A run that was made in Python; its few iterations have whole numbers."""
    settings = cart_pole(train_batch_size=20, minibatch_size=20, loss=OwnLoss).stopping(training_iteration=4)
    folder = RunFolder.create(tmp_path / "own")
    assert TrainingRun(settings.build_algo(), folder, "own").run() == 0
    assert not folder.config_path.exists()
    labels = ticks_of(monkeypatch)
    other = metrics(tmp_path / "a", 0, [1, 2])
    loss = "learners/default_policy/total_loss"
    done = command("plot", folder.path, other, "--key", loss, "--over", "iterations", "--out", tmp_path / "x.png")
    assert done.exit_code == 0 and (tmp_path / "x.png").exists(), done.output
    assert {"1", "2", "3", "4"} <= set(labels) and len(set(labels)) == len(labels)
    done = command("train", "--resume", folder.path)
    assert done.exit_code == 2 and "a class or a function" in done.output and "restore_from_path(" in done.output


def colors(path: Path) -> set[tuple[int, ...]]:
    """The colours of more than a line's edge."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    return {tuple(map(int, color)) for color, count in zip(found, counts) if count > 300}


@pytest.mark.slow
def test_runs_of_one_config_are_a_line_with_a_band_and_other_configs_other_lines(tmp_path):
    seeds = [metrics(tmp_path / f"a-{seed}", seed, [seed, 2, 3 + seed]) for seed in (0, 1, 2)]
    other = metrics(tmp_path / "b", 0, [5, 5, 5], lr=2e-3)
    out = tmp_path / "curves.png"
    for over in ("steps", "iterations"):
        done = command("plot", *seeds, other, "--key", "mine", "--over", over, "--out", out)
        assert done.exit_code == 0 and done.output.strip() == str(out)
        blue, orange = (31, 119, 180), (255, 127, 14)  # the first two colours of a plot
        assert {blue, orange} <= colors(out)
        band = np.array((210, 228, 240))  # blue at an opacity of 0.2
        assert any(abs(np.array(color) - band).max() < 3 for color in colors(out))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--key", "min"], "did you mean 'mine'"),
        (["--over", "step"], "did you mean 'steps'"),
        (["nowhere"], "no such folder"),
        (["--out", "x.jpg"], "ends in .png"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path, arguments, text):
    done = command("plot", metrics(tmp_path / "a", 0, [1, 2]), "--out", tmp_path / "x.png", *arguments)
    assert done.exit_code == 2 and text in done.output
    assert not (tmp_path / "x.png").exists()


def test_without_the_extra_a_run_has_no_curve_and_says_so(folder, monkeypatch, capsys):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32, num_epochs=1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what importing it then raises is ImportError
    assert TrainingRun(config.build_algo(), folder, "a run").run(iterations=2) == 0
    assert "curve:      not drawn; pip install 'epibatch[plot]'" in capsys.readouterr().out
    assert not folder.curve_path.exists()
    assert len(list(folder.rows())) == 2
