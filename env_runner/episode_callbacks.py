"""When a runner's episodes are told of: created, begun, stepped, ended, handed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .callbacks import RUNNER_EVENTS
from .listeners import Listeners

__all__ = ["EpisodeCallbacks"]


class EpisodeCallbacks:
    """Calls a runner's callbacks.

    For each episode: `on_episode_created` before it is begun, `on_episode_start` when the env-to-module pipeline has
    had its first observation, `on_episode_step` after each step, the last included, then `on_episode_end`. Within a
    vector step it goes from environment to environment. Episodes are shown only where somebody listens.

    Args:
        runner: The runner; what is told of an episode goes through its `_make_on_episode_callback`. Its recorder
            has the running episodes, and shows those that ended.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._listeners = Listeners(runner.config, RUNNER_EVENTS)
        self._earlier: dict[int, list[Any]] = defaultdict(list)
        self._listening = frozenset(event for event in RUNNER_EVENTS if event in self._listeners)
        self._watching = any(event.startswith("on_episode") for event in self._listening)

    @property
    def _recorder(self) -> Any:
        return self._runner._recorder

    def environment_created(self) -> None:
        """The runner has new environments; if a callback raises, they are closed, and the next reset makes others."""
        if "on_environment_created" not in self._listening:
            return
        context, stepper = dict(self._runner.config.env_config), self._runner._stepper
        try:
            self._call("on_environment_created", env=self._runner.env.unwrapped, env_context=context)
        except BaseException:
            stepper.close()
            stepper.interrupted()
            raise

    def before_reset(self) -> None:
        """All environments are about to be reset."""
        self._earlier.clear()
        for env in range(self._runner.num_envs):
            self._create(env)

    def after_reset(self) -> None:
        """All environments are reset, and the pipeline has had their observations."""
        if "on_episode_start" in self._listening:
            for env in range(self._runner.num_envs):
                self._tell("on_episode_start", env, self._recorder.episodes)

    def stepped(
        self, ended: Sequence[Any], skipped: Collection[int], *, begun: bool, failed: Collection[int] = ()
    ) -> None:
        """A vector step was taken.

        Args:
            ended: The chunks that ended with it; `env` says whose.
            skipped: Environments whose step only brought a reset observation.
            begun: Whether the episodes behind those that ended have their reset observation already.
            failed: Environments whose episodes go on no more.
        """
        if not self._watching:
            return
        over = {chunk.env: chunk for chunk in ended}
        everyone = "on_episode_step" in self._listening
        for env in range(self._runner.num_envs) if everyone else sorted({*over, *skipped}):
            if env in failed:
                continue
            shown: Any = {env: self._recorder.view(over[env])} if env in over else self._recorder.episodes
            self._tell("on_episode_start" if env in skipped else "on_episode_step", env, shown)
            if env in over:
                self._tell("on_episode_end", env, shown)
                self._earlier.pop(env, None)
                self._create(env, begun=begun)
                if begun:
                    self._tell("on_episode_start", env, self._recorder.episodes)

    def keep_running(self, chunks: Iterable[tuple[int, Any]]) -> None:
        """Remember the chunks of running episodes, with their environments, for whoever is told of their ends."""
        if "on_episode_end" in self._listening:
            for env, chunk in chunks:
                self._earlier[env].append(chunk)

    def sample_end(self, samples: Sequence[Any]) -> None:
        """`sample()` is about to return these."""
        if "on_sample_end" in self._listening:
            self._call("on_sample_end", samples=samples)

    def make(self, event: str, env: int, episodes: Mapping[int, Any] | Sequence[Any]) -> None:
        """Call what listens to an event of an episode.

        Args:
            event: Its name.
            env: Which environment.
            episodes: Has the episode under that number.
        """
        if event not in self._listening:
            return
        runner = self._runner
        keywords: dict[str, Any] = {
            "episode": episodes[env],
            "env": runner.env.unwrapped,
            "rl_module": runner.module,
            "env_index": env,
        }
        if event == "on_episode_end":
            keywords["prev_episode_chunks"] = list(self._earlier.get(env, ()))
        self._call(event, **keywords)

    def _create(self, env: int, begun: bool = False) -> None:
        """Announce the next episode of an environment, whose observations come later unless it is `begun`."""
        if "on_episode_created" not in self._listening:
            return
        coming = self._runner._announced(env, begun=begun)
        self._tell("on_episode_created", env, {env: coming})
        self._runner._announce(env, coming, begun=begun)

    def _tell(self, event: str, env: int, episodes: Any) -> None:
        if event in self._listening:
            self._runner._make_on_episode_callback(event, env, episodes)

    def _call(self, event: str, **keywords: Any) -> None:
        runner = self._runner
        self._listeners.call(event, env_runner=runner, metrics_logger=runner.metrics, **keywords)
