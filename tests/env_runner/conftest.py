"""Environments, modules and pieces whose every value can be told from its place.

Environment number k (from 0, in order of creation) plays episodes e = 0, 1, ... of lengths that repeat
(3, 5, 2) rotated by k. Its observation at time t of episode e is [1000 k + 100 e + t, t], so every
observation differs from every other one; its info says the same code. The reward of the step from t to
t + 1 is 10 k + t + 0.5. Even episodes end terminated, odd ones truncated.
The module acts t % 2, greedily or (with logits 30 apart) practically always when it explores.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2, Piece
from epibatch.core.columns import Columns
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner

LENGTHS = (3, 5, 2)
MODES = {mode.name.lower(): mode for mode in AutoresetMode}


def length_of(env: int, episode: int) -> int:
    return LENGTHS[(env + episode) % 3]


class Coded(gym.Env):
    """The environment of this file's docstring; `fail_at=(k, e, t)` raises once in that step."""

    def __init__(self, number: int = 0, *, action_space: Any = None, fail_at: Any = None, fail_in_reset: Any = None):
        self.number, self.fail_at, self.fail_in_reset = number, fail_at, fail_in_reset
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(2)
        self.episode = -1
        self.seeds: list[int | None] = []
        self.shown: list[int] = []
        self.actions: list[Any] = []
        self.closed = 0

    def _now(self) -> Any:
        self.shown.append(1000 * self.number + 100 * self.episode + self.t)
        return np.array([self.shown[-1], self.t], np.float32), {"code": self.shown[-1]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        if self.fail_in_reset == (self.number, self.episode + 1):
            self.fail_in_reset = None
            raise ConnectionError("no answer")
        self.episode, self.t = self.episode + 1, 0
        return self._now()

    def step(self, action: Any) -> Any:
        if self.fail_at == (self.number, self.episode, self.t):
            self.fail_at = None
            raise ConnectionError("simulator lost")
        self.actions.append(np.array(action))
        reward, self.t = 10 * self.number + self.t + 0.5, self.t + 1
        ended = self.t == length_of(self.number, self.episode)
        return (
            *self._now()[:1],
            reward,
            ended and self.episode % 2 == 0,
            ended and self.episode % 2 == 1,
            {"code": self.shown[-1]},
        )

    def close(self) -> None:
        self.closed += 1


class Parity(TorchRLModule):
    """Acts t % 2; with a Box action space, the mean 0.5 or -0.5 by the same rule."""

    def setup(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        odd = batch[Columns.OBS][..., 1] % 2
        if isinstance(self.action_space, gym.spaces.Box):
            return {Columns.ACTION_DIST_INPUTS: torch.stack([odd - 0.5, torch.full_like(odd, -20.0)], -1)}
        return {Columns.ACTION_DIST_INPUTS: 30.0 * torch.stack([1 - odd, odd], -1)}


class SeenPlain(ConnectorV2):
    """An undeclared piece that notes the code of the newest observation of every episode it is shown."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, seen=None, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.seen = seen

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.seen.append(int(episode.get_observations(-1)[0]))
        return batch


class SeenColumnar(Piece):
    """The same, as a columnar piece."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, seen=None):
        super().__init__(input_observation_space, input_action_space)
        self.seen = seen

    def run(self, batch, call):
        self.seen += call.reader.newest("obs")[0][:, 0].astype(int).tolist()
        return batch


class Toys:
    """Makes runners on these environments and remembers them."""

    Module = Parity
    pieces = {"undeclared": SeenPlain, "columnar": SeenColumnar}  # noqa: RUF012
    modes = tuple(MODES)
    length_of = staticmethod(length_of)

    def __init__(self) -> None:
        self.runners: list[Any] = []
        self.envs: list[Coded] = []

    def config(self, num_envs: int = 2, *, env: Any = None, seed: Any = 7, **settings: Any) -> Any:
        config = PPOConfig().environment(env or self.factory()).debugging(seed=seed)
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=Parity))
        return config.env_runners(num_envs_per_env_runner=num_envs, **settings)

    def factory(self, **options: Any) -> Any:
        numbers = itertools.count()

        def make(env_config: Any) -> Coded:
            self.envs.append(Coded(next(numbers), **options))
            return self.envs[-1]

        return make

    def runner(
        self,
        num_envs: int = 2,
        *,
        mode: str | None = None,
        copy: bool = True,
        env: Any = None,
        seed: Any = 7,
        config: Any = None,
        worker_index: int = 0,
        **settings: Any,
    ) -> Any:
        """A runner; with `mode`, its vector environment is made here, with that autoreset mode."""
        config = config or self.config(num_envs, env=env, seed=seed, **settings)
        cls = SingleAgentEnvRunner
        if mode is not None:

            class Own(SingleAgentEnvRunner):
                def make_env(self) -> Any:
                    makers = [lambda: config.env({}) for _ in range(num_envs)]
                    return SyncVectorEnv(makers, copy=copy, autoreset_mode=MODES[mode])

            cls = Own
        self.runners.append(cls(config=config, worker_index=worker_index))
        return self.runners[-1]

    @staticmethod
    def joined(chunks: Any) -> dict[tuple[int, int], Any]:
        """Whole episodes or what there is of them, by (environment, number), chunks put together."""
        by_id: dict[str, Any] = {}
        for chunk in chunks:
            if chunk.id_ in by_id:
                by_id[chunk.id_].concat_episode(chunk)
            else:
                by_id[chunk.id_] = chunk.slice(slice(None))
        codes = {id_: int(episode.get_observations(0)[0]) for id_, episode in by_id.items()}
        return {(codes[id_] // 1000, codes[id_] // 100 % 10): episode for id_, episode in by_id.items()}

    @staticmethod
    def check(episode: Any) -> None:
        """Every value of an episode (or chunk) is the one its place says."""
        env, number = (int(episode.get_observations(0)[0]) // base % 10 for base in (1000, 100))
        times = np.arange(episode.t_started, episode.t + 1)
        np.testing.assert_array_equal(episode.get_observations()[:, 0], 1000 * env + 100 * number + times)
        np.testing.assert_array_equal(episode.get_observations()[:, 1], times)
        np.testing.assert_array_equal(episode.get_rewards(), 10 * env + times[:-1] + 0.5)
        assert [info["code"] for info in episode.get_infos()] == (1000 * env + 100 * number + times).tolist()
        ended = episode.t == length_of(env, number)
        assert (episode.is_terminated, episode.is_truncated) == (ended and number % 2 == 0, ended and number % 2 == 1)

    def shown(self) -> Counter[int]:
        """How often each observation was given out by the environments."""
        return Counter(code for env in self.envs for code in env.shown)


@pytest.fixture
def toys() -> Any:
    made = Toys()
    yield made
    for runner in made.runners:
        runner.stop()
