"""The same environment in the runners of both libraries, in this process."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from oracle.libraries import Library


class Walk(gym.Env[Any, Any]):
    """Observations [episode, t]; episodes of the given lengths in turn, every second one truncated.

    It tells the actions it is given in its infos. The class holds what all environments share, because RLlib makes
    them from a pickled copy of the function it is given.

    Attributes:
        seeds: what `reset` was given, in order.
        fails_at: (episode, t) of a step that raises; taken out when it did.
    """

    seeds: ClassVar[list[Any]] = []
    fails_at: ClassVar[list[tuple[int, int]]] = []
    observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)

    def __init__(self, lengths: tuple[int, ...] = (3,), action_space: Any = None) -> None:
        self.action_space = action_space or gym.spaces.Discrete(2)
        self.lengths, self.episode, self.t = lengths, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return np.float32([self.episode, 0]), {"reset": True}

    def step(self, action: Any) -> Any:
        self.t += 1
        if (self.episode, self.t) in self.fails_at:
            self.fails_at.clear()
            raise RuntimeError("the environment broke")
        over = self.t == self.lengths[self.episode % len(self.lengths)]
        truncated = over and self.episode % 2 == 1
        info = {"action": np.array(action)}
        return np.float32([self.episode, self.t]), float(self.t), over and not truncated, truncated, info


def settings(
    library: Library, lengths: tuple[int, ...] = (3,), num_envs: int = 1, action_space: Any = None, **env_runners: Any
) -> Any:
    """PPO's config for `Walk`, with a network small enough to be quick."""
    Walk.seeds.clear()
    Walk.fails_at.clear()
    library.register_env("walk", lambda env_config: Walk(lengths, action_space))
    config = library.PPOConfig().environment("walk").rl_module(model_config={"fcnet_hiddens": [4]})
    return config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, **env_runners)


def make_runner(library: Library, config: Any) -> Any:
    """The runner of a config."""
    return library.SingleAgentEnvRunner(config=config, worker_index=0)


def runner(library: Library, lengths: tuple[int, ...] = (3,), num_envs: int = 1, **env_runners: Any) -> Any:
    """A runner on `Walk`."""
    return make_runner(library, settings(library, lengths, num_envs, **env_runners))


def told(episode: Any) -> tuple[Any, ...]:
    """Number of the episode, first step, steps, and how it ended, as the observations and flags tell."""
    number = int(np.asarray(episode.get_observations(-1))[0])
    end = "terminated" if episode.is_terminated else "truncated" if episode.is_truncated else ""
    return number, episode.t_started, len(episode), end
