"""Callbacks of algorithms: when they are called, with what, and what they log."""

from __future__ import annotations

import json
import sys

import gymnasium as gym
import pytest

from epibatch.algorithms import PPO, PPOConfig
from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.env_runner.callbacks import ALGORITHM_EVENTS, EVENTS, Callbacks
from fixture_configs import cart_pole, learned


def small(**callbacks):
    return cart_pole().evaluation(evaluation_duration=2).callbacks(**callbacks)


def noting(log, events):
    def function(event):
        return lambda **keywords: log.append((event, keywords))

    return {event: function(event) for event in events}


def test_events_and_keywords(built, tmp_path):
    log = []
    algorithm = built(small(**noting(log, ALGORITHM_EVENTS)).evaluation(evaluation_interval=2))
    first, second = algorithm.train(), algorithm.train()
    path = algorithm.save_to_path(tmp_path / "saved")
    algorithm.restore_from_path(path)
    other = PPO.from_checkpoint(path, config=algorithm.config)
    other.stop()
    assert [event for event, _ in log] == [
        "on_algorithm_init",
        "on_train_result",
        "on_evaluate_start",
        "on_evaluate_end",
        "on_train_result",
        "on_checkpoint_loaded",
        "on_algorithm_init",
        "on_checkpoint_loaded",
    ]
    keywords = [given for _, given in log]
    assert all(given["algorithm"] is algorithm for given in keywords[:-2])
    assert all(given["algorithm"] is other for given in keywords[-2:])
    assert all(given["metrics_logger"] is algorithm.metrics for given in keywords[:5])
    assert keywords[1]["result"] is first and keywords[4]["result"] is second
    assert keywords[3]["evaluation_metrics"] is second["evaluation"]
    assert [sorted(given) for given in keywords[4:6]] == [["algorithm", "metrics_logger", "result"], ["algorithm"]]


def test_results_may_be_changed(built):
    def result(result, metrics_logger, algorithm):
        result["score"] = result["training_iteration"] * 10
        logs_iterations(metrics_logger)

    def measured(evaluation_metrics, **keywords):
        evaluation_metrics["passed"] = True

    algorithm = built(small(on_train_result=result, on_evaluate_end=measured))
    first, second = algorithm.train(), algorithm.train()
    assert (first["score"], second["score"]) == (10, 20)
    assert "iterations" not in first and second["iterations"] == 1  # logged when the first were made already
    assert algorithm.evaluate()["passed"] is True


def test_a_name_that_is_taken(built):
    algorithm = built(
        small(on_algorithm_init=lambda metrics_logger, **keywords: metrics_logger.log_value("time_total_s", 1))
    )
    with pytest.raises(ConfigError, match=r"metrics of the algorithm\n.*\n.*time_total_s"):
        algorithm.train()


def test_metrics_of_episodes_in_training_and_evaluation_are_apart(built):
    def end(episode, env_runner, metrics_logger, **keywords):
        name = "evaluated" if env_runner.config.in_evaluation else "trained"
        metrics_logger.log_value(name, episode.t, reduce=None, clear_on_reduce=True)

    algorithm = built(small(on_episode_end=end).evaluation(evaluation_interval=1))
    results = algorithm.train()
    trained, evaluated = results["env_runners"], results["evaluation"]["env_runners"]
    assert len(trained["trained"]) == trained["num_episodes"] > 0 and "evaluated" not in trained
    assert {evaluated["episode_len_min"], evaluated["episode_len_max"]} <= set(evaluated["evaluated"])
    assert "trained" not in evaluated
    assert not algorithm.config.in_evaluation


def test_what_was_logged_in_evaluation_goes_on_after_a_restore_and_after_an_error(built, tmp_path):
    def end(episode, metrics_logger, env_runner, **keywords):
        if env_runner.config.in_evaluation:
            metrics_logger.log_value("all", 1, reduce="sum")
            metrics_logger.log_value("length", episode.t, window=1000)
            if failing:
                raise ValueError("not today")

    failing = []
    algorithm = built(small(on_episode_end=end))
    first = algorithm.evaluate()["env_runners"]
    path = algorithm.save_to_path(tmp_path / "saved")
    other = built(small(on_episode_end=end))
    other.restore_from_path(path)
    expected, found = algorithm.evaluate()["env_runners"], other.evaluate()["env_runners"]
    assert found["length"] == expected["length"] and found["all"] == expected["all"] > first["all"] == 2
    other.restore_from_path(path)
    assert other.evaluate()["env_runners"]["all"] == expected["all"]
    failing.append(True)
    with pytest.raises(ValueError, match="not today"):
        algorithm.evaluate()
    failing.clear()
    assert algorithm.evaluate()["env_runners"]["all"] == expected["all"] + expected["all"] - first["all"]


def test_states_of_earlier_versions_have_none(built):
    algorithm = built(small())
    state = algorithm.get_state()
    del state["counters"]["callback_metrics"]
    algorithm.set_state(state)
    assert algorithm.metrics.peek() == {}


def logs_iterations(metrics_logger, **keywords):
    metrics_logger.log_value("iterations", 1, reduce="sum")


def test_what_was_logged_is_saved(built, tmp_path):
    algorithm, other = (built(small(on_train_result=logs_iterations)) for _ in range(2))
    algorithm.train()
    other.restore_from_path(algorithm.save_to_path(tmp_path / "saved", end_episodes=True))
    expected, found = algorithm.train(), other.train()
    assert expected["iterations"] == found["iterations"] == 1 and learned(expected) == learned(found)


@pytest.mark.parametrize("event", ["on_algorithm_init", "on_checkpoint_loaded"])
def test_an_error_at_the_beginning_closes_the_environments(built, tmp_path, event):
    class Closed(gym.Wrapper):
        def close(self):
            closed.append(True)
            super().close()

    def fail(algorithm, **keywords):
        raise ValueError("not today")

    closed, path = [], built(small()).save_to_path(tmp_path / "saved")
    config = small(**{event: fail}).environment(lambda env_config: Closed(gym.make("CartPole-v1")))
    with pytest.raises(ValueError, match=rf"in the callback {event} \(.*fail\):\nnot today"):
        PPO.from_checkpoint(path, config=config)
    assert closed


def test_settings_are_named_after_the_events():
    assert PPOConfig.model.sections()["callbacks"].names() == ["callbacks_class", *EVENTS]
    config = PPOConfig().callbacks(Callbacks).callbacks(on_sample_end=print)
    assert (config.callbacks_class, config.on_sample_end, config.on_episode_end) == (Callbacks, print, None)
    assert config.copy().on_sample_end is print


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"on_episode_ended": print}, r"callbacks.on_episode_ended: unknown setting; did you mean 'on_episode_end'"),
        ({"on_episode_end": 3}, r"callbacks.on_episode_end: expected a function, .*found int 3"),
        ({"callbacks_class": Callbacks()}, r"callbacks.callbacks_class: expected a class, .*found Callbacks"),
    ],
)
def test_what_cannot_be_called(given, problem):
    with pytest.raises(ConfigError, match=problem):
        PPOConfig().callbacks(**given)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_callbacks.py").write_text(
        "from epibatch.env_runner.callbacks import Callbacks\n"
        "log = []\n"
        "number = 3\n"
        "def tell(**keywords):\n"
        "    log.append('function')\n"
        "class Tell(Callbacks):\n"
        "    def on_train_result(self, **keywords):\n"
        "        log.append('method')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_callbacks", None)


SECTION = {"callbacks_class": "my_callbacks:Tell", "on_train_result": ["my_callbacks:tell"]}


def test_files_name_callbacks_by_import_path(module, tmp_path):
    data = {**small().to_dict(), "callbacks": SECTION}
    config = PPOConfig.from_yaml(json.dumps(data), allow_imports=True)
    assert config.to_dict()["callbacks"] == SECTION
    algorithm = config.build_algo()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "saved")
    algorithm.stop()
    with pytest.raises(CheckpointError, match="allow_imports=True"):
        PPO.from_checkpoint(path)
    again = PPO.from_checkpoint(path, allow_imports=True)
    again.train()
    again.stop()
    assert sys.modules["my_callbacks"].log == ["method", "function"] * 2


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("my_callbacks:told", "my_callbacks has no 'told'"),
        ("no_such_callbacks:tell", "ModuleNotFoundError"),
        ("my_callbacks:number", "expected a function, found at 'my_callbacks:number': int 3"),
    ],
)
def test_paths_that_lead_nowhere(module, path, problem):
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict({"callbacks": {"on_sample_end": path}}, allow_imports=True)
    assert "callbacks.on_sample_end: " in str(caught.value) and problem in str(caught.value)
