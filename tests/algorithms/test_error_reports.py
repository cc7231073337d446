from __future__ import annotations

import gymnasium as gym

from epibatch.algorithms.error_reports import error_report
from epibatch.core.errors import ConfigError, RunnerError
from epibatch.core.registry import env_creator


def caught(function):
    try:
        function()
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame of `caught`, which is this file's
        return error
    raise AssertionError("no error")


def users_mistake():
    raise ValueError("boom")


def test_begins_with_the_users_code():
    def framework():
        users_mistake()

    exec("def call(): framework()", space := {"__name__": "epibatch.somewhere", "framework": framework})
    report = error_report(caught(space["call"]))
    assert report.startswith("Traceback (from your code on):\n  File ")
    assert report.endswith("ValueError: boom")
    assert '"<string>"' not in report, "a frame in front of it"


def test_named_errors_without_foreign_frames_are_their_message():
    error = ConfigError("where\n  expected: a")
    assert error_report(error) == "error: where\n  expected: a"


def test_named_errors_below_users_code_show_where():
    report = error_report(caught(lambda: env_creator("nowhere")))
    assert "test_error_reports.py" in report and "no such environment" in report


def test_causes_come_first():
    def wrapped():
        try:
            users_mistake()
        except ValueError as error:
            raise RunnerError("resetting failed") from error

    report = error_report(caught(wrapped))
    assert report.index("ValueError: boom") < report.index("which led to this error") < report.index("resetting failed")


def test_without_users_frames_the_frameworks_code_is_shown():
    error = caught(lambda: gym.spaces.Discrete(-1))
    error.__traceback__ = error.__traceback__.tb_next
    report = error_report(error)
    assert report.startswith("Traceback (most recent call last):\n") and "gymnasium" in report
