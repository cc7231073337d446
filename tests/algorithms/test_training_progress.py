from __future__ import annotations

import io

import pytest
from rich.console import Console

from epibatch.algorithms.settings import StopSettings
from epibatch.algorithms.training_progress import Progress, summary

RESULTS = {
    "env_runners": {"episode_return_mean": 21.54, "num_env_steps_sampled": 4000},
    "learners": {"default_policy": {"policy_loss": -0.01234, "vf_loss": 5.0, "entropy": 0.69, "other": 1}},
    "num_env_steps_sampled_lifetime": 8000,
    "training_iteration": 2,
    "time_this_iter_s": 0.5,
}


def test_summary():
    assert summary(RESULTS) == "return 21.5 | 8,000 steps/s | loss policy -0.0123, value 5, entropy 0.69"


@pytest.mark.parametrize("mean", [None, float("nan")])
def test_summary_before_the_first_episode_ends(mean):
    assert "no episode done yet" in summary({"env_runners": {"episode_return_mean": mean}})


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ({"num_env_steps_sampled_lifetime": 150_000}, "run | 8,000/150,000 steps | return 21.5 | "),
        ({"training_iteration": 9}, "run | 2/9 iterations | "),
        ({}, "run | 8,000 steps | "),
    ],
)
def test_plain_lines_where_there_is_no_terminal(rules, line):
    out = io.StringIO()
    with Progress(StopSettings(**rules), "run", Console(file=out, width=40)) as progress:
        progress.show(RESULTS)
    assert out.getvalue().startswith(line)
    assert out.getvalue().count("\n") == 1


def test_live_bar_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    with Progress(StopSettings(num_env_steps_sampled_lifetime=10_000), "run", console) as progress:
        progress.show(RESULTS)
        progress.say("a line")
    assert "8000/10000" in out.getvalue()
    assert "return 21.5" in out.getvalue()
    assert "a line" in out.getvalue()


def test_a_line_fits_a_narrow_terminal():
    out = io.StringIO()
    results = {**RESULTS, "evaluation": {"env_runners": {"episode_return_mean": -1234.5}}}
    rules = StopSettings(num_env_steps_sampled_lifetime=100_000_000)
    with Progress(rules, "a title that is longer than anybody reads", Console(file=out, width=200)) as progress:
        for _ in range(3):
            progress.show(results)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 and all(len(line) <= 80 and "return 21.5" in line for line in lines)


def test_what_is_left_is_at_the_speed_of_this_run(monkeypatch):
    """Two limits: 4,000 steps in 10 s leave 20 s for 8,000 more; 2 of 3 iterations in 20 s leave 10 s."""
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    out = io.StringIO()
    rules = StopSettings(num_env_steps_sampled_lifetime=12_000, training_iteration=9)
    with Progress(rules, "run", Console(file=out)) as progress:
        first = {**RESULTS, "num_env_steps_sampled_lifetime": 4000, "training_iteration": 1, "time_this_iter_s": 10.0}
        progress.show(first)
        progress.show({**first, "num_env_steps_sampled_lifetime": 8000, "training_iteration": 7})
    assert [line.rsplit(" | ", 1)[1] for line in out.getvalue().splitlines()] == ["0:10, 0:20 left", "0:20, 0:06 left"]
