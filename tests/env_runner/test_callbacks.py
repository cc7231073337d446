from __future__ import annotations

import inspect

import pytest

from epibatch.core.errors import ConfigError
from epibatch.env_runner.callbacks import ALGORITHM_EVENTS, EVENTS, RUNNER_EVENTS, Callbacks, RLlibCallback


def test_every_event_has_a_documented_method_and_none_is_left_over():
    methods = [name for name in vars(Callbacks) if name.startswith("on_")]
    assert sorted(methods) == sorted(EVENTS) == sorted({*RUNNER_EVENTS, *ALGORITHM_EVENTS})
    assert all(inspect.getdoc(getattr(Callbacks, name)) for name in methods)
    kinds = {
        p.kind for name in EVENTS for p in list(inspect.signature(getattr(Callbacks, name)).parameters.values())[1:]
    }
    assert kinds == {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


def test_rllibs_name():
    assert RLlibCallback is Callbacks


def test_a_method_that_nothing_calls():
    with pytest.raises(ConfigError, match=r"callbacks Own\n.*\n.*on_episode_ended.*\n.*did you mean 'on_episode_end'"):
        type("Own", (Callbacks,), {"on_episode_ended": lambda self, **keywords: None})


@pytest.mark.parametrize("name", ["on_env_runners_recreated", "on_evaluate_offline_end", "one_more", "_on_it"])
def test_methods_that_may_be_there(name):
    assert type("Own", (Callbacks,), {name: lambda self, **keywords: None})


def test_values_may_have_any_name():
    assert type("Own", (Callbacks,), {"on_weekdays": True})
