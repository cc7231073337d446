"""Callbacks: a user's code that runs at events of episodes and iterations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from epibatch.core.errors import ConfigError, add_context, nearest
from epibatch.core.imports import load_object

__all__ = ["CallbackDispatcher", "Callbacks", "RLlibCallback"]

RUNNER_EVENTS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""Events of an environment runner."""

ALGORITHM_EVENTS = (
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_checkpoint_loaded",
)
"""Events of an `Algorithm`."""

EVENTS = (*ALGORITHM_EVENTS, *RUNNER_EVENTS)
"""All of them, as a config's `callbacks` section names them."""

_NEVER_CALLED = (
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
    results of the iteration: a runner's under `env_runners`, the algorithm's at the top level. Those logged in
    `on_train_result` are in the results of the next iteration. Of several callbacks these methods run first, then the
    functions in their order. If one raises, the error keeps its class, and names callback and episode; the next
    `sample()` returns the episodes that had ended.

    Raises:
        ConfigError: a subclass has a method `on_...` that nothing would ever call.

    Examples:
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
            if name.startswith("on_") and callable(value) and name not in (*EVENTS, *_NEVER_CALLED):
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
            env_runner: The runner.
            metrics_logger: A `MetricsLogger`.
            env: The vector environment.
            env_context: The config's `env_config`, an `EnvContext`.
            **kwargs: What may be added.
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
            episode: An empty episode with the next one's id; its `custom_data` is copied to that episode.
            env_runner: The runner.
            metrics_logger: A `MetricsLogger`.
            env: The vector environment.
            rl_module: The module that acts.
            env_index: Which of the N environments.
            **kwargs: What may be added.
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
            episode: Its chunk since the last `sample()`.
            prev_episode_chunks: Its chunks from earlier `sample()` calls, the oldest first.
            env_runner: The runner.
            metrics_logger: A `MetricsLogger`.
            env: The vector environment.
            rl_module: The module that acts.
            env_index: Which of the N environments.
            **kwargs: What may be added.
        """

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: Any, **kwargs: Any) -> None:
        """Called before `sample()` returns.

        Args:
            env_runner: The runner.
            metrics_logger: A `MetricsLogger`.
            samples: The episodes that it returns; they may be changed.
            **kwargs: What may be added.
        """

    # ----------------------------------------------------------------------------------- algorithm

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """Called when the algorithm is built.

        Args:
            algorithm: The algorithm.
            metrics_logger: A `MetricsLogger`.
            **kwargs: What may be added.
        """

    def on_train_result(self, *, algorithm: Any, metrics_logger: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Called before `train()` returns.

        Args:
            algorithm: The algorithm.
            metrics_logger: A `MetricsLogger`; values logged now are in the next results.
            result: The result that it returns; it may be changed.
            **kwargs: What may be added.
        """

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """Called before an evaluation; arguments as of `on_algorithm_init`."""

    def on_evaluate_end(
        self, *, algorithm: Any, metrics_logger: Any, evaluation_metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        """Called before `evaluate()` returns.

        Args:
            algorithm: The algorithm.
            metrics_logger: A `MetricsLogger`.
            evaluation_metrics: The metrics that it returns; they may be changed.
            **kwargs: What may be added.
        """

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Called when the algorithm has restored a checkpoint.

        Args:
            algorithm: The algorithm.
            **kwargs: What may be added.
        """


RLlibCallback = Callbacks
"""The name that RLlib gives it."""


def callback_problem(value: Any, kind: str = "function") -> str | None:
    """Return the problem of a config's callback as text; None if it is valid.

    Args:
        value: A function (or a class), an import path `module:name`, or a list of these; None: no callback.
        kind: "function" or "class", the expected kind.

    Examples:
        >>> callback_problem("math:floor"), callback_problem([print, 3])
        (None, 'expected a function, its import path module:function, or a list of these, found int 3')
    """
    for item in _as_list(value):
        if isinstance(item, str):
            if not item.partition(":")[2]:
                return f"expected a {kind}'s import path module:{kind}, found {item!r}"
        elif not callable(item):
            form = f"a {kind}, its import path module:{kind}, or a list of these"
            return f"expected {form}, found {type(item).__name__} {item!r}"
    return None


class CallbackDispatcher:
    """Dispatcher of a config's callbacks: objects of its callback classes, and its functions.

    Args:
        config: Has `callbacks_class`, and a setting named after each event.
        events: The names of the events.
        objects: Further objects, whose methods of these names are called first.

    Raises:
        RegistryError: an import path cannot be resolved.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> told = []
        >>> config = PPOConfig().callbacks(on_sample_end=lambda samples, **kwargs: told.append(samples))
        >>> dispatcher = CallbackDispatcher(config, ["on_sample_end", "on_episode_end"])
        >>> dispatcher.call("on_sample_end", samples=[])
        >>> "on_sample_end" in dispatcher, "on_episode_end" in dispatcher, told
        (True, False, [[]])
    """

    def __init__(self, config: Any, events: Sequence[str], objects: Sequence[Any] = ()) -> None:
        objects = [*objects, *(cls() for cls in _loaded(config.callbacks_class, "callbacks_class", "class"))]
        self._functions: dict[str, list[Callable[..., Any]]] = {}
        for event in events:
            methods = [getattr(item, event) for item in objects if _overrides(item, event)]
            self._functions[event] = methods + _loaded(getattr(config, event), event, "function")

    def __contains__(self, event: str) -> bool:
        return bool(self._functions[event])

    def call(self, event: str, **keywords: Any) -> None:
        """Call all callbacks of an event, methods first.

        An error keeps its class; its message begins with the event, the function, and the episode if there is one.
        """
        for function in self._functions[event]:
            try:
                function(**keywords)
            except Exception as error:
                add_context(error, _place(event, function, keywords))
                raise


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _loaded(value: Any, setting: str, kind: str) -> list[Any]:
    return [
        load_object(item, f"callbacks.{setting}", kind) if isinstance(item, str) else item for item in _as_list(value)
    ]


def _overrides(listener: Any, event: str) -> bool:
    """True if the object's class overrides the event's method."""
    method = getattr(listener, event, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(Callbacks, event)


def _place(event: str, function: Callable[..., Any], keywords: dict[str, Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    place = f"in the callback {event} ({name})"
    episode = keywords.get("episode")
    if episode is not None:
        place += f", episode {episode.id_!r} of environment {keywords['env_index']}"
    return f"{place}:"


class EpisodeCallbacks:
    """Calls a runner's callbacks.

    For each episode: `on_episode_created` before it begins, `on_episode_start` when the env-to-module pipeline has
    processed its first observation, `on_episode_step` after each step, the last included, then `on_episode_end`.
    Within a vector step the environments follow in order. Episodes are built only for events that have a callback.

    Args:
        runner: The runner.
        recorder: Has the running episodes and those that ended.
        new_episode: Makes an episode without observations, with an id if it is given.
        report: Called with event, environment and episodes for each event of an episode; it calls `make`.

    Attributes:
        of_episodes: The events of single episodes that have a callback.
    """

    def __init__(
        self, runner: Any, recorder: Any, new_episode: Callable[..., Any], report: Callable[[str, int, Any], None]
    ) -> None:
        self._runner, self._recorder = runner, recorder
        self._new_episode, self._report = new_episode, report
        self._dispatcher = CallbackDispatcher(runner.config, RUNNER_EVENTS, [runner])
        self._earlier: dict[int, list[Any]] = defaultdict(list)
        self._has_callback = frozenset(event for event in RUNNER_EVENTS if event in self._dispatcher)
        self.of_episodes = [event for event in RUNNER_EVENTS if event in self._dispatcher and "episode" in event]

    def environment_created(self) -> None:
        """Report new environments."""
        if "on_environment_created" in self._has_callback:
            context = self._runner.env_context
            self._call("on_environment_created", env=self._runner.env.unwrapped, env_context=context)

    def before_reset(self, envs: Collection[int]) -> None:
        """Report that environments will be reset now."""
        for env in envs:
            self._earlier.pop(env, None)
            self._create(env)

    def after_reset(self, envs: Collection[int]) -> None:
        """Report that environments are reset, and the pipeline has processed their observations."""
        if "on_episode_start" in self._has_callback:
            for env in envs:
                self._report("on_episode_start", env, self._recorder.episodes)

    def stepped(
        self,
        ended: Sequence[Any],
        skipped: Collection[int],
        *,
        begun: bool,
        failed: Collection[int] = (),
        idle: Collection[int] = (),
        cut: Sequence[Any] = (),
        restarted: Collection[int] = (),
        split: Sequence[Any] = (),
    ) -> None:
        """Report a vector step.

        Args:
            ended: The chunks that ended with it; `env` is the environment's number.
            skipped: Environments that returned only a reset observation in this step.
            begun: True if the next episodes of ended ones have their reset observation already.
            failed: Environments whose episodes do not continue.
            idle: Environments that were not stepped.
            cut: The chunks that ended before it, because their environments failed.
            restarted: Environments that failed and have begun their next episodes.
            split: The chunks that ended with it without a flag; the next episodes have begun.
        """
        if not self.of_episodes:
            return
        over = {chunk.env: chunk for chunk in (*ended, *cut, *split)}
        has_begun = set(over) if begun else {chunk.env for chunk in split}
        everyone = "on_episode_step" in self._has_callback
        for env in range(self._runner.num_envs) if everyone else sorted({*over, *skipped, *restarted}):
            if env in restarted:
                self._restarted(env, over.get(env), begun=env not in failed)
                continue
            if env in failed or env in idle:
                continue
            episodes: Any = {env: self._recorder.view(over[env])} if env in over else self._recorder.episodes
            self._report_if_watched("on_episode_start" if env in skipped else "on_episode_step", env, episodes)
            if env in over:
                self._report_if_watched("on_episode_end", env, episodes)
                self._earlier.pop(env, None)
                self._create(env, begun=env in has_begun)
                if env in has_begun:
                    self._report_if_watched("on_episode_start", env, self._recorder.episodes)

    def _restarted(self, env: int, chunk: Any, *, begun: bool) -> None:
        if chunk is not None:
            self._report_if_watched("on_episode_end", env, {env: self._recorder.view(chunk)})
        self._earlier.pop(env, None)
        if begun:
            self._create(env, begun=True)
            self._report_if_watched("on_episode_start", env, self._recorder.episodes)

    def keep_running(self, chunks: Iterable[tuple[int, Any]]) -> None:
        """Store the chunks of running episodes, with their environments, for `on_episode_end`."""
        if "on_episode_end" in self._has_callback:
            for env, chunk in chunks:
                self._earlier[env].append(chunk)

    def sample_end(self, samples: Sequence[Any]) -> None:
        """Report the episodes that `sample()` returns."""
        if "on_sample_end" in self._has_callback:
            self._call("on_sample_end", samples=samples)

    def make(self, event: str, env: int, episodes: Mapping[int, Any] | Sequence[Any]) -> None:
        """Call the callbacks of an event of an episode.

        Args:
            event: Its name.
            env: Which environment.
            episodes: Contains the episode under that number.
        """
        if event not in self._has_callback:
            return
        keywords: dict[str, Any] = {
            "episode": episodes[env],
            "env": self._runner.env.unwrapped,
            "rl_module": self._runner.module,
            "env_index": env,
        }
        if event == "on_episode_end":
            keywords["prev_episode_chunks"] = list(self._earlier.get(env, ()))
        self._call(event, **keywords)

    def _create(self, env: int, begun: bool = False) -> None:
        """Report the next episode of an environment; it has no observations yet.

        If it has `begun`, callbacks get an empty episode of its id in place of it, whose custom data it takes over.
        """
        if "on_episode_created" not in self._has_callback:
            return
        coming = self._new_episode(self._recorder.episodes[env].id_ if begun else None)
        self._report("on_episode_created", env, {env: coming})
        if begun:
            self._recorder.episodes[env].custom_data.update(coming.custom_data)
        else:
            self._recorder.name_next_episode(env, coming)

    def _report_if_watched(self, event: str, env: int, episodes: Any) -> None:
        if event in self._has_callback:
            self._report(event, env, episodes)

    def _call(self, event: str, **keywords: Any) -> None:
        runner = self._runner
        self._dispatcher.call(event, env_runner=runner, metrics_logger=runner.metrics, **keywords)
