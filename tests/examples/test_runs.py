"""Every example runs for a short time from its command line; those that can learn in that time do."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_cases import slow
from typer.testing import CliRunner

from epibatch.cli import app

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

RUNS = [
    ("cartpole_ppo", "--iterations 1", lambda mean: mean > 8, "iteration   1"),
    ("own_loop", "--iterations 1 --steps-per-iteration 256", lambda mean: mean > 8, "256 steps"),
    slow("own_loop", "--iterations 6 --steps-per-iteration 1024", lambda mean: mean > 30, "1024 steps"),
    (
        "cleanrl_style",  # vector steps that only reset are not counted
        "--total-timesteps 200 --num-steps 64 --update-epochs 1",
        lambda run: run[0] > 8 and 8 * 64 - 60 < run[1] < 8 * 64,
        "global_step=",
    ),
    slow("cleanrl_style", "--total-timesteps 12000", lambda run: run[0] > 45, "global_step="),
    slow("frame_stacking", "--iterations 1", lambda means: list(means) == [1, 4], "the module sees (2, 4)"),
    slow(
        "lstm_memory",
        "--steps 100",
        lambda means: list(means) == ["with memory", "without memory"] and min(means.values()) > 8,
        "after 4",  # one iteration is 4,096 steps and a few for resets
    ),
    slow(
        "count_based_rewards",
        "--iterations 1",
        lambda means: list(means) == ["environment's rewards only", "with count-based rewards"],
        "visits of each square",
    ),
    slow("blackjack", "--steps 100 --games 100", lambda run: -0.8 < run[0] < 0.3, "of 100 greedy games"),
    slow(
        "blackjack",
        "--steps 12000 --games 2000",
        lambda run: -0.3 < run[0] < 0.1 and 12_000 <= run[1] < 12_300 + 96,  # at random -0.39, exact to 0.02
        "of 2000 greedy games",
    ),
    (
        "pendulum",
        "--steps 1700 --goal -300",
        lambda run: -2000 < run[0] < -300 and 2048 <= run[1] < 2048 + 8,
        "mean return",
    ),
    ("motion_tracking", "--iterations 2 --envs 64", lambda mean: 0.05 < mean < 0.7, "distance"),  # at random 0.5
    slow("motion_tracking", "--iterations 30 --envs 128", lambda mean: 0.05 < mean < 0.45, "distance"),
    slow("motion_tracking", "--iterations 60", lambda mean: 0.05 < mean < 0.3, "distance"),
    (
        "distillation",
        "--iterations 2 --student-iterations 2 --envs 64",
        lambda run: run[0] < 0.7 and run[1] < 0.7,
        "teacher: distance",
    ),
    slow(
        "distillation",
        "--iterations 20 --student-iterations 20 --envs 64",
        lambda run: run[0] < 0.5 and run[1] < 0.5,
        "teacher: distance",
    ),
    ("adversarial_motion", "--iterations 5 --envs 64", lambda run: 0 < run[1] < 10, "distance from the curve"),
    slow("adversarial_motion", "--iterations 80", lambda run: run[1] < 1, "distance from the curve"),  # at random 1.6
    ("many_runners", "--runners 0 --steps 2000", lambda run: run[0] > 8, "in the statistics of all runners: 2,"),
    slow("action_mask", "--steps 100", lambda run: run[0] > 1.5 and run[1] >= 100, "none illegal"),
    slow(
        "action_mask", "--steps 4000", lambda run: run[0] > 2.15 and run[1] >= 4_000, "none illegal"
    ),  # at random 1.95
    slow("point_cloud", "--steps 12000", lambda run: run > 0, "mean return"),  # at random -0.8
    slow(
        "pixel_catch",
        "--steps 100",
        lambda run: 0 <= run[0] <= 1 and 2048 <= run[1] < 2048 + 16,
        "the module sees (8, 8, 2)",
    ),
    slow(
        "two_cartpoles",
        "--steps 10000",
        lambda run: run[0] > 25 and 10_000 <= run[1] < 10_000 + 2048 + 8,  # at random: short 15, long 30
        "mean return short",
    ),
    slow(
        "tictactoe_self_play",
        "--steps 8000 --refresh -0.5",
        lambda run: run[0] > 0.6 and 8_000 <= run[1] < 8_000 + 2048 + 16,  # at random 0.44
        "refreshed",
    ),
    slow(
        "centralised_critic",
        "--steps 12000 --games 50",
        lambda run: run[0] > 0.25 and 12_000 <= run[1] < 12_000 + 1024 + 16,  # at random 0.07
        "caught of 50",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "reached", "text"), RUNS)
def test_a_short_run(name, arguments, reached, text, load_example, capsys):
    if name in ("tictactoe_self_play", "centralised_critic"):
        pytest.importorskip("pettingzoo")
    example = load_example(name)
    result = example.main(example.parse(arguments.split()))
    assert reached(result), result
    assert text in capsys.readouterr().out


def test_cartpole_stops_at_the_goal(load_example, capsys):
    example = load_example("cartpole_ppo")
    assert example.main(example.Options(iterations=3, goal=9.0)) >= 9
    assert "iteration   2" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["motion_tracking", "distillation", "adversarial_motion"])
def test_environments_of_tensors_from_a_file(name, monkeypatch, tmp_path):
    monkeypatch.chdir(EXAMPLES.parent)
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    arguments = ["train", str(EXAMPLES / f"{name}.yaml"), "--allow-imports", "--iterations", "1"]
    small = ["env_runners.num_envs_per_env_runner=16", "training.train_batch_size=96", "training.minibatch_size=48"]
    settings = [word for setting in small for word in ("--set", setting)]
    result = CliRunner().invoke(app, [*arguments, *settings, "--run", str(tmp_path / "run")])
    assert not result.exit_code, result.output
    assert "run | " in result.output and (tmp_path / "run" / "checkpoints").is_dir()
