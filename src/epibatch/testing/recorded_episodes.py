"""Episodes that a runner recorded in an environment for checks, with one agent or several."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpibatchWarning
from epibatch.core.structs import stack_rows
from epibatch.env_runner.single_agent_env_runner import SingleAgentEnvRunner
from epibatch.episodes.multi_agent_episode import MultiAgentEpisode
from epibatch.episodes.single_agent_episode import SingleAgentEpisode
from epibatch.episodes.vector_recorder import VectorRecorder

ACTING_STEPS = 4
_EPISODE_LENGTHS = ((5, 1, 8), (3, 4, 9))
_STEPS_PER_CALL = 24
_LOOKBACK = 8


class _CheckEnv(gym.Env[Any, Any]):
    """Environment that draws observations from its space, ends episodes after fixed lengths, and checks actions."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.observation_space, self.action_space = copy.deepcopy(env_config["spaces"])
        self.refused: list[Any] = env_config["refused"]
        instances: list[Any] = env_config["instances"]
        self._lengths = _EPISODE_LENGTHS[len(instances) % len(_EPISODE_LENGTHS)]
        self._number = -1
        instances.append(None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._number, self._steps = self._number + 1, 0
        return self.observation_space.sample(), {"step": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            self.refused.append(action)
        self._steps += 1
        ends = self._steps >= self._lengths[self._number % len(self._lengths)]
        reward = 0.25 * (self._steps % 5) - 0.5 + 0.125 * self._number
        observation, info = self.observation_space.sample(), {"step": self._steps}
        return observation, reward, ends and self._number % 2 == 0, ends and self._number % 2 == 1, info


def _samples(
    spaces: tuple[Any, Any], model_config: dict[str, Any], steps: Sequence[int], refused: Any = None, **env_runners: Any
) -> list[Any]:
    """Return what a runner of two environments samples, a block for each number of steps.

    Args:
        spaces: Observation and action space of one environment.
        model_config: Settings of the default module.
        steps: The number of steps of each call.
        refused: list that collects actions outside of the action space.
        **env_runners: Settings of the runner.
    """
    from epibatch.algorithms.ppo import PPOConfig

    env_config = {"spaces": spaces, "refused": [] if refused is None else refused, "instances": []}
    config: Any = PPOConfig().environment(_CheckEnv, env_config=env_config).rl_module(model_config=model_config)
    config.debugging(seed=0).env_runners(num_envs_per_env_runner=2, **env_runners)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "observation space of module", EpibatchWarning)  # no piece is in it
        runner = SingleAgentEnvRunner(config=config)
    try:
        return [runner.sample(num_timesteps=count) for count in steps]
    finally:
        runner.stop()


def refused_actions(pieces: list[Any], side: str, spaces: tuple[Any, Any], model_config: dict[str, Any]) -> list[Any]:
    """Return actions outside of the action space that a runner with these pieces passes to the environment.

    Args:
        pieces: Those of one of its pipelines.
        side: That pipeline.
        spaces: Observation and action space.
        model_config: Settings of the default module.
    """
    refused: list[Any] = []
    pipelines = {f"{side}_connector": lambda env: pieces, f"add_default_connectors_to_{side}_pipeline": False}
    _samples(spaces, model_config, [_STEPS_PER_CALL // 2], refused, **pipelines)
    return refused


# ------------------------------------------------------------------------------------------ one agent


@dataclass
class RecordedEpisodes:
    """Recorded results of two calls of a runner, from which new episodes are made.

    Args:
        spaces: Observation and action space.
        model_config: Settings of the module that acted.
        calls: For each call its chunks; the second's continue the first's.
    """

    spaces: tuple[Any, Any]
    model_config: dict[str, Any]
    calls: list[list[SingleAgentEpisode]] = field(default_factory=list)

    def block(self) -> Any:
        """Return the episodes of the first call as from a runner; sampled again, as a piece may write to them."""
        return self._samples(1)[0]

    def _samples(self, calls: int) -> list[Any]:
        return _samples(self.spaces, self.model_config, [_STEPS_PER_CALL] * calls, episode_lookback_horizon=_LOOKBACK)

    def record(self) -> None:
        """Sample the episodes of both calls."""
        states = [[episode.get_state() for episode in block if len(episode)] for block in self._samples(2)]
        self.calls = [[SingleAgentEpisode.from_state(state) for state in call] for call in states]

    def episodes(self, call: int = 0) -> list[SingleAgentEpisode]:
        """Return new episodes of one call, without those that have no steps."""
        return copy.deepcopy(self.calls[call])

    def for_acting(self, first: int = 0) -> list[EpisodeSteps]:
        """Return the steps of episodes of the first call that are long enough for acting.

        Args:
            first: Number of episodes to leave out.
        """
        episodes = [episode for episode in self.calls[0] if episode.t_started == 0 and len(episode) >= ACTING_STEPS]
        return [EpisodeSteps(episode) for episode in (episodes + episodes)[first : first + len(episodes)]]


@dataclass(frozen=True)
class EpisodeSteps:
    """The steps of a recorded episode, to record them once more one by one."""

    episode: SingleAgentEpisode

    def observation(self, step: int) -> Any:
        """Return a copy of an observation, as pieces may write to it."""
        return copy.deepcopy(self.episode.get_observations(step))

    def outputs(self, step: int) -> dict[str, Any]:
        """Return the module's other outputs at a step."""
        return {key: self.episode.get_extra_model_outputs(key, step) for key in self.episode.extra_model_outputs}

    def start(self) -> Any:
        """Return a new episode, after its reset."""
        episode = SingleAgentEpisode(self.episode.id_, observation_space=self.episode.observation_space)
        episode.add_env_reset(self.observation(0), {"step": 0})
        return episode

    def add_step(self, episode: Any, step: int) -> None:
        """Add one step to an episode that has all earlier steps."""
        source, outputs = self.episode, self.outputs(step)
        row = self.observation(step + 1), source.get_actions(step), source.get_rewards(step), {"step": step + 1}
        episode.add_env_step(*row, extra_model_outputs=outputs)


_recordings: list[RecordedEpisodes] = []


def recorded_episodes(spaces: tuple[Any, Any], model_config: dict[str, Any]) -> RecordedEpisodes:
    """Return the recording of a runner with these spaces and this module; cached."""
    for cached in _recordings:
        if cached.spaces == spaces and cached.model_config == model_config:
            return cached
    recording = RecordedEpisodes(spaces, model_config)
    recording.record()
    _recordings[:] = [*_recordings[-15:], recording]
    return recording


# ------------------------------------------------------------------------------------------ several agents


@dataclass(frozen=True)
class MultiAgentRecording:
    """Recordings of several agents, from which episodes of all of them are made.

    Args:
        recordings: Agent -> the recording with its spaces.
        mapping: Called with an agent and an episode; returns its module's id.
    """

    recordings: dict[str, RecordedEpisodes]
    mapping: Callable[[Any, Any], Any]

    def episodes(self, call: int = 0) -> list[Any]:
        """Return new whole episodes, in which agents end at different steps."""
        steps = {
            agent: [EpisodeSteps(chunk) for chunk in recording.calls[call] if chunk.t_started == 0]
            for agent, recording in self.recordings.items()
        }
        episodes = []
        for source in self._together(steps, f"recording {call}"):
            episode = source.start()
            for step in range(max(len(agent_steps.episode) for agent_steps in source.agents.values())):
                source.add_step(episode, step, ends=True)
            episodes.append(episode)
        return episodes

    def for_acting(self, first: int = 0) -> list[MultiAgentSteps]:
        """Return the steps of episodes that are long enough for acting.

        Args:
            first: Number of recorded ones to leave out.
        """
        return self._together({agent: item.for_acting(first) for agent, item in self.recordings.items()}, "acting")

    def _together(self, steps: dict[str, list[EpisodeSteps]], name: str) -> list[MultiAgentSteps]:
        """Combine the agents' episodes: each agent has one of its own in each result."""
        pairs = [gym.spaces.Dict({agent: item.spaces[i] for agent, item in self.recordings.items()}) for i in (0, 1)]
        make = partial(
            MultiAgentEpisode,
            observation_space=pairs[0],
            action_space=pairs[1],
            agent_to_module_mapping_fn=self.mapping,
        )
        agents, fewest = len(steps), min(map(len, steps.values()))
        return [
            MultiAgentSteps(
                partial(make, f"{name}, {i}"),
                {agent: sources[(i * agents + k) % len(sources)] for k, (agent, sources) in enumerate(steps.items())},
            )
            for i in range(max(2, fewest // agents))
        ]


@dataclass(frozen=True)
class MultiAgentSteps:
    """The steps of several agents' recorded episodes, as those of one environment.

    Args:
        make: Returns a new episode.
        agents: Agent -> its steps.
    """

    make: Callable[[], Any]
    agents: dict[str, EpisodeSteps]

    def start(self) -> Any:
        """Return a new episode, after its reset."""
        episode = self.make()
        episode.add_env_reset(
            observations={agent: source.observation(0) for agent, source in self.agents.items()},
            infos={agent: {"step": 0} for agent in self.agents},
        )
        return episode

    def add_step(self, episode: Any, step: int, *, ends: bool = False) -> None:
        """Add one step; agents with ended episodes do not take part.

        Args:
            episode: An episode with all earlier steps.
            step: The number of the step.
            ends: True if agents end with their own episodes.
        """
        acting = {agent: source for agent, source in self.agents.items() if len(source.episode) > step}
        episodes = {agent: source.episode for agent, source in acting.items()}
        last = {agent: ends and len(recorded) == step + 1 for agent, recorded in episodes.items()}
        episode.add_env_step(
            {agent: source.observation(step + 1) for agent, source in acting.items()},
            {agent: recorded.get_actions(step) for agent, recorded in episodes.items()},
            {agent: recorded.get_rewards(step) for agent, recorded in episodes.items()},
            {agent: {"step": step + 1} for agent in acting},
            terminateds={agent: last[agent] and recorded.is_terminated for agent, recorded in episodes.items()},
            truncateds={agent: last[agent] and not recorded.is_terminated for agent, recorded in episodes.items()},
            extra_model_outputs={agent: source.outputs(step) for agent, source in acting.items()},
        )


# ------------------------------------------------------------------------------------------ acting


def growing_episodes(steps: Sequence[Any], cut: tuple[int, int] | None = None) -> Iterator[list[Any]]:
    """Yield a list of episodes that grow by one step each time.

    Args:
        steps: Their steps, for one agent or several.
        cut: The step after which they continue in new chunks, and the lookback of these.
    """
    episodes = [source.start() for source in steps]
    yield episodes
    for step in range(ACTING_STEPS):
        if cut is not None and cut[0] == step:
            episodes = [episode.cut(len_lookback_buffer=cut[1]) for episode in episodes]
        for episode, source in zip(episodes, steps):
            source.add_step(episode, step)
        yield episodes


def growing_block(steps: Sequence[EpisodeSteps], spaces: tuple[Any, Any]) -> Iterator[Any]:
    """Yield the same episodes as a runner passes them to pipelines while they grow.

    Args:
        steps: Their steps.
        spaces: Observation and action space.
    """
    episodes, count = [source.episode for source in steps], len(steps)
    recorder = VectorRecorder(count, *spaces)
    recorder.reset(stack_rows([episode.get_observations(0) for episode in episodes]), {"step": [0] * count})
    yield recorder.episodes
    for step in range(ACTING_STEPS):
        recorder.commit()
        flags = np.zeros(count, np.bool_)
        recorder.step(
            stack_rows([episode.get_actions(step) for episode in episodes]),
            stack_rows([episode.get_rewards(step) for episode in episodes]),
            flags,
            flags,
            stack_rows([episode.get_observations(step + 1) for episode in episodes]),
            {"step": [step + 1] * count},
            extras=stack_rows([source.outputs(step) for source in steps]),
        )
        yield recorder.episodes
