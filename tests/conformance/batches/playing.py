"""One environment that plays a few episodes, a piece that is called after every step, and flat members of spaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from epibatch.episodes import VectorRecorder
from oracle.compare import leaves, space_struct
from oracle.episodes import rows
from oracle.libraries import Library
from oracle.makers import wired
from oracle.twins import as_vector


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
    return [own for own in leaves(space_struct(space)) if isinstance(own, kind)]


def changed(function: Any, space: Any) -> Any:
    """A space with every part in Dicts and Tuples replaced."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: changed(function, own) for key, own in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([changed(function, own) for own in space.spaces])
    return function(space)


CHOICE = gym.spaces.Discrete(3)


def piece(library: Library, name: str, spaces: Any, **settings: Any) -> Any:
    """A piece of the env-to-module packages that knows its spaces, of observations and of actions."""
    return wired(getattr(library.env_to_module, name)(**settings), *spaces)


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

    def shown(self, library: Library, made: Any, recorded: bool = False) -> list[Any]:
        """The newest observation behind each call of a piece, which gets one episode that is being added to.

        Args:
            library: whose episodes.
            made: the piece.
            recorded: record a vector of environments, of which there is one, in blocks, as our runner does.
        """
        out = []
        for steps in self.episodes():
            episode: Any = library.SingleAgentEpisode(observation_space=self.space, action_space=self.actions)
            recorder = VectorRecorder(1, self.space, self.actions, autoreset="next_step", capacity=4)
            for i, step in enumerate(steps):
                ends = {"terminated": step.terminated, "truncated": step.truncated}
                if recorded and i:
                    flags = [np.array([flag]) for flag in ends.values()]
                    newest = as_vector(step.observation)
                    recorder.step(as_vector(step.action), np.array([step.reward]), *flags, newest, {}, {})
                elif recorded:
                    recorder.reset(as_vector(step.observation), {})
                elif i:
                    episode.add_env_step(step.observation, step.action, step.reward, **ends)
                else:
                    episode.add_env_reset(step.observation)
                episodes = recorder.episodes if recorded else [episode]
                made(rl_module=None, batch={}, episodes=episodes)
                out.append(episodes[0].get_observations(-1))
                if recorded:
                    recorder.commit()
        return out


played_lengths = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)
