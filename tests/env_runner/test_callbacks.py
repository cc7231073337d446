"""Callbacks: classes and functions of a config, and the order of events."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import ClassVar

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, RegistryError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.env_runner.callbacks import (
    ALGORITHM_EVENTS,
    EVENTS,
    RUNNER_EVENTS,
    CallbackDispatcher,
    Callbacks,
    RLlibCallback,
    callback_problem,
)


def test_every_event_has_a_documented_method_and_none_is_left_over():
    methods = [name for name in vars(Callbacks) if name.startswith("on_")]
    assert sorted(methods) == sorted(EVENTS) == sorted({*RUNNER_EVENTS, *ALGORITHM_EVENTS})
    assert all(inspect.getdoc(getattr(Callbacks, name)) for name in methods)
    signatures = [inspect.signature(getattr(Callbacks, name)).parameters for name in EVENTS]
    kinds = {parameter.kind for parameters in signatures for parameter in list(parameters.values())[1:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    assert RLlibCallback is Callbacks


def test_names_of_methods():
    for name in ("on_env_runners_recreated", "on_evaluate_offline_end", "one_more", "_on_it"):
        assert type("Own", (Callbacks,), {name: lambda self, **keywords: None})
    assert type("Own", (Callbacks,), {"on_weekdays": True})  # values may have any name
    with pytest.raises(ConfigError, match=r"callbacks Own\n.*\n.*on_episode_ended.*\n.*did you mean 'on_episode_end'"):
        type("Own", (Callbacks,), {"on_episode_ended": lambda self, **keywords: None})


class Noting(Callbacks):
    """Notes what it is told of samples; made anew for each listener."""

    log: ClassVar[list] = []

    def __init__(self, name="a"):
        self.name = name
        self.log.append(f"made {name}")

    def on_sample_end(self, **keywords):
        self.log.append((self.name, keywords))


class Given(Callbacks):
    """Gives itself its functions."""

    def __init__(self):
        self.on_sample_end = lambda **keywords: Noting.log.append(("d", keywords))
        self.on_episode_step = super().on_episode_step


def test_objects_first_then_functions_in_order():
    def function(name):
        return lambda **keywords: Noting.log.append((name, keywords))

    Noting.log.clear()
    classes = [Noting, functools.partial(Noting, "b"), functools.partial(Noting, name="c"), Given, Callbacks]
    config = PPOConfig().callbacks(classes, on_sample_end=[function("e"), function("f")])
    assert Noting.log == []
    for _ in range(2):
        dispatcher = CallbackDispatcher(config, ["on_sample_end", "on_episode_step"])
        assert Noting.log == ["made a", "made b", "made c"]
        Noting.log.clear()
        dispatcher.call("on_sample_end", samples=3)
        assert Noting.log == [(name, {"samples": 3}) for name in "abcdef"]
        assert "on_sample_end" in dispatcher and "on_episode_step" not in dispatcher
        Noting.log.clear()


def test_import_paths(tmp_path, monkeypatch):
    (tmp_path / "told_module.py").write_text("log = []\ndef tell(**keywords):\n    log.append(keywords)\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = PPOConfig(allow_imports=True).callbacks(on_sample_end=["told_module:tell", "told_module:tell"])
    CallbackDispatcher(config, ["on_sample_end"]).call("on_sample_end", samples=[])
    assert sys.modules["told_module"].log == [{"samples": []}] * 2
    (tmp_path / "told_module.py").unlink()
    monkeypatch.delitem(sys.modules, "told_module")
    importlib.invalidate_caches()
    with pytest.raises(RegistryError, match=r"callbacks.on_sample_end\n.*the function told_module:tell"):
        CallbackDispatcher(config, ["on_sample_end"])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        *((value, None) for value in (None, print, "a.b:c", [print, "a:b"], (), Callbacks)),
        (3, "found int 3"),
        ([print, None], "found NoneType None"),
        ("module.name", "import path module:function, found 'module.name'"),
        ({"a": 1}, "found dict"),
    ],
)
def test_what_a_config_may_give(value, problem):
    found = callback_problem(value)
    assert found is None if problem is None else problem in found


EPISODE_EVENTS = [event for event in RUNNER_EVENTS if event.startswith("on_episode")]


class Log:
    """Notes (event, environment, length, newest observation) of every call about an episode."""

    def __init__(self):
        self.calls, self.keywords = [], []

    def note(self, event, **keywords):
        self.keywords.append((event, keywords))
        if "episode" in keywords:
            episode = keywords["episode"]
            newest = int(episode.get_observations(-1)[0]) if episode.is_reset else None
            self.calls.append((event, keywords["env_index"], episode.t, newest))

    def functions(self, events=EPISODE_EVENTS):
        return {event: functools.partial(self.note, event) for event in events}


def expected(env, length_of, steps):
    """What an environment is to tell within a number of its own steps, by the rule of its lengths."""
    episode = t = 0
    yield from (("on_episode_created", env, 0, None), ("on_episode_start", env, 0, 1000 * env))
    for _ in range(steps):
        t += 1
        yield "on_episode_step", env, t, 1000 * env + 100 * episode + t
        if t == length_of(env, episode):
            yield "on_episode_end", env, t, 1000 * env + 100 * episode + t
            episode, t = episode + 1, 0
            yield "on_episode_created", env, 0, None
            yield "on_episode_start", env, 0, 1000 * env + 100 * episode


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("samples", [[40], [7, 1, 13, 2, 17]])
def test_each_environment_tells_the_same_in_every_mode(toys, mode, samples):
    log = Log()
    runner = toys.runner(2, mode=mode, config=toys.config(2).callbacks(**log.functions()))
    for steps in samples:
        runner.sample(num_timesteps=steps)
    for env in range(2):
        own = [call for call in log.calls if call[1] == env]
        assert len(own) > 25
        assert own == list(expected(env, toys.length_of, 60))[: len(own)]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_what_is_put_into_a_created_episode_is_the_recorded_ones(toys, mode):
    known = {}

    def created(episode, env_index, **keywords):
        episode.custom_data["number"] = known[episode.id_] = len(known)

    def step(episode, **keywords):
        episode.custom_data["steps"] = episode.custom_data.get("steps", 0) + 1

    config = toys.config(2).callbacks(on_episode_created=created, on_episode_step=step)
    runner = toys.runner(2, mode=mode, config=config)
    chunks = [chunk for steps in (5, 9, 16) for chunk in runner.sample(num_timesteps=steps)]
    ended = [chunk for chunk in chunks if chunk.is_done]
    assert len(ended) >= 5
    assert [chunk.custom_data["number"] for chunk in chunks] == [known[chunk.id_] for chunk in chunks]
    assert [chunk.custom_data["steps"] for chunk in ended] == [chunk.t for chunk in ended]


def test_earlier_chunks_of_an_ended_episode(toys):
    returns = []

    def end(episode, prev_episode_chunks, metrics_logger, **keywords):
        metrics_logger.log_value("last_length", episode.t, window=1)
        chunks = [*prev_episode_chunks, episode]
        assert {chunk.id_ for chunk in chunks} == {episode.id_}
        assert [chunk.t_started for chunk in chunks] == np.cumsum([0, *map(len, chunks[:-1])]).tolist()
        returns.append(sum(chunk.get_return() for chunk in chunks))

    runner = toys.runner(1, config=toys.config(1).callbacks(on_episode_end=end))
    for _ in range(10):
        runner.sample(num_timesteps=2)
    assert returns == [sum(t + 0.5 for t in range(length)) for length in (3, 5, 2, 3, 5, 2)]
    assert runner.get_metrics()["last_length"] == 2
    runner.sample(num_timesteps=1)
    runner.sample(num_episodes=2)  # the running episode is dropped
    assert returns[6:] == returns[:2] or returns[6:] == returns[1:3]


def test_all_environments_tell_of_the_last_vector_step_of_whole_episodes(toys):
    log = Log()
    runner = toys.runner(2, config=toys.config(2).callbacks(**log.functions(["on_episode_step", "on_episode_end"])))
    assert len(runner.sample(num_episodes=1)) == 1
    steps = [("on_episode_step", env, t, 1000 * env + t) for t in (1, 2, 3) for env in (0, 1)]
    assert log.calls == [*steps[:5], ("on_episode_end", 0, 3, 3), steps[5]]


@pytest.mark.parametrize(("events", "made"), [([], 0), (["on_sample_end"], 0), (["on_episode_step"], 5)])
def test_episodes_are_made_only_where_somebody_listens(toys, events, made):
    runner = toys.runner(2, config=toys.config(2).callbacks(**Log().functions(events)))
    episodes = runner.sample(num_timesteps=16)
    assert sum(chunk.attached is not None for chunk in episodes.chunks) == made
    assert [episode.is_done for episode in episodes] == [True] * 4 + [False]


def test_keywords(toys):
    log = Log()
    runner = toys.runner(1, config=toys.config(1).callbacks(**log.functions(RUNNER_EVENTS)))
    episodes = runner.sample(num_timesteps=3)
    assert [event for event, _ in log.keywords] == [
        "on_environment_created",
        "on_episode_created",
        "on_episode_start",
        "on_episode_step",
        "on_episode_step",
        "on_episode_step",
        "on_episode_end",
        "on_episode_created",
        "on_sample_end",
    ]
    for event, keywords in log.keywords:
        assert keywords["env_runner"] is runner and keywords["metrics_logger"] is runner.metrics
        if event != "on_sample_end":
            assert keywords["env"] is runner.env.unwrapped
        if "episode" in keywords:
            assert keywords["rl_module"] is runner.module
    assert log.keywords[0][1]["env_context"] == {} and log.keywords[0][1]["env_context"].worker_index == 0
    assert log.keywords[-1][1]["samples"] is episodes
    assert log.keywords[-3][1]["episode"] is episodes[0]


def test_an_error_names_callback_and_episode_and_loses_nothing(toys):
    def failing(episode, env_index, **keywords):
        if not told:
            told.append(episode.id_)
            raise LookupError("no such file")

    told = []
    runner = toys.runner(2, config=toys.config(2).callbacks(on_episode_end=failing))
    with pytest.raises(LookupError) as caught:
        runner.sample(num_timesteps=40)
    place = rf"in the callback on_episode_end \(.*failing\), episode '{told[0]}' of environment 0:\nno such file"
    assert caught.match(place)
    ended = [episode for episode in runner.sample(num_timesteps=4) if episode.is_done]
    assert ended[0].id_ == told[0]
    toys.check(ended[0])


def test_an_episode_that_ends_before_a_failing_reset_is_told_of(toys):
    log = Log()
    config = toys.config(1, env=toys.factory(fail_in_reset=(0, 1))).callbacks(**log.functions(["on_episode_end"]))
    runner = toys.runner(1, mode="disabled", config=config)
    with pytest.raises(Exception, match="no answer"):
        runner.sample(num_timesteps=9)
    assert log.calls == [("on_episode_end", 0, 3, 3)]


def test_saving_and_restoring_tell_nothing(toys):
    log = Log()
    runner = toys.runner(2, config=toys.config(2).callbacks(**log.functions(RUNNER_EVENTS)))
    runner.sample(num_timesteps=10)
    before = len(log.keywords)
    state = runner.get_state()
    runner.set_state(state)
    runner.checkpoint_reset()
    runner.get_metrics()
    assert len(log.keywords) == before


def test_overriding_the_runners_own_method(toys):
    config = toys.config(1).callbacks(**Log().functions())
    runner, seen = toys.runner(1, config=config), []
    runner._make_on_episode_callback = lambda which, idx, episodes: seen.append((which, idx, len(episodes[idx])))
    runner.sample(num_timesteps=1)
    created, started, stepped = "on_episode_created", "on_episode_start", "on_episode_step"
    assert seen == [(created, 0, 0), (started, 0, 0), (stepped, 0, 1)]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_an_error_at_the_end_of_a_sample_loses_no_step(toys, mode):
    def failing(samples, **keywords):
        seen.append([episode.id_ for episode in samples])
        if len(seen) == 1:
            raise LookupError("no such file")

    seen = []
    runner = toys.runner(2, mode=mode, config=toys.config(2).callbacks(on_sample_end=failing))
    with pytest.raises(LookupError, match=r"in the callback on_sample_end \(.*failing\):\nno such file"):
        runner.sample(num_timesteps=16)
    samples = list(runner.sample(num_timesteps=16))
    assert [episode.id_ for episode in samples] == seen[1] and seen[1][: len(seen[0])] == seen[0]
    for episode in samples:
        toys.check(episode)
    for id_ in {episode.id_ for episode in samples}:
        chunks = [episode for episode in samples if episode.id_ == id_]
        assert [chunk.t_started for chunk in chunks] == [0, *(chunk.t for chunk in chunks[:-1])]
    assert not {id(episode) for episode in runner.sample(num_timesteps=4)} & {id(episode) for episode in samples}


def test_an_error_about_new_environments_closes_them(toys):
    def failing(env, **keywords):
        told.append(env)
        if len(told) != 2:
            raise LookupError("no such file")

    told = []
    with pytest.raises(LookupError, match="on_environment_created"):
        toys.runner(2, config=toys.config(2).callbacks(on_environment_created=failing))
    assert told[0].closed
    runner = toys.runner(2, config=toys.config(2).callbacks(on_environment_created=failing))
    runner.env.close()
    runner._stepper.interrupted()
    with pytest.raises(LookupError, match="on_environment_created"):
        runner.sample(num_timesteps=4)
    assert told[2].closed
    with pytest.raises(LookupError, match="on_environment_created"):
        runner.sample(num_timesteps=4)
    assert told[3] is not told[2]


def test_a_reset_that_a_callback_asks_for_comes_with_the_next_call():
    def ask(env_runner, **keywords):
        steps.append(1)
        if len(steps) == 3:
            env_runner.checkpoint_reset()

    steps = []
    runner = SingleAgentEnvRunner(env="CartPole-v1", seed=0, on_episode_step=ask)
    first, second, third = (list(runner.sample(num_timesteps=2)) for _ in range(3))
    assert [[episode.t_started for episode in sample] for sample in (first, second, third)] == [[0], [2], [0]]
    assert first[0].id_ == second[0].id_ != third[0].id_
