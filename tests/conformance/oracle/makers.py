"""Chunks, pieces, pipelines, environments and runners of both libraries whose every value can be told from its place.

At time t a chunk holds: observation [t, 10 + t], action t % 3, reward t + 0.5, `action_logp` -t, and for recurrent
modules `state_out` {"h": [t + 0.25] * 2, "c": [-t] * 2}. A module's initial state is {"h": [-1, -1], "c": [2, 2]}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from oracle.libraries import Library
from oracle.modules import build_module

OBS = gym.spaces.Box(-1000, 1000, (2,), np.float32)
ACT = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-99, 99, (1,), np.float32)


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


# -- pieces and pipelines --------------------------------------------------------------------------


@cache
def piece_class(library: Library) -> Any:
    """A user's piece around a function `(piece, batch, episodes) -> batch or None`; it keeps its call's keywords."""

    class UserPiece(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __init__(self, function: Any = None) -> None:
            super().__init__()
            self.function = function

        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            self.keywords = {"rl_module": rl_module, **kwargs}
            made = self.function(self, batch, episodes) if self.function else None
            return batch if made is None else made

    return UserPiece


def user(library: Library, function: Callable[[Any, Any, Any], Any] | None = None) -> Any:
    """A new piece of that class."""
    return piece_class(library)(function)


def wired(piece: Any, observations: gym.Space[Any], actions: gym.Space[Any] = ACT) -> Any:
    """The piece with the spaces that a pipeline gives it."""
    piece.input_action_space = actions
    piece.input_observation_space = observations
    return piece


def names(pipeline: Any) -> list[str]:
    """The class names of a pipeline's pieces."""
    return [type(piece).__name__ for piece in pipeline]


def both_spaces(obs: Any = OBS, act: Any = ACT) -> dict[str, Any]:
    """Spaces as configs take them."""
    return {"__env__": (obs, act), "__env_single__": (obs, act)}


def config(library: Library, obs: Any = OBS, act: Any = ACT) -> Any:
    """PPO's config for these spaces."""
    return library.PPOConfig().environment(observation_space=obs, action_space=act)


def learner(library: Library) -> Any:
    """The default learner pipeline."""
    return config(library).build_learner_connector(OBS, ACT, device=torch.device("cpu"))


def acting(library: Library, obs: Any = OBS, act: Any = ACT, **environment: Any) -> tuple[Any, Any]:
    """The default env-to-module and module-to-env pipelines."""
    settings = config(library, obs, act).environment(**environment)
    spaces = both_spaces(obs, act)
    to_module = settings.build_env_to_module_connector(env=None, spaces=spaces, device=None)
    return to_module, settings.build_module_to_env_connector(env=None, spaces=spaces)


def run(pipeline: Any, episodes: list[Any], *, rl_module: Any = None, batch: Any = None, **keywords: Any) -> Any:
    """What a pipeline or a piece makes of a batch, {} unless one is given."""
    call = {"explore": False, "shared_data": {}, **keywords}
    return pipeline(rl_module=rl_module, batch={} if batch is None else batch, episodes=episodes, **call)


def filtered(library: Any, piece: Any, rows: Any) -> list[Any]:
    """What a filter makes of one episode's observations, one call each."""
    episode, shown = library.SingleAgentEpisode(id_="e"), []
    for i, row in enumerate(rows):
        if i:
            episode.add_env_step(row, 0, 0.0)
        else:
            episode.add_env_reset(row)
        run(piece, [episode])
        shown.append(episode.get_observations(-1))
    return shown


# -- environments and runners ----------------------------------------------------------------------


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


def runner(
    library: Library, lengths: tuple[int, ...] = (3,), num_envs: int = 1, configure: Any = None, **env_runners: Any
) -> Any:
    """A runner on `Walk`; `configure` is called with its config."""
    config = settings(library, lengths, num_envs, **env_runners)
    if configure is not None:
        configure(config)
    return make_runner(library, config)
