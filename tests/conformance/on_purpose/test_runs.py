"""Differences of runners and configs that are there on purpose."""

from __future__ import annotations

from typing import Any

from epibatch.core.errors import ConfigError, NotAvailableError
from faults.runners import runner_of
from oracle.libraries import RLLIB
from oracle.probes import Raises, probe, tried


@probe("sample-sequence", ours=[False, 2], theirs=[True, 2])
def test_what_sample_returns(library: Any) -> Any:
    runner, _ = runner_of(library, {}, num_envs_per_env_runner=2)
    chunks = runner.sample(num_timesteps=4)
    return [isinstance(chunks, list), len(chunks)]


@probe("config-errors", ours=["lr", "gamma", "num_epochs"], theirs=[])
def test_wrong_values_in_a_config(library: Any) -> Any:
    """Those that an error names."""
    config = library.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    wrong = {"lr": -1.0, "gamma": "high", "num_epochs": 0}
    error = tried(lambda: config.training(**wrong).validate())
    return [name for name in wrong if isinstance(error, Exception) and f"training.{name}:" in str(error)]


@probe("evaluation-greedy", ours=False, theirs=True)
def test_whether_evaluation_explores(library: Any) -> Any:
    config = library.PPOConfig().environment("CartPole-v1").evaluation(evaluation_interval=1)
    return config.get_evaluation_config_object().explore


@probe("not-available", ours=Raises(NotAvailableError, "num_env_runners"), theirs=2)
def test_several_runners(library: Any) -> Any:
    return library.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2).num_env_runners


def listener(library: Any, methods: dict[str, Any]) -> type:
    """A class of callbacks with these methods."""
    path, name = ("callbacks.callbacks", "RLlibCallback") if library is RLLIB else ("env_runner.callbacks", "Callbacks")
    return type("Listener", (getattr(library.module(path), name),), methods)


@probe("created-episode", ours=[False, True, {"k": 1}], theirs=[True, True, {"k": 1}])
def test_the_episode_that_on_episode_created_gets(library: Any) -> Any:
    """Whether it is the one that starts, has its id, and hands on what is put into it."""
    created, started = [], []

    def on_episode_created(self: Any, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["k"] = 1
        created.append(episode)

    def on_episode_start(self: Any, *, episode: Any, **kwargs: Any) -> None:
        started.append(episode)

    methods = {"on_episode_created": on_episode_created, "on_episode_start": on_episode_start}
    runner, _ = runner_of(library, {}, lambda config: config.callbacks(listener(library, methods)))
    runner.sample(num_timesteps=1)
    return [created[0] is started[0], created[0].id_ == started[0].id_, dict(started[0].custom_data)]


@probe("last-vector-step", ours=[0, 1, 0, 1], theirs=[0, 1, 0])
def test_callbacks_of_the_last_vector_step(library: Any) -> Any:
    """Environments of `on_episode_step` in episodes of two steps, of which one is asked for."""
    seen = []

    def on_episode_step(self: Any, *, env_index: int, **kwargs: Any) -> None:
        seen.append(env_index)

    heard = listener(library, {"on_episode_step": on_episode_step})
    runner, _ = runner_of(library, {"length": 2}, lambda config: config.callbacks(heard), num_envs_per_env_runner=2)
    runner.sample(num_episodes=1)
    return seen


@probe("unknown-callbacks", ours=Raises(ConfigError, "did you mean 'on_episode_end'"), theirs=1)
def test_a_callback_that_nothing_calls(library: Any) -> Any:
    methods = {"on_episode_ended": lambda self, **kwargs: None}
    runner, _ = runner_of(library, {}, lambda config: config.callbacks(listener(library, methods)))
    return len(runner.sample(num_timesteps=1))
