"""When a runner's episodes are told of: created, begun, stepped, ended, handed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..episodes import SingleAgentEpisode, VectorEpisodes, VectorRecorder
from ..episodes.chunk import Chunk
from .callbacks import RUNNER_EVENTS
from .listeners import Listeners

__all__ = ["EpisodeCallbacks"]


class EpisodeCallbacks:
    """Calls a runner's callbacks.

    For each episode: `on_episode_created` before it is begun, `on_episode_start` when the env-to-module pipeline has
    had its first observation, `on_episode_step` after each step, the last included, then `on_episode_end`. Within a
    vector step it goes from environment to environment. Episodes are shown only where somebody listens.

    Args:
        runner: The runner; what is told of an episode goes through its `_make_on_episode_callback`.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._listeners = Listeners(runner.config, RUNNER_EVENTS)
        self._earlier: dict[int, list[SingleAgentEpisode]] = defaultdict(list)
        self._listening = frozenset(event for event in RUNNER_EVENTS if event in self._listeners)
        self._watching = any(event.startswith("on_episode") for event in self._listening)

    @property
    def _recorder(self) -> VectorRecorder:
        recorder: VectorRecorder = self._runner._recorder
        return recorder

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

    def stepped(self, ended: Sequence[Chunk], skipped: Collection[int], *, begun: bool) -> None:
        """A vector step was taken.

        Args:
            ended: The chunks that ended with it.
            skipped: Environments whose step only brought a reset observation.
            begun: Whether the episodes behind those that ended have their reset observation already.
        """
        if not self._watching:
            return
        over = {chunk.env: chunk for chunk in ended}
        everyone = "on_episode_step" in self._listening
        for env in range(self._runner.num_envs) if everyone else sorted({*over, *skipped}):
            shown: Any = {env: self._recorder.view(over[env])} if env in over else self._recorder.episodes
            self._tell("on_episode_start" if env in skipped else "on_episode_step", env, shown)
            if env in over:
                self._tell("on_episode_end", env, shown)
                self._earlier.pop(env, None)
                self._create(env, begun=begun)
                if begun:
                    self._tell("on_episode_start", env, self._recorder.episodes)

    def keep_running(self, samples: VectorEpisodes) -> VectorEpisodes:
        """Remember the chunks of running episodes, for whoever is told of their ends; returns all."""
        if "on_episode_end" in self._listening:
            for position, chunk in enumerate(samples.chunks):
                if not (chunk.terminated or chunk.truncated):
                    self._earlier[chunk.env].append(samples[position])
        return samples

    def sample_end(self, samples: Sequence[SingleAgentEpisode]) -> None:
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
        observation_space, action_space = self._runner.spaces["__env_single__"]
        id_ = self._recorder.episodes.chunks[env].id_ if begun else None
        coming = SingleAgentEpisode(id_=id_, observation_space=observation_space, action_space=action_space)
        self._tell("on_episode_created", env, {env: coming})
        if begun:
            self._recorder.episodes[env].custom_data.update(coming.custom_data)
        else:
            self._recorder.announce(env, coming)

    def _tell(self, event: str, env: int, episodes: Any) -> None:
        if event in self._listening:
            self._runner._make_on_episode_callback(event, env, episodes)

    def _call(self, event: str, **keywords: Any) -> None:
        runner = self._runner
        self._listeners.call(event, env_runner=runner, metrics_logger=runner.metrics, **keywords)
