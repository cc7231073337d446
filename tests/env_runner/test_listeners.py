from __future__ import annotations

import functools

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import RegistryError
from epibatch.env_runner.callbacks import CallbackDispatcher, Callbacks, callback_problem


def recorder(log, name):
    return lambda **keywords: log.append((name, keywords))


def listening(log, name):
    """A class of callbacks that notes what it is told of samples."""
    return type(name, (Callbacks,), {"on_sample_end": lambda self, **keywords: log.append((name, keywords))})


def test_methods_first_then_functions_in_order():
    log = []
    config = PPOConfig().callbacks(
        [listening(log, "a"), listening(log, "b")], on_sample_end=[recorder(log, "c"), recorder(log, "d")]
    )
    dispatcher = CallbackDispatcher(config, ["on_sample_end"])
    dispatcher.call("on_sample_end", samples=3)
    assert log == [(name, {"samples": 3}) for name in "abcd"]


def test_each_has_objects_of_its_own():
    made = []

    class Counting(Callbacks):
        def __init__(self):
            made.append(self)

    config = PPOConfig().callbacks(Counting)
    assert made == []
    CallbackDispatcher(config, []), CallbackDispatcher(config, [])
    assert len(made) == 2


def test_a_function_that_makes_the_object():
    class Named(Callbacks):
        def __init__(self, name):
            self.name = name

        def on_sample_end(self, **keywords):
            log.append(self.name)

    log = []
    CallbackDispatcher(PPOConfig().callbacks(functools.partial(Named, "it")), ["on_sample_end"]).call("on_sample_end")
    assert log == ["it"]


def test_methods_that_are_not_overridden_do_not_listen():
    dispatcher = CallbackDispatcher(PPOConfig().callbacks(Callbacks), ["on_sample_end", "on_episode_step"])
    assert "on_sample_end" not in dispatcher and "on_episode_step" not in dispatcher


def test_import_paths(tmp_path, monkeypatch):
    (tmp_path / "told_module.py").write_text("log = []\ndef tell(**keywords):\n    log.append(keywords)\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = PPOConfig(allow_imports=True).callbacks(on_sample_end=["told_module:tell", "told_module:tell"])
    CallbackDispatcher(config, ["on_sample_end"]).call("on_sample_end", samples=[])
    import told_module

    assert told_module.log == [{"samples": []}] * 2
    (tmp_path / "told_module.py").unlink()
    monkeypatch.delitem(__import__("sys").modules, "told_module")
    __import__("importlib").invalidate_caches()
    with pytest.raises(RegistryError, match=r"callbacks.on_sample_end\n.*the function told_module:tell"):
        CallbackDispatcher(config, ["on_sample_end"])


def test_an_error_names_event_and_function():
    def wrong(**keywords):
        raise KeyError("gone")

    with pytest.raises(KeyError) as caught:
        CallbackDispatcher(PPOConfig().callbacks(on_train_result=wrong), ["on_train_result"]).call(
            "on_train_result", result={}
        )
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert any("in the callback on_train_result (" in text and "wrong" in text for text in told)


@pytest.mark.parametrize("value", [None, print, "a.b:c", [print, "a:b"], (), Callbacks])
def test_what_a_config_may_give(value):
    assert callback_problem(value) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, "found int 3"),
        ([print, None], "found NoneType None"),
        ("module.name", "import path module:function, found 'module.name'"),
        ({"a": 1}, "found dict"),
    ],
)
def test_what_it_may_not(value, problem):
    assert problem in callback_problem(value)


def test_functions_that_an_object_gives_itself_listen():
    class Given(Callbacks):
        def __init__(self):
            self.on_sample_end = recorder(log, "it")
            self.on_episode_step = super().on_episode_step

    log = []
    dispatcher = CallbackDispatcher(PPOConfig().callbacks(Given), ["on_sample_end", "on_episode_step"])
    dispatcher.call("on_sample_end", samples=3)
    assert log == [("it", {"samples": 3})] and "on_episode_step" not in dispatcher
