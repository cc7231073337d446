"""Callbacks: a user's code that runs at events of episodes and iterations."""

from __future__ import annotations

from typing import Any

from epibatch.core.errors import ConfigError, nearest

__all__ = ["ALGORITHM_EVENTS", "EVENTS", "RUNNER_EVENTS", "Callbacks", "RLlibCallback"]

RUNNER_EVENTS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""What an environment runner tells of."""

ALGORITHM_EVENTS = (
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_checkpoint_loaded",
)
"""What an `Algorithm` tells of."""

EVENTS = (*ALGORITHM_EVENTS, *RUNNER_EVENTS)
"""All of them, as a config's `callbacks` section names them."""

_NOTHING_TO_TELL = (
    "on_env_runners_recreated",
    "on_evaluate_offline_end",
    "on_evaluate_offline_start",
    "on_offline_eval_runners_recreated",
    "on_workers_recreated",
)
"""Methods of RLlib's callbacks about what does not happen here: other processes, offline evaluation."""


class Callbacks:
    """Base class of callbacks: override the methods you need; a method that is not overridden costs nothing.

    Each environment runner and the algorithm make an object of the class, without arguments. Methods are called
    with keywords only; keep `**kwargs` for those that may be added. Values logged to `metrics_logger` are in the
    results of the iteration: a runner's under `env_runners`, the algorithm's at the top level.

    Raises:
        ConfigError: a subclass has a method `on_...` that nothing would ever call.

    Example:
        >>> class CountEnds(Callbacks):
        ...     def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        ...         metrics_logger.log_value("ends", 1, reduce="sum")
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").callbacks(CountEnds)
        >>> algo = config.training(train_batch_size=200, num_epochs=1).build_algo()
        >>> results = algo.train()["env_runners"]
        >>> results["ends"] == results["num_episodes"]
        True
        >>> algo.stop()
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            if name.startswith("on_") and callable(value) and name not in (*EVENTS, *_NOTHING_TO_TELL):
                raise ConfigError(
                    f"callbacks {cls.__name__}",
                    expected="methods on_... for what happens",
                    found=f"{name}, which nothing calls",
                    do=nearest(name, EVENTS),
                )

    # ---------------------------------------------------------------------------- environment runner

    def on_environment_created(
        self, *, env_runner: Any, metrics_logger: Any, env: Any, env_context: Any, **kwargs: Any
    ) -> None:
        """Called when the runner has made its environments: when it is built, or after worker processes broke.

        Args:
            env_runner: the runner.
            metrics_logger: a `MetricsLogger`.
            env: the vector environment.
            env_context: the config's `env_config`, a dict.
            **kwargs: what may be added.
        """

    def on_episode_created(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called before an episode begins.

        Args:
            episode: an empty episode with the next one's id; its `custom_data` is copied to that episode.
            env_runner: the runner.
            metrics_logger: a `MetricsLogger`.
            env: the vector environment.
            rl_module: the module that acts.
            env_index: which of the N environments.
            **kwargs: what may be added.
        """

    def on_episode_start(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called when the env-to-module pipeline has processed the episode's first observation; arguments as above."""

    def on_episode_step(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called after each step of the episode, the last one included; arguments as above."""

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: list[Any],
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called when the episode has ended; arguments as above.

        Args:
            episode: its chunk since the last `sample()`.
            prev_episode_chunks: its chunks from earlier `sample()` calls, the oldest first.
            env_runner: the runner.
            metrics_logger: a `MetricsLogger`.
            env: the vector environment.
            rl_module: the module that acts.
            env_index: which of the N environments.
            **kwargs: what may be added.
        """

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: Any, **kwargs: Any) -> None:
        """Called before `sample()` returns.

        Args:
            env_runner: the runner.
            metrics_logger: a `MetricsLogger`.
            samples: the episodes that it returns; they may be changed.
            **kwargs: what may be added.
        """

    # ----------------------------------------------------------------------------------- algorithm

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """Called when the algorithm is built.

        Args:
            algorithm: the algorithm.
            metrics_logger: a `MetricsLogger`.
            **kwargs: what may be added.
        """

    def on_train_result(self, *, algorithm: Any, metrics_logger: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Called before `train()` returns.

        Args:
            algorithm: the algorithm.
            metrics_logger: a `MetricsLogger`; values logged now are in the next results.
            result: the result that it returns; it may be changed.
            **kwargs: what may be added.
        """

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """Called before an evaluation; arguments as of `on_algorithm_init`."""

    def on_evaluate_end(
        self, *, algorithm: Any, metrics_logger: Any, evaluation_metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        """Called before `evaluate()` returns.

        Args:
            algorithm: the algorithm.
            metrics_logger: a `MetricsLogger`.
            evaluation_metrics: the metrics that it returns; they may be changed.
            **kwargs: what may be added.
        """

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Called when the algorithm has restored a checkpoint.

        Args:
            algorithm: the algorithm.
            **kwargs: what may be added.
        """


RLlibCallback = Callbacks
"""The name that RLlib gives it."""
