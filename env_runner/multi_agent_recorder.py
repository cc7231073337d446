"""Records multi-agent environments that step together into episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from epibatch.core.errors import UnknownNameError, add_context

from ..episodes.multi_agent_episode import MultiAgentEpisode
from .vector_multi_agent_env import VectorAgentStep

__all__ = ["EndedEpisode", "MultiAgentRecorder"]


class EndedEpisode(NamedTuple):
    """An episode that has ended.

    Args:
        env: Its environment.
        episode: Its chunk since the last harvest.
    """

    env: int
    episode: MultiAgentEpisode


class MultiAgentRecorder:
    """Records the return values of N multi-agent environments as one running episode for each.

    Args:
        num_envs: N.
        new_episode: Makes an episode that was not reset.

    Attributes:
        episodes: One for each environment: the running one, or the ended one until the step that resets it.
        observed: Environments in which an agent has a new observation.

    Example:
        >>> recorder = MultiAgentRecorder(1, MultiAgentEpisode)
        >>> recorder.reset([{"a": 0.5}], [{}])
        >>> recorder.episodes[0].get_observations()
        {'a': array([0.5])}
    """

    def __init__(self, num_envs: int, new_episode: Callable[[], MultiAgentEpisode]) -> None:
        self.num_envs = num_envs
        self._new_episode = new_episode
        self.episodes: list[MultiAgentEpisode] = []
        self.observed: list[int] = []
        self._ended: list[MultiAgentEpisode] = []
        self._coming: dict[int, MultiAgentEpisode] = {}
        self._numbers: dict[str, int] = {}
        self._kept: set[str] = set()

    def announced(self, env: int) -> MultiAgentEpisode:
        """Return the episode that the next reset of an environment will begin."""
        self._coming[env] = self._new_episode()
        return self._coming[env]

    def reset(self, observations: Sequence[dict[Any, Any]], infos: Sequence[dict[Any, Any]]) -> None:
        """Start an episode in every environment; running ones are dropped.

        Args:
            observations: Reset observations, by agent for each environment.
            infos: Their infos.

        Raises:
            SpaceError: an observation does not fit its agent's space.
        """
        self.episodes = []
        for env in range(self.num_envs):
            try:
                self.episodes.append(self._begun(env, observations[env], infos[env]))
            except Exception as error:
                add_context(error, f"environment {env}:")
                raise
        self.observed = [env for env in range(self.num_envs) if observations[env]]

    def _begun(self, env: int, observations: dict[Any, Any], infos: dict[Any, Any]) -> MultiAgentEpisode:
        episode = self._coming.pop(env) if env in self._coming else self._new_episode()
        episode.add_env_reset(observations=observations, infos=infos)
        self._numbers[episode.id_] = env
        return episode

    def env_of(self, episode: MultiAgentEpisode) -> int:
        """Return the environment of an episode that is running or was returned last.

        Raises:
            UnknownNameError: it is neither.
        """
        if episode.id_ in self._numbers:
            return self._numbers[episode.id_]
        raise UnknownNameError(
            "env_of",
            expected="an episode that runs, or one of the last sample",
            found=f"episode {episode.id_!r}, of an earlier sample or of another runner",
            do="ask before the next sample, and keep the number, in episode.custom_data say",
        )

    def keep(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        """Keep the environments of aborted episodes that are returned later."""
        self._kept = {episode.id_ for episode in episodes}

    def step(
        self, actions: Sequence[dict[Any, Any]], outputs: Sequence[dict[Any, Any]], step: VectorAgentStep
    ) -> tuple[list[EndedEpisode], dict[int, Exception]]:
        """Add a step to every episode, or begin an episode if the environment was reset.

        Args:
            actions: The modules' actions, by agent for each environment.
            outputs: For each environment a dict from agent to the other outputs for its action.
            step: The environments' return values.

        Returns:
            The episodes that ended, and for environments that took no step the error.
        """
        failures: dict[int, Exception] = dict(step.failures)
        ended: list[EndedEpisode] = []
        for env in range(self.num_envs):
            if env in failures:
                continue
            try:
                self._add(env, actions[env], outputs[env], step)
            except Exception as error:
                add_context(error, f"environment {env}:")
                failures[env] = error
                continue
            if self.episodes[env].is_done:
                ended.append(EndedEpisode(env, self.episodes[env]))
                self._ended.append(self.episodes[env])
        self.observed = [env for env in range(self.num_envs) if step.observations[env] and env not in failures]
        return ended, failures

    def _add(self, env: int, actions: dict[Any, Any], outputs: dict[Any, Any], step: VectorAgentStep) -> None:
        if step.was_reset[env]:
            self.episodes[env] = self._begun(env, step.observations[env], step.infos[env])
            return
        self.episodes[env].add_env_step(
            step.observations[env],
            actions,
            step.rewards[env],
            step.infos[env],
            terminateds=step.terminateds[env],
            truncateds=step.truncateds[env],
            extra_model_outputs=outputs,
        )

    def view(self, ended: EndedEpisode) -> MultiAgentEpisode:
        """Return an ended episode."""
        return ended.episode

    def expect(self, vector_steps: int) -> None:
        """Do nothing: multi-agent episodes allocate memory themselves."""

    @property
    def history(self) -> int:
        """Return the largest number of steps of an agent in a running episode, lookback included."""
        running = (segment for episode in self.episodes if not episode.is_done for segment in episode.segments)
        return max((len(segment.steps) - 1 for segment in running), default=0)

    def harvest(self, lookback: int) -> tuple[list[MultiAgentEpisode], list[EndedEpisode]]:
        """Return the recorded episodes; running ones continue in new chunks.

        Args:
            lookback: Number of earlier steps that new chunks keep: for each running agent this many of its own steps,
                if it has them, and at least this many env steps.

        Returns:
            The episodes that ended, in the order of their ends, and the chunks of running ones that have steps.
        """
        ended, running = self.give_up(), []
        for env, episode in enumerate(self.episodes):
            if not episode.is_done and len(episode):
                running.append(EndedEpisode(env, episode))
                self.episodes[env] = episode.cut(lookback, agent_steps=lookback)
        return ended, running

    def give_up(self) -> list[MultiAgentEpisode]:
        """Return the episodes that ended."""
        ended, self._ended = self._ended, []
        known = {episode.id_ for episode in (*ended, *self.episodes)} | self._kept
        self._numbers = {id_: env for id_, env in self._numbers.items() if id_ in known}
        return ended
