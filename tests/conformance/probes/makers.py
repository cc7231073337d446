"""What probes are made of: spaces, pieces by themselves, minibatches and runners of both libraries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np

from oracle.libraries import RLLIB
from oracle.probes import plain

BOX = gym.spaces.Box(-99, 99, (1,), np.float32)
PAIR = gym.spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def wired(piece: Any, observations: gym.Space[Any], actions: gym.Space[Any] = DISCRETE) -> Any:
    """The piece with the spaces that a pipeline gives it."""
    piece.input_action_space = actions
    piece.input_observation_space = observations
    return piece


def rounded(value: Any) -> Any:
    """Plain values, fractions to four digits."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(item) for item in value)
    return round(value, 4) if isinstance(value, float) else value


def filtered(library: Any, piece: Any, rows: Any) -> list[Any]:
    """What a filter makes of one episode's observations, one call each."""
    episode = library.SingleAgentEpisode(id_="e")
    shown = []
    for i, row in enumerate(rows):
        if i:
            episode.add_env_step(row, 0, 0.0)
        else:
            episode.add_env_reset(row)
        piece(rl_module=None, batch={}, episodes=[episode])
        shown.append(episode.get_observations(-1))
    return shown


def user_piece(library: Any, function: Callable[[Any, Any, Any], None]) -> Any:
    """A piece that calls `function(piece, batch, episodes)`."""

    class User(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            function(self, batch, episodes)
            return batch

    return User()


def minibatches(library: Any, batches: dict[str, dict[str, Any]], size: int) -> dict[str, Any]:
    """For each module the column `x` of its first five minibatches in one epoch, unshuffled."""
    if library is not RLLIB:
        made = library.module("learner.minibatches").Minibatches
        return {
            name: [plain(part["x"]) for part in islice(made(batch, size=size, shuffle=None), 5)]
            for name, batch in batches.items()
        }
    sample_batch = library.module("policy.sample_batch")
    columns = {
        name: sample_batch.SampleBatch(batch, _zero_padded="seq_lens" in batch) for name, batch in batches.items()
    }
    for name, batch in columns.items():
        if "seq_lens" in batches[name]:  # as its Learner does for recurrent modules
            batch.enable_slicing_by_batch_id()
    together = sample_batch.MultiAgentBatch(columns, 1)
    parts = library.module("utils.minibatch_utils").MiniBatchCyclicIterator(
        together, minibatch_size=size, shuffle_batch_per_epoch=False
    )
    shown: dict[str, Any] = {name: [] for name in batches}
    for part in islice(parts, 5):
        for name, own in part.policy_batches.items():
            shown[name].append(plain(own["x"]) if "x" in own else "no columns")
    return shown


class Counting(gym.Env[Any, Any]):
    """Episodes of `length` steps with observation [t] and reward t - 0.5.

    Every second environment that is made fails: of the calls of `method`, counted over all of these, in `failing`.
    """

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length, failing, method = 99, range(0), "step"
    made = calls = 0

    def __init__(self, config: Any = None) -> None:
        type(self).made += 1
        self.number = self.made

    def _count(self, method: str) -> None:
        if method == self.method and self.number % 2 == 0:
            type(self).calls += 1
            if self.calls in self.failing:
                raise ConnectionError("simulator lost")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._count("reset")
        self.t = 0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> Any:
        self._count("step")
        self.t += 1
        return np.array([self.t], np.float32), self.t - 0.5, self.t == self.length, False, {}


def runner_of(
    library: Any, environment: dict[str, Any], configure: Callable[[Any], None] | None = None, **settings: Any
) -> tuple[Any, Any]:
    """A runner on `Counting` environments, and the class of these, which has counted their calls."""
    env = type("Counting", (Counting,), {"made": 0, "calls": 0, **environment})
    config = library.PPOConfig().environment(env).env_runners(num_env_runners=0, **settings)
    if configure is not None:
        configure(config)
    return library.SingleAgentEnvRunner(config=config, worker_index=0), env
