"""An environment for checks, and the episodes that a runner recorded in it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.structs import map_struct, stack_rows
from epibatch.env_runner.single_agent_env_runner import SingleAgentEnvRunner
from epibatch.episodes.single_agent_episode import SingleAgentEpisode
from epibatch.episodes.vector_recorder import VectorRecorder
from epibatch.testing.comparing import facts_of

__all__ = ["PLAYED", "Recording", "Stage", "Stream", "growing", "growing_block", "recorded_in", "sampled_with"]

_LENGTHS = ((5, 1, 8), (3, 4, 9))
_CALL = 24
_KEPT = 8
PLAYED = 4


class Stage(gym.Env[Any, Any]):
    """Environment that draws observations from its space, ends episodes after fixed lengths, and checks actions."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.observation_space, self.action_space = copy.deepcopy(env_config["spaces"])
        self.refused: list[Any] = env_config["refused"]
        made: list[Any] = env_config["made"]
        self._lengths = _LENGTHS[len(made) % len(_LENGTHS)]
        self._number = -1
        made.append(None)

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


def _stage_config(spaces: tuple[Any, Any], model_config: dict[str, Any], refused: list[Any]) -> Any:
    """Return a small config with two `Stage` environments.

    Args:
        spaces: observation and action space of one environment.
        model_config: settings of the default module.
        refused: collects the actions that are not in the action space.
    """
    from epibatch.algorithms.ppo import PPOConfig

    config = PPOConfig().environment(Stage, env_config={"spaces": spaces, "refused": refused, "made": []})
    config.rl_module(model_config=model_config).debugging(seed=0)
    return config.env_runners(num_envs_per_env_runner=2)


# ------------------------------------------------------------------------------------------ recordings


@dataclass
class Recording:
    """Recorded results of two calls of a runner, from which new episodes are made.

    Args:
        spaces: observation and action space.
        model_config: settings of the module that acted.
        calls: for each call the constructor's arguments of its chunks; the second's continue the first's.
    """

    spaces: tuple[Any, Any]
    model_config: dict[str, Any]
    calls: list[list[dict[str, Any]]] = field(default_factory=list)

    def block(self) -> Any:
        """Return the episodes of the first call as from a runner; sampled again, as a piece may write to them."""
        return _samples(_config_of(self), [_CALL])[0]

    def episodes(self, call: int = 0) -> list[Any]:
        """Return new episodes of one call, without those that have no steps."""
        return [self.episode(own) for own in self.calls[call]]

    def episode(self, facts: dict[str, Any]) -> Any:
        """Return a new episode of these facts."""
        infos = [dict(info) for info in facts["infos"]]
        return SingleAgentEpisode(
            **{**facts, "infos": infos}, observation_space=self.spaces[0], action_space=self.spaces[1]
        )

    def played(self, first: int = 0) -> list[Stream]:
        """Return episodes of the first call, from their start, that are long enough for acting.

        Args:
            first: number of episodes to leave out.
        """
        chunks = [own for own in self.calls[0] if own["t_started"] == 0 and len(own["rewards"]) >= PLAYED]
        return [Stream(self, own) for own in (chunks + chunks)[first : first + len(chunks)]]


@dataclass(frozen=True)
class Stream:
    """The rows of one recorded episode, step by step."""

    recording: Recording
    facts: dict[str, Any]

    def row(self, name: str, step: int) -> Any:
        """Return one row of a column."""
        return map_struct(lambda leaf: leaf[step], self.facts[name])

    def outputs(self, step: int) -> dict[str, Any]:
        """Return the module's other outputs at a step."""
        own = self.facts["extra_model_outputs"]
        return {key: map_struct(lambda leaf: leaf[step], rows) for key, rows in own.items()}

    def begun(self) -> Any:
        """Return a new episode, after its reset."""
        episode = SingleAgentEpisode(self.facts["id_"], observation_space=self.recording.spaces[0])
        episode.add_env_reset(self.row("observations", 0), {"step": 0})
        return episode

    def step(self, episode: Any, step: int) -> None:
        """Add one step to an episode that has all earlier steps."""
        row = {name: self.row(name, step) for name in ("actions", "rewards")}
        seen, outputs = self.row("observations", step + 1), self.outputs(step)
        episode.add_env_step(seen, row["actions"], row["rewards"], {"step": step + 1}, extra_model_outputs=outputs)


_recordings: list[Recording] = []


def recorded_in(spaces: tuple[Any, Any], model_config: dict[str, Any]) -> Recording:
    """Return the recording of a runner with these spaces and this module; cached."""
    for known in _recordings:
        if known.spaces == spaces and known.model_config == model_config:
            return known
    recording = Recording(spaces, model_config)
    for block in _samples(_config_of(recording), [_CALL, _CALL]):
        recording.calls.append([_arguments(episode) for episode in block if len(episode)])
    _recordings[:] = [*_recordings[-15:], recording]
    return recording


def _config_of(recording: Recording) -> Any:
    config = _stage_config(recording.spaces, recording.model_config, [])
    return config.env_runners(episode_lookback_horizon=_KEPT)


def _samples(config: Any, steps: Sequence[int]) -> list[Any]:
    runner = SingleAgentEnvRunner(config=config)
    try:
        return [runner.sample(num_timesteps=count) for count in steps]
    finally:
        runner.stop()


def _arguments(episode: Any) -> dict[str, Any]:
    facts = facts_of(episode)
    names = {name for name in facts if name in episode.extra_model_outputs}
    return {
        "id_": episode.id_,
        "observations": facts["observations"],
        "actions": facts["actions"],
        "rewards": facts["rewards"].astype(np.float32),
        "infos": facts["infos"],
        "extra_model_outputs": {name: facts[name] for name in sorted(names)},
        "terminated": episode.is_terminated,
        "truncated": episode.is_truncated,
        "t_started": episode.t_started,
        "len_lookback_buffer": episode.rewards.lookback,
    }


# ------------------------------------------------------------------------------------------ acting


def growing(streams: Sequence[Any], cut: tuple[int, int] | None = None) -> Iterator[list[Any]]:
    """Yield a list of episodes that grow by one step each time.

    Args:
        streams: their steps: `Stream`s, or other objects that begin an episode and add its steps.
        cut: the step after which they continue in new chunks, and the lookback of these.
    """
    episodes = [own.begun() for own in streams]
    yield episodes
    for step in range(PLAYED):
        if cut is not None and cut[0] == step:
            episodes = [episode.cut(len_lookback_buffer=cut[1]) for episode in episodes]
        for episode, stream in zip(episodes, streams):
            stream.step(episode, step)
        yield episodes


def growing_block(streams: Sequence[Stream]) -> Iterator[Any]:
    """Yield the same episodes as a runner passes them to pipelines while they grow."""
    recording = streams[0].recording
    recorder = VectorRecorder(len(streams), *recording.spaces)
    recorder.reset(stack_rows([own.row("observations", 0) for own in streams]), {"step": [0] * len(streams)})
    yield recorder.episodes
    for step in range(PLAYED):
        recorder.commit()
        flags = np.zeros(len(streams), np.bool_)
        recorder.step(
            stack_rows([own.row("actions", step) for own in streams]),
            stack_rows([own.row("rewards", step) for own in streams]),
            flags,
            flags,
            stack_rows([own.row("observations", step + 1) for own in streams]),
            {"step": [step + 1] * len(streams)},
            extras=stack_rows([own.outputs(step) for own in streams]),
        )
        yield recorder.episodes


def sampled_with(pieces: list[Any], side: str, spaces: tuple[Any, Any], model_config: dict[str, Any]) -> list[Any]:
    """Return actions outside of the action space that a runner with these pieces passes to the environment.

    Args:
        pieces: those of one of its pipelines.
        side: that pipeline.
        spaces: observation and action space.
        model_config: settings of the default module.
    """
    refused: list[Any] = []
    config = _stage_config(spaces, model_config, refused)
    config.env_runners(**{f"{side}_connector": lambda env: pieces, f"add_default_connectors_to_{side}_pipeline": False})
    _samples(config, [_CALL // 2])
    return refused
