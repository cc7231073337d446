"""What contradicts, is not there yet, or needs leave is noted under the setting's path; what is right is not."""

from __future__ import annotations

import pytest

from epibatch.algorithms.setting_checks import note_contradictions, note_distribution, note_import_paths
from epibatch.algorithms.settings import (
    CallbackSettings,
    EnvRunnerSettings,
    EvaluationSettings,
    Problems,
    StopSettings,
    TrainingSettings,
)


def test_other_processes_are_not_there_yet() -> None:
    problems = Problems()
    note_distribution("env_runners", EnvRunnerSettings(), problems)
    assert not problems.found
    note_distribution("env_runners", EnvRunnerSettings(num_env_runners=2), problems)
    [(path, text)] = problems.found
    assert path == "env_runners.num_env_runners" and "found 2" in text and "num_envs_per_env_runner" in text


@pytest.mark.parametrize(
    ("minibatch_size", "goal", "interval", "paths"),
    [
        (64, None, None, []),
        (65, None, None, ["training.minibatch_size"]),
        (64, 100.0, 5, []),
        (64, 100.0, None, ["stop.evaluation_return_mean"]),
    ],
)
def test_contradictions(minibatch_size: int, goal: float | None, interval: int | None, paths: list[str]) -> None:
    problems = Problems()
    sections = {
        "training": TrainingSettings(train_batch_size=64, minibatch_size=minibatch_size),
        "stop": StopSettings(evaluation_return_mean=goal),
        "evaluation": EvaluationSettings(evaluation_interval=interval),
    }
    note_contradictions(sections, problems)
    assert [path for path, _ in problems.found] == paths


@pytest.mark.parametrize(
    ("given", "allowed", "text"),
    [
        (print, False, None),
        ("builtins:print", True, None),
        ("builtins:print", False, "--allow-imports"),
        (["builtins:print", "math:pi"], True, "expected a function, found at 'math:pi'"),
        ("builtins:prnt", True, "prnt"),
    ],
)
def test_import_paths_need_leave_and_a_function(given: object, allowed: bool, text: str | None) -> None:
    problems = Problems()
    note_import_paths(CallbackSettings(on_episode_end=given), problems, allow_imports=allowed)
    if text is None:
        assert not problems.found
    else:
        [(path, found)] = problems.found
        assert path == "callbacks.on_episode_end" and text in found
