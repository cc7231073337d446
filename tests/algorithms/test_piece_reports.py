"""What pieces log reaches the results, and so do their seconds when they are wanted."""

from __future__ import annotations

import time

import pytest

from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ConfigError
from fixture_configs import cart_pole


class Logs(ConnectorV2):
    """Logs as ported pieces do, without asking whether there is a logger."""

    def __init__(self, key, **options):
        super().__init__()
        self.key, self.options = key, options
        self.calls = 0

    def __call__(self, *, rl_module, batch, episodes, metrics=None, **kwargs):
        self.calls += 1
        metrics.log_value(self.key, self.calls, **self.options)
        return batch


class Sleeps(ConnectorV2):
    """Takes a hundredth of a second."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        time.sleep(0.01)
        return batch


def small():
    return cart_pole().env_runners(num_envs_per_env_runner=4)


def logging_config():
    return (
        small()
        .env_runners(
            env_to_module_connector=lambda env: Logs(("mine", "last"), reduce="item"),
            module_to_env_connector=lambda env: Logs("acted", window=2),
        )
        .training(learner_connector=lambda env: [Logs("learned", reduce="lifetime_sum")])
    )


def test_what_pieces_log_stands_among_the_results(built):
    algorithm = built(logging_config())
    first, second = algorithm.train(), algorithm.train()
    assert first["env_runners"]["mine"]["last"] == 9, "one call per vector step, and one for the reset"
    assert first["env_runners"]["acted"] == 7.5, "the mean of calls 7 and 8"
    assert (first["learners"]["learned"], second["learners"]["learned"]) == (1, 1 + 2)
    assert "total_loss" in first["learners"]["default_policy"]


def test_what_was_logged_is_restored(tmp_path, built):
    algorithm = built(logging_config())
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    twin = built(logging_config())
    twin.restore_from_path(path)
    results = twin.train()
    assert results["learners"]["learned"] == 1 + 1, "the sum goes on; the piece's own count is no state"


@pytest.mark.parametrize(
    ("setting", "key", "whose"),
    [
        ("env_to_module_connector", "num_episodes", "environment runner"),
        ("learner_connector", "default_policy", "learner"),
    ],
)
def test_names_that_are_taken(setting, key, whose, built):
    config = small()
    method = config.training if setting == "learner_connector" else config.env_runners
    algorithm = built(method(**{setting: lambda env: Logs(key)}))
    with pytest.raises(ConfigError, match=rf"metrics of the {whose}\n(.|\n)*{key}\n(.|\n)*another name"):
        algorithm.train()


def test_seconds_of_every_piece_on_request():
    config = small().env_runners(env_to_module_connector=lambda env: [Sleeps(), Sleeps()])
    plain, timed = config.build_algo(), config.copy().debugging(time_pieces=True).build_algo()
    without, results, again = plain.train(), timed.train(), timed.train()
    assert [pipeline.watch for pipeline in plain.pipelines.values()] == [None, None, None]
    plain.stop()
    timed.stop()
    assert list(without["timers"]) == ["sample", "learn"]
    timers = results["timers"]
    assert list(timers) == ["sample", "learn", "env_to_module", "module_to_env", "learner"]
    for name, pipeline in {**timed.env_runner.pipelines, "learner": timed.learner.connector}.items():
        assert list(timers[name]) == pipeline.names
    calls = 9
    assert calls * 0.01 <= timers["env_to_module"]["sleeps"] < timers["sample"]
    assert calls * 0.01 <= timers["env_to_module"]["sleeps_1"] < timers["sample"]
    assert sum(timers["env_to_module"].values()) + sum(timers["module_to_env"].values()) < timers["sample"]
    assert sum(timers["learner"].values()) <= results["learners"]["__all_modules__"]["connector_s"] < timers["learn"]
    assert again["timers"]["env_to_module"]["sleeps"] < again["timers"]["sample"], "each iteration's own"
    assert without["learners"]["default_policy"] == results["learners"]["default_policy"], "timing changes nothing else"
