"""Sync, async and native vector environments in every autoreset mode give the episodes of a plain loop.

The reference is written without the package: one environment after the other, one step after the other.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow_but
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.algorithms import PPOConfig
from epibatch.core.columns import Columns
from epibatch.core.errors import EnvironmentContractError, RunnerError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner, environment_seeds
from fixture_episodes import leaves

SEED, NUM_ENVS = 100, 4
SEEDS = environment_seeds(SEED, NUM_ENVS)
LENGTHS = (1, 4, 4, 2, 1, 7)  # environments 0 and 3 play the same lengths and so end together
MODES = ["next_step", "same_step", "disabled"]
WAYS = list(itertools.product(["sync", "async", "native"], MODES))
QUICK = [("sync", "disabled"), ("async", "same_step"), ("native", "next_step")]
BOX = gym.spaces.Box(0, 99, (2, 1), np.float32)
OBSERVATIONS = {
    "box": BOX,
    "dict": gym.spaces.Dict(far=BOX, near=gym.spaces.Discrete(5)),
    "tuple": gym.spaces.Tuple([gym.spaces.Discrete(97), BOX]),
    "discrete": gym.spaces.Discrete(97),
}
PAIR = (gym.spaces.Discrete(3), gym.spaces.Box(-5.0, 5.0, (2,), np.float32))
ACTIONS = {
    "discrete": gym.spaces.Discrete(3),
    "dict": gym.spaces.Dict(choose=PAIR[0], move=PAIR[1]),
    "tuple": gym.spaces.Tuple([gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Dict(deep=PAIR[1])]),
}


class Scripted(gym.Env):
    """A number s goes on by a rule of s and the action; what is seen is s and the time, in reused arrays.

    Episode e of environment k (told by its first seed) has LENGTHS[k + e] steps; one in three ends
    terminated, truncated, or both.
    """

    def __init__(self, observe: str = "box", act: str = "discrete", reuses: bool = True):
        self.observation_space, self.action_space = OBSERVATIONS[observe], ACTIONS[act]
        self.observe, self.episode, self.row, self.reuses = observe, -1, np.zeros((2, 1), np.float32), reuses

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.number, self.episode = SEEDS.index(seed) if seed in SEEDS else seed, -1
        self.episode, self.t = self.episode + 1, 0
        self.s = (7 * self.number + 5 * self.episode) % 97
        return self._seen(), self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        whole = [int(np.sum(np.round(leaf))) for leaf in leaves(action)]
        self.t, self.s = self.t + 1, (3 * self.s + sum(whole) + 1) % 97
        ended, end = self.t == LENGTHS[(self.number + self.episode) % len(LENGTHS)], self.episode % 3
        return self._seen(), self.s / 2, ended and end != 1, ended and end != 0, self._info()

    def _seen(self) -> Any:
        self.row = self.row if self.reuses else self.row.copy()
        self.row[:, 0] = self.s, self.t
        near = np.int64(self.s % 5)
        return {
            "box": self.row, "dict": {"far": self.row, "near": near},
            "tuple": (np.int64(self.s), self.row), "discrete": np.int64(self.s),
        }[self.observe]  # fmt: skip

    def _info(self) -> dict[str, Any]:
        info = {"who": f"{self.number}/{self.episode}", "deep": {"s": self.s, "row": np.array([self.s, self.t])}}
        return {**info, "rare": self.s / 4} if self.s % 3 == 0 else info


def scripted_vector(num_envs: int, observe: str, act: str, autoreset_mode: Any = AutoresetMode.NEXT_STEP) -> Any:
    """A vector environment of the user over the same rule; it writes observations into arrays that it reuses."""
    envs = [lambda: Scripted(observe, act, reuses=False)] * num_envs
    return SyncVectorEnv(envs, copy=False, autoreset_mode=autoreset_mode)


def code(observation: Any) -> Any:
    """The number s out of one observation, or of a batch of them."""
    if isinstance(observation, tuple):
        return observation[0]
    if isinstance(observation, dict):
        return observation["far"][..., 0, 0]
    return observation[..., 0, 0] if observation.ndim >= 2 else observation


class Rule(TorchRLModule):
    """Acts by s alone; `note` is an output of its own."""

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        s = self._number(batch)
        return {Columns.ACTIONS: self._actions(s % 3), "note": s * 0.25, **self._state(s, batch)}

    def _number(self, batch: Any) -> Any:
        return code(batch[Columns.OBS])

    def _state(self, s: Any, batch: Any) -> Any:
        return {}

    def _actions(self, n: Any) -> Any:
        n = n.long()
        pair = torch.stack([n, -n], -1).float()
        if isinstance(self.action_space, gym.spaces.Dict):
            return {"choose": n, "move": pair}
        if isinstance(self.action_space, gym.spaces.Tuple):
            return (torch.stack([n, n + 1], -1), {"deep": pair})
        return n


class StackedRule(Rule):
    """Acts by the sum of s over the newest three frames."""

    def _number(self, batch: Any) -> Any:
        return batch[Columns.OBS][..., 0, :].sum(-1)


class Recurrent(Rule):
    """Acts by s and a state that remembers the whole episode."""

    def get_initial_state(self) -> Any:
        return {"h": np.zeros(1, np.float32)}

    def _number(self, batch: Any) -> Any:
        s = batch[Columns.OBS]
        s = s[0] if isinstance(s, tuple) else s["far"][..., 0, 0] if isinstance(s, dict) else s
        return (s if s.ndim == 2 else s[..., 0, 0]) + batch[Columns.STATE_IN]["h"]

    def _state(self, s: Any, batch: Any) -> Any:
        return {Columns.STATE_OUT: {"h": s % 11}}


def plain_episode(env: Any, policy: str, seed: int | None) -> dict[str, Any]:
    """One episode of one environment, step by step; `policy` is the rule of the module of that name."""
    observation, info = env.reset(seed=seed)
    rows, infos, history = [copied(observation)], [info], [float(code(observation))]
    columns: dict[str, list[Any]] = {"actions": [], "rewards": [], "note": [], "h": []}
    h, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        number = {"rule": history[-1], "stacked": sum(history[-3:]), "recurrent": history[-1] + h}[policy]
        n, h = int(number % 3), number % 11
        pair = np.array([n, -n], np.float32)
        action = {
            "Discrete": n, "Dict": {"choose": np.int64(n), "move": pair},
            "Tuple": (np.array([n, n + 1]), {"deep": pair}),
        }[type(env.action_space).__name__]  # fmt: skip
        observation, reward, terminated, truncated, info = env.step(action)
        for name, value in (("actions", action), ("rewards", reward), ("note", number / 4), ("h", h)):
            columns[name].append(value)
        rows.append(copied(observation))
        history.append(float(code(observation)))
        infos.append(info)
    return {**columns, "obs": rows, "infos": infos, "ended": (terminated, truncated)}


def copied(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: copied(value) for key, value in observation.items()}
    return tuple(map(copied, observation)) if isinstance(observation, tuple) else np.array(observation)


def assert_rows(found: Any, rows: list[Any], count: int) -> None:
    """A stacked column holds the first `count` of these rows."""
    if isinstance(rows[0], dict):
        assert set(found) == set(rows[0])
        for key in rows[0]:
            assert_rows(found[key], [row[key] for row in rows], count)
    elif isinstance(rows[0], tuple):
        assert len(found) == len(rows[0])
        for i, part in enumerate(found):
            assert_rows(part, [row[i] for row in rows], count)
    else:
        np.testing.assert_allclose(found, rows[:count], rtol=1e-6)


def assert_prefix(episode: Any, expected: dict[str, Any]) -> None:
    """An episode is the expected one, or as much of it as was played."""
    played = len(episode)
    assert played == len(expected["rewards"]) if episode.is_done else played < len(expected["rewards"])
    ends = expected["ended"] if episode.is_done else (False, False)
    assert (episode.is_terminated, episode.is_truncated) == ends
    assert_rows(episode.get_observations(), expected["obs"], played + 1)
    sample = episode.observation_space.sample()
    assert [leaf.dtype for leaf in leaves(episode.get_observations())] == [leaf.dtype for leaf in leaves(sample)]
    assert_rows(episode.get_actions(), expected["actions"], played)
    assert_rows(episode.get_rewards(), expected["rewards"], played)
    assert_rows(episode.get_extra_model_outputs("note"), expected["note"], played)
    if Columns.STATE_OUT in episode.extra_model_outputs:
        assert_rows(episode.get_extra_model_outputs(Columns.STATE_OUT)["h"][:, 0], expected["h"], played)
    for found, wanted in zip(episode.get_infos(), expected["infos"][: played + 1], strict=True):
        np.testing.assert_equal(found, wanted)


def runner_of(way: str, mode: str, observe: str, act: str, policy: str) -> Any:
    module = {"rule": Rule, "stacked": StackedRule, "recurrent": Recurrent}[policy]
    made = scripted_vector if way == "native" else Scripted
    config = PPOConfig().environment(made, env_config={"observe": observe, "act": act}, normalize_actions=False)
    config.debugging(seed=SEED).rl_module(
        rl_module_spec=RLModuleSpec(module_class=module, model_config={"max_seq_len": 5})
    )
    config.env_runners(
        num_envs_per_env_runner=NUM_ENVS,
        gym_env_vectorize_mode="vector_entry_point" if way == "native" else way,
        gym_env_autoreset_mode=mode,
        explore=False,
        **({"env_to_module_connector": [{"piece": "frame_stacking", "num_frames": 3}]} if policy == "stacked" else {}),
    )
    return SingleAgentEnvRunner(config=config)


def whole_episodes(chunks: list[Any]) -> list[Any]:
    """Chunks of one id put together, in order; each cut must fit."""
    by_id: dict[str, Any] = {}
    for chunk in chunks:
        if chunk.id_ in by_id:
            assert chunk.lookback >= min(1, chunk.t_started)
            by_id[chunk.id_].concat_episode(chunk)
            by_id[chunk.id_].is_truncated = chunk.is_truncated  # as in RLlib, concat lets terminated win
        else:
            assert chunk.t_started == 0
            by_id[chunk.id_] = chunk.slice(slice(None))
    return list(by_id.values())


CASES = [
    ("box", "discrete", "stacked"),
    ("box", "dict", "recurrent"),
    ("dict", "discrete", "recurrent"),
    ("tuple", "tuple", "rule"),
    ("discrete", "discrete", "recurrent"),
]


@pytest.mark.parametrize(("observe", "act", "policy"), CASES, ids=["-".join(case) for case in CASES])
@pytest.mark.parametrize(("way", "mode"), slow_but(QUICK, WAYS), ids=["-".join(way) for way in WAYS])
def test_episodes_are_those_of_a_plain_loop(way, mode, observe, act, policy):
    runner = runner_of(way, mode, observe, act, policy)
    try:
        chunks = [chunk for size in (3, 17, 1, 40, 8, 35) for chunk in runner.sample(num_timesteps=size)]
    finally:
        runner.stop()
    env, found = Scripted(observe, act), {}
    for episode in whole_episodes(chunks):
        found[episode.get_infos(0)["who"]] = episode
    assert len(found) == len({chunk.id_ for chunk in chunks})
    for k in range(NUM_ENVS):
        own = [who for who in found if who.startswith(f"{k}/")]
        assert own and sorted(own) == sorted(f"{k}/{e}" for e in range(len(own)))
        for e in range(len(own)):
            episode = found[f"{k}/{e}"]
            assert_prefix(episode, plain_episode(env, policy, SEEDS[k] if e == 0 else None))
            assert episode.is_done or e == len(own) - 1
    ends = {(e.is_terminated, e.is_truncated) for e in found.values() if e.is_done}
    assert ends == {(True, False), (False, True), (True, True)}
    assert {len(e) for e in found.values() if e.is_done} >= {1, 2, 4}


@pytest.mark.parametrize("act", ["dict", "tuple"])
@pytest.mark.parametrize(("way", "mode"), slow_but(QUICK, WAYS), ids=["-".join(way) for way in WAYS])
def test_nested_actions_drawn_at_random_fit_the_space(way, mode, act):
    runner = runner_of(way, mode, "box", act, "rule")
    chunks = runner.sample(
        num_timesteps=60, random_actions=True
    )  # the environment refuses what its space does not contain
    runner.stop()
    for episode in whole_episodes(chunks):
        env = Scripted("box", act)
        number, count = map(int, episode.get_infos(0)["who"].split("/"))
        for e in range(count + 1):
            env.reset(seed=SEEDS[number] if e == 0 else None)
        for t in range(len(episode)):
            _, reward, *_, info = env.step(episode.get_actions(t))
            assert reward == episode.get_rewards(t)
            np.testing.assert_equal(info, episode.get_infos(t + 1))


# ------------------------------------------------------------------------------------------- worker processes


class DiesOnce(Scripted):
    """Its first process ends without a word in the third step of environment 1; `wrong` lets it return nonsense."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        self.mark, self.wrong = Path(config["mark"]), config.get("wrong", False)

    def step(self, action: Any) -> Any:
        if self.number == 1 and not self.mark.exists():
            if self.wrong:
                self.mark.touch()
                return 0, 0
            if self.t == 2:
                self.mark.touch()
                os._exit(1)
        return super().step(action)


def async_runner(**env_config: Any) -> Any:
    config = PPOConfig().environment(DiesOnce, env_config=env_config).debugging(seed=SEED)
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="async", explore=False)
    return SingleAgentEnvRunner(config=config.rl_module(rl_module_spec=RLModuleSpec(module_class=Rule)))


def test_after_the_death_of_a_worker_process_sampling_goes_on(tmp_path):
    runner = async_runner(mark=str(tmp_path / "died"))
    with pytest.raises(RunnerError, match=r"DiesOnce[\s\S]*exit code"):
        runner.sample(num_timesteps=40)
    chunks = runner.sample(num_timesteps=40)
    runner.stop()
    # Environment 0 has ended its first episode by then; new processes begin with other seeds.
    assert chunks[0].get_infos(0)["who"] == "0/0" and chunks[0].is_done
    assert 40 <= sum(map(len, chunks[1:])) < 44


@pytest.mark.filterwarnings("ignore::UserWarning")  # what Gymnasium prints about the failing process
def test_what_a_worker_process_returned_is_named(tmp_path):
    runner = async_runner(mark=str(tmp_path / "wrong"), wrong=True)
    with pytest.raises(
        EnvironmentContractError, match=r"failed in step\(\)[\s\S]*DiesOnce\.step\(\)[\s\S]*2 values: 0, 0"
    ):
        runner.sample(num_timesteps=40)
    assert 40 <= sum(map(len, runner.sample(num_timesteps=40))) < 42
    runner.stop()
