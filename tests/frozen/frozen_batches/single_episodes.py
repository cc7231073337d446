"""Episodes of one agent: made of columns, by steps and cuts, or recorded by several environments in a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.algorithms import PPOConfig
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode, VectorRecorder

from .content import STATES, Random, chance, draw, eighths, map_shapes, pick, row
from .modules import spec

ENDS = ({}, {"terminated": True}, {"truncated": True})


@dataclass(frozen=True)
class Columns:
    """What the episodes of a case hold.

    Attributes:
        observation_space: Space of one observation.
        action_space: Space of one action.
        state: Layout of recurrent states, a name in `STATES`.
        outputs: Whether there are further model outputs.
        history: Steps before a chunk that pieces read.
        whole_history: Whether chunks keep everything before them.
        integers: Whether rewards are integers.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    state: str = ""
    outputs: bool = True
    history: int = 0
    whole_history: bool = False
    integers: bool = False

    def rewards(self, rng: Random, count: int) -> Any:
        """Draw rewards."""
        return rng.integers(-3, 4, count) if self.integers else eighths(rng, count, np.float64) * 2

    def extras(self, rng: Random, count: int) -> dict[str, Any]:
        """Draw model outputs."""
        out: dict[str, Any] = {}
        if self.outputs:
            out["action_logp"] = eighths(rng, count)
            out["action_dist_inputs"] = eighths(rng, (count, 4))
        if self.state:
            out["state_out"] = map_shapes(STATES[self.state], lambda shape: eighths(rng, (count, *shape)))
        return out

    def lookback(self, rng: Random, started: int) -> int:
        """Draw how many earlier steps a chunk keeps that starts at a step."""
        return started if self.whole_history else min(started, self.history + int(rng.integers(3)))


def listed(columns: Columns, rng: Random, count: int, longest: int) -> list[SingleAgentEpisode]:
    """Episodes and chunks of episodes, made of columns."""
    out = []
    for number in range(count):
        started = int(rng.integers(6)) if chance(rng, 50) else 0
        lookback, length = columns.lookback(rng, started), int(rng.integers(1, longest + 1))
        total = lookback + length
        observations = draw(columns.observation_space, rng, total + 1)
        actions = draw(columns.action_space, rng, total)
        out.append(
            SingleAgentEpisode(
                id_=f"episode_{number if chance(rng, 80) else 0}",
                observations=[row(observations, t) for t in range(total + 1)],
                observation_space=columns.observation_space,
                infos=[{"n": t} for t in range(total + 1)],
                actions=[row(actions, t) for t in range(total)],
                action_space=columns.action_space,
                rewards=columns.rewards(rng, total),
                extra_model_outputs={
                    key: [row(values, t) for t in range(total)] for key, values in columns.extras(rng, total).items()
                },
                t_started=started,
                len_lookback_buffer=lookback,
                **pick(rng, ENDS),
            )
        )
    return out


def cut(columns: Columns, rng: Random, count: int, longest: int) -> list[SingleAgentEpisode]:
    """Episodes that grew step by step, in chunks that follow one another."""
    out = []
    for number in range(count):
        episode = SingleAgentEpisode(
            f"grown_{number}",
            observation_space=columns.observation_space,
            action_space=columns.action_space,
        )
        length = int(rng.integers(1, 2 * longest))
        observations, actions = (
            draw(columns.observation_space, rng, length + 1),
            draw(columns.action_space, rng, length),
        )
        rewards, extras = columns.rewards(rng, length), columns.extras(rng, length)
        episode.add_env_reset(row(observations, 0), {"n": 0})
        chunks = []
        for t in range(length):
            if len(episode) and chance(rng, 30):
                chunks.append(episode)
                episode = episode.cut(len_lookback_buffer=columns.lookback(rng, t))
            ends = pick(rng, ENDS) if t == length - 1 else {}
            step = {"extra_model_outputs": {key: row(values, t) for key, values in extras.items()}, **ends}
            episode.add_env_step(row(observations, t + 1), row(actions, t), rewards[t].item(), {"n": t + 1}, **step)
        out += [*chunks, episode]
    return out


def recorder_of(columns: Columns, rng: Random, count: int, steps: int) -> VectorRecorder:
    """Record some steps of several environments, a part of which was delivered before."""
    mode = pick(rng, ["next_step", "same_step"])
    spaces = (columns.observation_space, columns.action_space)
    recorder = VectorRecorder(count, *spaces, autoreset=mode, capacity=3)
    recorder.reset(draw(columns.observation_space, rng, count))
    delivered = int(rng.integers(steps))
    for t in range(steps):
        if t == delivered:
            recorder.flush(t if columns.whole_history else columns.lookback(rng, t))
        step(recorder, columns, rng, draw(columns.action_space, rng, count), columns.extras(rng, count), mode)
    return recorder


def step(recorder: VectorRecorder, columns: Columns, rng: Random, actions: Any, extras: Any, mode: str) -> None:
    """Record one step of all environments."""
    count = recorder.num_envs
    ends = rng.integers(0, 8, count)
    ends[recorder.waiting] = 7
    recorder.step(
        actions,
        columns.rewards(rng, count),
        ends == 0,
        ends == 1,
        draw(columns.observation_space, rng, count),
        extras=extras,
        final_observations=_objects(draw(columns.observation_space, rng, count), count)
        if mode == "same_step"
        else None,
    )


def _objects(rows: Any, count: int) -> Any:
    out = np.empty(count, object)
    for i in range(count):
        out[i] = row(rows, i)
    return out


def recorded(columns: Columns, rng: Random, count: int, longest: int) -> Any:
    """Episodes and chunks that are views of one block."""
    return recorder_of(columns, rng, count, longest + 1).flush(0)


class Scripted(gym.Env[Any, Any]):
    """Environment whose observations, rewards and ends come from a generator; actions change nothing."""

    def __init__(self, columns: Columns, seed: int) -> None:
        self.observation_space, self.action_space = columns.observation_space, columns.action_space
        self._columns, self._rng = columns, np.random.default_rng(seed)

    def _observation(self) -> Any:
        return row(draw(self.observation_space, self._rng, 1), 0)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        end = int(self._rng.integers(7))
        reward = float(self._columns.rewards(self._rng, 1)[0])
        return self._observation(), reward, end == 0, end == 1, {}


def sampled(columns: Columns, rng: Random, count: int, longest: int) -> Any:
    """Episodes out of the runner, of which an earlier call delivered a part."""
    numbers = iter(range(count + 8))
    seed = int(rng.integers(1000))
    config = PPOConfig().environment(lambda _: Scripted(columns, seed + next(numbers))).debugging(seed=seed)
    module = spec(columns.observation_space, columns.action_space, state=columns.state, max_seq_len=20)
    config.rl_module(rl_module_spec=module).env_runners(
        num_envs_per_env_runner=count, episode_lookback_horizon=max(1, columns.history)
    )
    runner = SingleAgentEnvRunner(config=config)
    runner.sample(num_timesteps=count * int(rng.integers(1, 4)), explore=False)
    episodes = runner.sample(num_timesteps=count * longest, explore=False)
    runner.stop()
    return episodes
