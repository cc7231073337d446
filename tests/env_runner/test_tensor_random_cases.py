"""A runner of tensors in random cases: spaces, ends, missing terminal observations, failures, calls in any order."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import FlattenObservations
from epibatch.connectors.env_to_module import PrevActionsPrevRewards
from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner

NEXT_STEP, SAME_STEP, DISABLED = gym.vector.AutoresetMode
OBSERVATIONS = {
    "box": spaces.Box(-9, 9, (3,), np.float32),
    "double": spaces.Box(-9, 9, (2,), np.float64),
    "dict": spaces.Dict({"a": spaces.Box(-9, 9, (2,), np.float32), "b": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Box(-9, 9, (1,), np.float32), spaces.Dict({"c": spaces.MultiDiscrete([2, 3])}))),
}
ACTIONS = {
    "box": spaces.Box(-2, 2, (2,), np.float32),
    "binary": spaces.MultiBinary(2),
    "dict": spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32), "y": spaces.Discrete(2)}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
}


def mapped(function: Any, first: Any, *others: Any) -> Any:
    """What a function makes of the leaves of structures that are nested alike."""
    if isinstance(first, dict):
        return {key: mapped(function, first[key], *(other[key] for other in others)) for key in first}
    if isinstance(first, tuple):
        return tuple(mapped(function, *parts) for parts in zip(first, *others))
    return function(first, *others)


def leaves(struct: Any) -> list[Any]:
    found: list[Any] = []
    mapped(found.append, struct)
    return found


class OfArrays(gym.vector.VectorEnv):
    """Random values; it writes into actions, and may reuse its memory."""

    tensors = False

    def __init__(self, num_envs: int, case: dict[str, Any]) -> None:
        self.num_envs, self.case, self.rng = num_envs, case, np.random.default_rng(case["seed"])
        self.single_observation_space, self.single_action_space = OBSERVATIONS[case["obs"]], ACTIONS[case["actions"]]
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.observation_space.seed(case["seed"])
        if len(case["reward"]):
            self.reward_space = spaces.Box(-9, 9, case["reward"])
        self.seen, self.memory, self.count = [], None, 0
        self.metadata, self.resets = {"autoreset_mode": case["mode"]}, np.zeros(num_envs, np.bool_)

    def drawn(self) -> Any:
        return mapped(np.array, self.observation_space.sample())

    def given(self, obs: Any) -> Any:
        self.newest = obs
        obs = mapped(torch.from_numpy, obs) if self.tensors else obs
        if self.memory is None or not self.case["reuse"]:
            self.memory = obs
        for memory, leaf in zip(leaves(self.memory), leaves(obs)):
            memory[:] = leaf
        return self.memory

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        drawn = self.drawn()
        if options:
            drawn = self.replaced(self.newest, options["reset_mask"], drawn)
        self.resets[:] = False
        return self.given(drawn), {}

    def replaced(self, rows: Any, mask: Any, new: Any) -> Any:
        return mapped(lambda a, b: np.where(mask.reshape(-1, *[1] * (a.ndim - 1)), b, a), rows, new)

    def step(self, actions: Any) -> Any:
        case, rng, n = self.case, self.rng, self.num_envs
        self.count += 1
        if self.count == case["fails"]:
            raise ConnectionError("lost")
        self.seen.append(mapped(np.array, actions))
        for leaf in leaves(actions):
            leaf[:] = 0
        ended = (rng.random(n) < case["ends"]) & ~self.resets
        terminated = ended & (rng.random(n) < 0.5)
        flags = [terminated, ended & ~terminated]
        last, first, has = self.drawn(), self.drawn(), ended & (rng.random(n) < case["final"])
        obs = self.replaced(last, ended, first) if case["mode"] == SAME_STEP else last
        rewards = rng.uniform(-1, 1, (n, *case["reward"])).astype(np.float32)
        self.resets = ended if case["mode"] == NEXT_STEP else self.resets
        infos: dict[str, Any] = {"_final_obs": has}
        if self.tensors:
            rewards, *flags = map(torch.from_numpy, (rewards, *(flag.astype(case["flags"]) for flag in flags)))
            infos["final_obs"] = mapped(torch.from_numpy, last)
        elif case["mode"] == SAME_STEP:
            infos["final_obs"] = np.empty(n, object)
            for i in np.flatnonzero(has):
                infos["final_obs"][i] = mapped(lambda leaf, i=i: leaf[i], last)
        return self.given(obs), rewards, *flags, infos if case["mode"] == SAME_STEP else {}


class OfTensors(OfArrays):
    tensors = True


def case_of(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    kinds = ("steps", "steps", "greedy", "random", "step", "episodes", "again", "reset")
    calls = [(one_of(*kinds), int(rng.integers(1, 12))) for _ in range(6)]
    case = {"seed": seed, "obs": one_of(*OBSERVATIONS), "actions": one_of(*ACTIONS), "n": int(rng.integers(1, 5))}
    case |= {"ends": one_of(0.1, 0.4, 1.0), "final": one_of(0.0, 0.5, 1.0), "flags": one_of(np.bool_, np.int64)}
    case |= {"reward": one_of((), (3,)), "reuse": one_of(True, False), "fails": one_of(0, 0, 7), "calls": calls}
    case |= {"mode": one_of(NEXT_STEP, SAME_STEP, DISABLED), "missing": one_of("keep", "zero", 1)}
    case |= {"lstm": one_of(True, False), "recorded": one_of(True, False), "lookback": one_of(0, 2, None)}
    return case


def runner_of(cls: Any, case: dict[str, Any], folder: Any) -> Any:
    torch.manual_seed(0)  # for the same weights
    pieces = [FlattenObservations()] + ([] if case["reward"] else [PrevActionsPrevRewards(n_prev_rewards=2)])
    config = PPOConfig().environment(OfTensors if cls is TensorEnvRunner else OfArrays, env_config={"case": case})
    config.env_runners(
        env_runner_cls=cls,
        num_envs_per_env_runner=case["n"],
        gym_env_vectorize_mode="vector_entry_point",
        env_to_module_connector=lambda *spaces: pieces,
        missing_final_obs=case["missing"],
    ).debugging(seed=3)
    if case["recorded"]:
        config.offline_data(output=str(folder))
    config.rl_module(model_config={"fcnet_hiddens": [8], "use_lstm": case["lstm"], "lstm_cell_size": 4})
    runner = cls(config=config)
    runner.require_lookback(case["lookback"])
    return runner


def call(runner: Any, kind: str, count: int) -> Any:
    try:
        if kind == "episodes":
            return runner.sample(num_episodes=count % 4 + 1)
        if kind in ("step", "reset"):
            return getattr(runner, kind)() or []
        settings = {"greedy": {"explore": False}, "random": {"random_actions": True}, "again": {"force_reset": True}}
        return runner.sample(num_timesteps=count, **settings.get(kind, {}))
    except ConnectionError:
        return "lost"


def rows_of(episode: Any, lookback: Any) -> dict[str, Any]:
    before = slice(-min(episode.t_started, 2 if lookback is None else lookback), None)
    names = ("observations", "actions", "rewards")
    rows = {name: getattr(episode, f"get_{name}")() for name in names}
    if before.start:
        for name in names:
            before = slice(before.start, 0)
            rows[f"before_{name}"] = getattr(episode, f"get_{name}")(before, neg_index_as_lookback=True)
    outputs = {name: episode.get_extra_model_outputs(name) for name in sorted(episode.extra_model_outputs)}
    return {**rows, **outputs, "return": episode.get_return(), "missing": len(episode.get_infos(-1) or {})}


def same(mine: Any, other: Any) -> None:
    if isinstance(mine, dict):
        assert mine.keys() == other.keys()
    for left, right in zip(leaves(mine), leaves(other), strict=True):
        assert np.allclose(left, right, atol=2e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_random_cases_are_those_of_arrays(seed: int, tmp_path: Any) -> None:
    case = case_of(seed)
    runners = [runner_of(cls, case, tmp_path) for cls in (SingleAgentEnvRunner, TensorEnvRunner)]
    ids: dict[str, str] = {}
    for kind, count in case["calls"]:
        mine, other = (call(runner, kind, count) for runner in runners)
        assert len(mine) == len(other)
        if mine == "lost":
            continue
        for left, right in zip(mine, other):
            assert ids.setdefault(left.id_, right.id_) == right.id_
            facts = [(len(each), each.t_started, each.is_terminated, each.is_truncated) for each in (left, right)]
            assert facts[0] == facts[1]
            same(*(rows_of(each, case["lookback"]) for each in (left, right)))
    for mine, other in zip(runners[0].env.seen, runners[1].env.seen, strict=True):
        same(mine, other)
    metrics = [runner.get_metrics() for runner in runners]
    for name in ("num_env_steps_sampled", "num_episodes", "episode_len_mean", "episode_return_mean"):
        assert metrics[0].get(name) == pytest.approx(metrics[1].get(name), abs=1e-4, nan_ok=True), name
    for runner in runners:
        runner.stop()
