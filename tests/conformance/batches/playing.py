"""One environment that plays a few episodes, a piece that is called after every step, and flat members of spaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from epibatch.episodes.vector_recorder import VectorRecorder
from oracle.compare import each
from oracle.libraries import Library
from oracle.spaces import rows


def flat(space: Any, value: Any, removed: Any = ()) -> Any:
    """A member of a space as one vector."""
    if isinstance(space, gym.spaces.Dict):
        kept = [key for key in sorted(space.spaces) if key not in removed]
        return np.concatenate([flat(space[key], value[key]) for key in kept])
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([flat(own, part) for own, part in zip(space.spaces, value)])
    if isinstance(space, gym.spaces.Discrete):
        return np.arange(space.start, space.start + space.n) == value
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts, numbers = np.ravel(space.nvec), np.ravel(value)
        return np.concatenate([np.arange(n) == number for n, number in zip(counts, numbers)])
    return np.ravel(value)


def parts(space: Any, kind: type) -> list[Any]:
    """The parts of a space that are of one kind."""
    if isinstance(space, gym.spaces.Dict):
        return [own for part in space.spaces.values() for own in parts(part, kind)]
    if isinstance(space, gym.spaces.Tuple):
        return [own for part in space.spaces for own in parts(part, kind)]
    return [space] if isinstance(space, kind) else []


CHOICE = gym.spaces.Discrete(3)


def piece(library: Library, name: str, spaces: Any, **settings: Any) -> Any:
    """A piece of the env-to-module packages that knows its spaces, of observations and of actions."""
    made = getattr(library.env_to_module, name)(**settings)
    made.input_action_space, made.input_observation_space = spaces[1], spaces[0]
    return made


@dataclass(frozen=True)
class Step:
    """What one step gave; the first one of an episode has only an observation."""

    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class Playing:
    """Episodes that one environment plays; some run on when the next begins, others are terminated or truncated.

    Attributes:
        space: of observations.
        lengths: steps of each episode.
        seed: of everything random.
        actions: space of actions.
    """

    space: Any
    lengths: tuple[int, ...]
    seed: int
    actions: Any = field(default_factory=lambda: CHOICE)

    def episodes(self) -> list[list[Step]]:
        """What happens in each."""
        rng, out = np.random.default_rng(self.seed), []
        for length in self.lengths:
            observations, actions = rows(self.space, rng, length + 1), [None, *rows(self.actions, rng, length)]
            rewards, end = rng.integers(-9, 9, length + 1) / 4, rng.integers(0, 3)
            out.append(
                [
                    Step(*step, terminated=i == length and end == 1, truncated=i == length and end == 2)
                    for i, step in enumerate(zip(observations, actions, rewards.tolist()))
                ]
            )
        return out

    def shown(self, library: Library, made: Any) -> list[Any]:
        """The newest observation behind each call of a piece, which gets one episode that is being added to."""
        out = []
        for steps in self.episodes():
            episode = library.SingleAgentEpisode(observation_space=self.space, action_space=self.actions)
            for i, step in enumerate(steps):
                if i:
                    ends = {"terminated": step.terminated, "truncated": step.truncated}
                    episode.add_env_step(step.observation, step.action, step.reward, **ends)
                else:
                    episode.add_env_reset(step.observation)
                made(rl_module=None, batch={}, episodes=[episode])
                out.append(episode.get_observations(-1))
        return out

    def recorded(self, made: Any) -> list[Any]:
        """The same where a vector of environments, of which there is one, is recorded in blocks, as our runner does."""
        out = []
        for steps in self.episodes():
            recorder = VectorRecorder(1, self.space, self.actions, autoreset="next_step", capacity=4)
            for i, step in enumerate(steps):
                if i:
                    flags = np.array([step.terminated]), np.array([step.truncated])
                    recorder.step(_one(step.action), np.array([step.reward]), *flags, _one(step.observation), {}, {})
                else:
                    recorder.reset(_one(step.observation), {})
                made(rl_module=None, batch={}, episodes=recorder.episodes)
                out.append(recorder.episodes[0].get_observations(-1))
                recorder.commit()
        return out


def _one(row: Any) -> Any:
    """A row as the vector of one environment."""
    return each(lambda leaf: np.asarray(leaf)[None].copy(), row)


played_lengths = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)
