"""Chunks, modules, pipelines and runners of both libraries whose every value can be told from its place.

At time t a chunk holds: observation [t, 10 + t], action t % 3, reward t + 0.5, `action_logp` -t, and for recurrent
modules `state_out` {"h": [t + 0.25] * 2, "c": [-t] * 2}. A module's initial state is {"h": [-1, -1], "c": [2, 2]}.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from oracle.libraries import Library
from oracle.modules import build_module

OBS = gym.spaces.Box(-1000, 1000, (2,), np.float32)
ACT = gym.spaces.Discrete(3)
SPACES = {"__env__": (OBS, ACT), "__env_single__": (OBS, ACT)}


def chunk(
    library: Library,
    id_: str = "a",
    steps: int = 3,
    *,
    t_started: int = 0,
    lookback: int = 0,
    state: bool = False,
    end: str = "",
    arrays: bool = True,
    **overrides: Any,
) -> Any:
    """A chunk of an episode with the values above."""
    times = range(t_started - lookback, t_started + steps)
    extras: dict[str, list[Any]] = {"action_logp": [np.float32(-t) for t in times]}
    if state:
        extras["state_out"] = [{"h": np.full(2, t + 0.25, np.float32), "c": np.full(2, -t, np.float32)} for t in times]
    arguments = {
        "id_": id_,
        "observations": [np.float32([t, 10 + t]) for t in [*times, t_started + steps]],
        "actions": [t % 3 for t in times],
        "rewards": [t + 0.5 for t in times],
        "infos": [{"t": t} for t in [*times, t_started + steps]],
        "extra_model_outputs": extras,
        "observation_space": OBS,
        "action_space": ACT,
        "t_started": t_started,
        "len_lookback_buffer": lookback,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        **overrides,
    }
    made = library.SingleAgentEpisode(**arguments)
    return made.to_numpy() if arrays else made


def module(library: Library, *, state: bool = False, max_seq_len: int = 4, multi: bool = False) -> Any:
    """A network without weights; its value of an observation is a tenth of the sum of its entries."""
    return build_module(library, OBS, ACT, state=2 * state, max_seq_len=max_seq_len, multi=multi)


@cache
def piece_class(library: Library) -> Any:
    """A user's piece around a function `(batch, episodes) -> batch or None`; it keeps what it was shown."""

    class UserPiece(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __init__(self, function: Any = None) -> None:
            super().__init__()
            self.function = function

        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            self.batch, self.episodes = copy.deepcopy(batch), episodes
            self.keywords = {"rl_module": rl_module, **kwargs}
            made = self.function(batch, episodes) if self.function else None
            return batch if made is None else made

    return UserPiece


def user(library: Library, function: Any = None) -> Any:
    """A new piece of that class."""
    return piece_class(library)(function)


def names(pipeline: Any) -> list[str]:
    """The class names of a pipeline's pieces."""
    return [type(piece).__name__ for piece in pipeline]


def config(library: Library, obs: Any = OBS, act: Any = ACT) -> Any:
    """PPO's config for these spaces."""
    return library.PPOConfig().environment(observation_space=obs, action_space=act)


def learner(library: Library, *, ppo: bool = False, gamma: float = 1.0, lambda_: float = 1.0) -> Any:
    """The default learner pipeline, with or without the two pieces that PPO adds."""
    settings = config(library).training(gamma=gamma, lambda_=lambda_)
    pipeline = settings.build_learner_connector(OBS, ACT, device=torch.device("cpu"))
    if ppo and library.name == "RLlib":
        pipeline.prepend(library.learner.AddOneTsToEpisodesAndTruncate())
        pipeline.append(library.learner.GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_))
    elif ppo:
        settings.extend_learner_connector(pipeline)
    return pipeline


def acting(library: Library, obs: Any = OBS, act: Any = ACT) -> tuple[Any, Any]:
    """The default env-to-module and module-to-env pipelines."""
    spaces = {"__env__": (obs, act), "__env_single__": (obs, act)}
    settings = config(library, obs, act)
    to_module = settings.build_env_to_module_connector(env=None, spaces=spaces, device=None)
    return to_module, settings.build_module_to_env_connector(env=None, spaces=spaces)


def run(pipeline: Any, episodes: list[Any], *, rl_module: Any = None, batch: Any = None, **keywords: Any) -> Any:
    """What a pipeline makes of a batch, {} unless one is given."""
    call = {"explore": False, "shared_data": {}, **keywords}
    return pipeline(rl_module=rl_module, batch={} if batch is None else batch, episodes=episodes, **call)


def joined(items: list[Any]) -> Any:
    """The items of one episode as arrays with the rows first, whether they are single rows or arrays of several."""
    if isinstance(items[0], dict):
        return {key: joined([item[key] for item in items]) for key in items[0]}
    tagged = isinstance(items[0], np.ndarray) and type(items[0]) is not np.ndarray
    return np.asarray(np.concatenate(items) if tagged else np.stack(items))


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
