"""docs/run-files.md lists every file of a run and every key of its results, with the right window."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig, RunFolder, TrainingRun

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "run-files.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
KEYS = {
    key: (unit, window) for key, _, unit, window in ROW.findall(PAGE.partition("## Results")[2].partition("\n## ")[0])
}
UNITS = {"iterations", "steps", "episodes", "return", "return²", "updates", "rows", "minibatches"}
UNITS |= {"seconds", "nats", "share", "number"}
SMOOTHING = 3


def flat(results, prefix=""):
    """Results by the keys of the page, without those that say nothing of an iteration."""
    rows = {}
    for key, value in results.items():
        rows |= flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return rows


@pytest.fixture(scope="module")
def iterations():
    """The rows of four iterations, and the returns and lengths of the episodes that ended in each."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .reporting(metrics_num_episodes_for_smoothing=SMOOTHING)
        .evaluation(evaluation_interval=1, evaluation_duration=2)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    rows, ended, running = [], [], {}
    sample = algorithm.env_runner.sample

    def spy(**arguments):
        episodes = sample(**arguments)
        ended.append([])
        for episode in episodes:
            total, length = running.pop(episode.id_, (0.0, 0))
            counted = total + float(np.sum(episode.get_rewards())), length + len(episode)
            if episode.is_done:
                ended[-1].append(counted)
            else:
                running[episode.id_] = counted
        return episodes

    algorithm.env_runner.sample = spy
    for _ in range(4):
        rows.append(flat(algorithm.train()))
    algorithm.stop()
    return rows, ended


def test_every_key_has_a_row(iterations):
    rows, _ = iterations
    assert sorted(KEYS) == sorted(set().union(*rows))


def test_units_and_windows_are_the_known_ones():
    assert {unit for unit, _ in KEYS.values()} <= UNITS
    assert {window for _, window in KEYS.values()} == {"iteration", "lifetime", "smoothing", "last epoch", "evaluation"}


def test_what_counts_over_the_lifetime_grows(iterations):
    rows, _ = iterations
    for key, (_, window) in KEYS.items():
        values = [row[key] for row in rows if key in row]
        if window == "lifetime":
            assert all(one < other for one, other in itertools.pairwise(values)), key


def test_smoothed_values_are_about_the_last_ended_episodes(iterations):
    rows, ended = iterations
    for number, row in enumerate(rows):
        window = np.array([episode for one in ended[: number + 1] for episode in one][-SMOOTHING:])
        for name, column in (("return", 0), ("len", 1)):
            for statistic in ("mean", "min", "max"):
                key = f"env_runners/episode_{name}_{statistic}"
                assert KEYS[key][1] == "smoothing"
                assert row[key] == pytest.approx(getattr(np, statistic)(window[:, column]))
        assert row["env_runners/num_episodes"] == len(ended[number])
        if ended[number]:
            expected = np.mean([value for value, _ in ended[number]])
            assert row["env_runners/episode_return_mean_this_iter"] == pytest.approx(expected)


def test_seconds_add_up(iterations):
    rows, _ = iterations
    for row in rows:
        parts = row["timers/sample"] + row["timers/learn"]
        assert parts == pytest.approx(row["time_this_iter_s"])
        assert 0 < row["env_runners/env_step_timer"] < row["env_runners/sample"] <= row["timers/sample"]
    assert rows[-1]["time_total_s"] == pytest.approx(sum(row["time_this_iter_s"] for row in rows))


def test_files_are_those_of_a_run(tmp_path):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=32, minibatch_size=32, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .reporting(loggers=["csv", "jsonl", "tensorboard"])
        .stopping(training_iteration=1)
    )
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(config.to_yaml())
    assert TrainingRun(config.build_algo(), folder, "all loggers").run() == 0
    table = PAGE.partition("## Files")[2].partition("\n## ")[0]
    listed = [name.rstrip("/") for name in re.findall(r"^\| `([\w./]+)` \| ", table, re.M)]
    rare = {"warnings.log", "videos"}  # there if the run warned, and if a piece recorded videos
    assert rare <= {*listed}
    assert sorted({*listed} - rare) == sorted(path.name for path in folder.path.iterdir())
    assert {"state.json", "arrays.npz", "COMPLETE"} == {
        path.name for path in (folder.path / "checkpoints/000001").iterdir()
    }
