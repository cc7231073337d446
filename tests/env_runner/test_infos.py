"""Infos of environments that step together: an episode has what its own environment returned, whatever the others
return beside it. Each environment's log of its infos, pickled as it returns them, is the independent source."""

from __future__ import annotations

import pickle
import warnings
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import EnvironmentContractError
from epibatch.env_runner import MultiAgentEnv, SingleAgentEnvRunner, SyncEnvs

BOX, DISCRETE = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
ZERO = np.zeros(1, np.float32)


class Point(NamedTuple):
    x: int
    y: list[int]


class Pair(tuple[Any, ...]):
    """A tuple with a constructor and an attribute of its own."""

    def __new__(cls, first: Any, second: Any) -> Pair:
        return super().__new__(cls, (first, second))

    def __getnewargs__(self) -> Any:
        return tuple(self)


def _pair(n: int) -> Pair:
    pair = Pair(n, [n])
    pair.name = n  # type: ignore[attr-defined]
    return pair


def _in_itself(n: int) -> dict[str, Any]:
    info: dict[str, Any] = {"x": [n]}
    info["x"].append(info)
    return info


KINDS = (
    lambda n: {"x": 0 if n % 2 else 0.5},
    lambda n: {"x": True if n % 2 else 7},
    lambda n: {"x": None if n % 2 else "text"},
    lambda n: {"x": np.arange(n % 4 + 1)},
    lambda n: {"x": {"y": 1} if n % 2 else 2},
    lambda n: {"x": float("nan") if n % 2 else 1e300},
    lambda n: {"x": 2**70, "y": -(2**63) - 1},
    lambda n: {"_x": n, "x": 1} if n % 2 else {"_x": n},
    lambda n: {"final_obs": n, "final_info": {"x": n}, "_final_info": n % 2, "_final_obs": True},
    _in_itself,
    lambda n: {"x": Point(n, [n]), "y": OrderedDict(b={n}, a=deque([n], 9)), "z": (b"a", bytearray(b"a"))},
    lambda n: {1: n, None: [[], ()], ("a", 0): np.float32(n), "env_infos": [1], "episode": {"r": 1.0, "l": n}},
    lambda n: {"x": _pair(n), "y": [_pair(n)]},
    lambda n: {"x": np.array([n, None, [n]], object), "y": np.int8(1) if n % 2 else np.array("text")},
)


class Telling(gym.Env[Any, Any]):
    """Returns infos of every kind, and changes what it has returned in each step."""

    observation_space, action_space = BOX, DISCRETE

    def __init__(self, config: Any = None) -> None:
        self.log: list[bytes] = []
        self.hits: list[Any] = []
        self.returned: dict[Any, Any] = {}
        self.env = self.n = -1

    def info(self) -> dict[Any, Any]:
        self.n += 1
        self.hits.append(self.n)
        for value in self.returned.values():
            if isinstance(value, (list, set, deque, bytearray)):
                value.clear()
            elif isinstance(value, np.ndarray) and value.ndim:
                value[:] = -1
        self.returned.clear()
        self.returned.update(KINDS[(self.n + self.env) % len(KINDS)](self.n), env=self.env, hits=self.hits)
        self.log.append(pickle.dumps(self.returned))
        return self.returned

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.env = self.env if seed is None else seed
        self.t, self.length = 0, (self.n + self.env) % 5 + 1
        self.hits = []
        return ZERO, self.info()

    def step(self, action: Any) -> Any:
        self.t += 1
        return ZERO, 1.0, self.t == self.length, False, self.info()


class TellingAgents(MultiAgentEnv):
    """The same, for one of several agents."""

    possible_agents, observation_spaces, action_spaces = (
        ["a", "b"],
        {"a": BOX, "b": BOX},
        {"a": DISCRETE, "b": DISCRETE},
    )

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.one = Telling()

    @property
    def log(self) -> list[bytes]:
        return self.one.log

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.one.reset(seed=seed)
        return {"a": obs, "b": obs}, {"a": info}

    def step(self, actions: Any) -> Any:
        obs, reward, ended, _, info = self.one.step(actions["a"])
        return {"a": obs, "b": obs}, {"a": reward, "b": 0.0}, {"__all__": ended}, {}, {"a": info}


def assert_same(one: Any, other: Any, seen: frozenset[int] = frozenset()) -> None:
    """Equal in types and values, at any depth; what was seen on the way down is not compared again."""
    assert type(one) is type(other)
    if id(other) in seen:
        return
    seen |= {id(other)}
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        one, other = one.tolist(), other.tolist()
    if isinstance(one, (list, tuple, deque)):
        assert getattr(one, "__dict__", None) == getattr(other, "__dict__", None)
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b, seen)
    else:
        np.testing.assert_equal(one, other)


def runner_of(env: Any, num_envs: int, mode: str | None, vectorize: str = "sync", **settings: Any) -> Any:
    config = PPOConfig().environment(env).debugging(seed=0)
    config.env_runners(
        num_envs_per_env_runner=num_envs, gym_env_vectorize_mode=vectorize, gym_env_autoreset_mode=mode, **settings
    )
    if issubclass(env, MultiAgentEnv):
        config.multi_agent(policies={"p"}, policy_mapping_fn={"*": "p"})
    return config.build_algo().env_runner


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("vectorize", ["sync", "async"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled", "agents"])
def test_an_episode_has_what_its_own_environment_returned(mode: str, vectorize: str, num_envs: int) -> None:
    agents = mode == "agents"
    runner = runner_of(TellingAgents if agents else Telling, num_envs, None if agents else mode, vectorize)
    found: dict[int, list[Any]] = {}
    num_steps = 0
    for packed in (False, True):
        samples = runner.sample(num_timesteps=40 * num_envs, random_actions=True)
        for episode in pickle.loads(pickle.dumps(samples)) if packed else samples:
            infos = episode.agent_episodes["a"].get_infos() if agents else episode.get_infos()
            started = episode.env_t_started if agents else episode.t_started
            found.setdefault(infos[0]["env"], []).extend(infos[started > 0 :])
            num_steps += len(episode)
    logs = runner.env.call("log") if agents or vectorize == "async" else runner.env.get_attr("log")
    runner.stop()
    num_resets = sum(len(info["hits"]) == 1 for infos in found.values() for info in infos)
    assert sum(map(len, found.values())) - num_resets == num_steps >= 80 * num_envs
    assert len(found) == num_envs
    for log in logs:
        returned = [pickle.loads(info) for info in log]
        actual = found[returned[0]["env"]]
        assert len(actual) > 13 and len(returned) - len(actual) in (0, 1)
        for one, other in zip(returned, actual):
            assert_same(one, other)


class Ending(gym.Env[Any, Any]):
    """Episodes of two steps; the info of call number k, resets included, is `infos[k]`, and {} if there is none."""

    observation_space, action_space = BOX, DISCRETE

    def __init__(self, infos: dict[int, Any]) -> None:
        self.infos, self.calls, self.t = infos, 0, 0

    def told(self) -> Any:
        self.calls += 1
        return self.infos.get(self.calls, {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return ZERO, self.told()

    def step(self, action: Any) -> Any:
        self.t += 1
        return ZERO, 1.0, self.t == 2, False, self.told()


MODES = {mode.name.lower(): mode for mode in gym.vector.AutoresetMode}


def runner_over(made: Any) -> Any:
    config = PPOConfig().environment(lambda num_envs: made)
    config.env_runners(num_envs_per_env_runner=made.num_envs, gym_env_vectorize_mode="vector_entry_point")
    return SingleAgentEnvRunner(config=config)


def ending(*infos: dict[int, Any], mode: str) -> SyncEnvs:
    return SyncEnvs([lambda info=info: Ending(info) for info in infos], autoreset_mode=MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("told", [None, [1], "text"])
@pytest.mark.parametrize("call", [3, 4])
def test_an_info_that_is_no_dict_loses_no_ended_episode(mode: str, told: Any, call: int) -> None:
    runner = runner_over(ending({call: told}, {}, {}, mode=mode))
    with pytest.raises(EnvironmentContractError, match=r"number 0[\s\S]*a dict as info"):
        runner.sample(num_timesteps=30, random_actions=True)
    ended = [episode for episode in runner.sample(num_timesteps=1, random_actions=True) if episode.is_terminated]
    assert [len(episode) for episode in ended] == [2] * (2 if call == 3 else 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_warning_that_is_an_error_loses_no_ended_episode(mode: str) -> None:
    told = {"terminal_observation": 0}
    runner = runner_over(ending({3: told}, {3: told}, mode=mode))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if mode != "same_step":  # the reset is part of the step
            with pytest.raises(UserWarning, match="terminal_observation"):
                runner.sample(num_timesteps=30, random_actions=True)
        ended = [e for e in runner.sample(num_timesteps=4, random_actions=True) if e.is_terminated]
    assert [(len(e), e.get_infos(-1)) for e in ended] == [(2, told)] * 2


@pytest.mark.parametrize(
    ("vectorize", "mode"),
    [  # Gymnasium's class resets in the same step before anybody can copy the terminal info
        *((SyncEnvs, mode) for mode in MODES),
        *((gym.vector.SyncVectorEnv, mode) for mode in ("next_step", "disabled")),
    ],
)
def test_lists_that_an_environment_goes_on_filling(vectorize: Any, mode: str) -> None:
    hits: list[int] = []

    class Filling(Ending):
        def told(self) -> Any:
            hits.append(len(hits))
            return {"hits": hits}

    runner = runner_over(vectorize([lambda: Filling({})], autoreset_mode=MODES[mode]))
    episodes = runner.sample(num_episodes=2, random_actions=True)
    assert [len(info["hits"]) for episode in episodes for info in episode.get_infos()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_columns_of_vector_wrappers_join_the_infos(mode: str) -> None:
    told = {number: {"episode": {"r": number, "l": 0}, "call": number} for number in (1, 4)}
    runner = runner_over(gym.wrappers.vector.RecordEpisodeStatistics(ending(told, {}, mode=mode)))
    episodes = runner.sample(num_episodes=4, random_actions=True)
    assert [episode.get_infos(0) for episode in episodes] == [told[1], {}, told[4], {}]
    assert [list(episode.get_infos(-1)) for episode in episodes] == [["episode"]] * 4


class Columns(gym.vector.VectorEnv[Any, Any, Any]):
    """Two environments with episodes of three steps, whose vector environment returns `infos` in step three."""

    num_envs, single_observation_space, single_action_space = 2, BOX, DISCRETE
    observation_space, action_space = gym.spaces.Box(-1, 1, (2, 1)), gym.spaces.MultiDiscrete([2, 2])

    def __init__(self, infos: Any) -> None:
        self.infos, self.t = infos, 0
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        ended = np.full(2, self.t % 4 == 3)
        return np.zeros((2, 1), np.float32), np.ones(2), ended, np.zeros(2, bool), self.infos if ended[0] else {}


INFO = {"a": 1}
IN_A_LIST = ([INFO, None], (INFO, None), np.array([INFO, None], object), [INFO, {}])
AS_COLUMNS = (
    ({"env_infos": np.arange(2)}, [{"env_infos": 0}, {"env_infos": 1}]),
    ({"env_infos": [5, {"b": 2}]}, [{"env_infos": 5}, {"b": 2}]),
    ({"env_infos": [{}]}, [{"env_infos": [{}]}] * 2),
    ({"env_infos": None}, [{"env_infos": None}] * 2),
    ({"env_infos": np.array(None)}, [{"env_infos": np.array(None)}] * 2),
    ({"x": [1], 7: (1, 2, 3)}, [{"x": [1], 7: (1, 2, 3)}] * 2),
    ({"x": np.arange(2), "_x": [False, True]}, [{}, {"x": 1}]),
    ({"x": np.arange(2), "_x": [True]}, [{"x": 0}, {"x": 1}]),
)


@pytest.mark.parametrize(
    ("infos", "expected"),
    [*(({"env_infos": told, "n": 2}, [{"a": 1, "n": 2}, {"n": 2}]) for told in IN_A_LIST), *AS_COLUMNS],
)
def test_infos_of_a_users_vector_environment_lose_no_ended_episode(infos: Any, expected: Any) -> None:
    episodes = runner_over(Columns(infos)).sample(num_episodes=2, random_actions=True)
    assert [(len(episode), episode.is_terminated) for episode in episodes] == [(3, True)] * 2
    assert [episode.get_infos(-1) for episode in episodes] == expected
    assert [episode.get_infos(-1) for episode in pickle.loads(pickle.dumps(episodes))] == expected


def test_what_an_info_has_twice_stays_one_and_its_type_stays() -> None:
    array, numbers = np.zeros(2), [1]
    returned: Any = OrderedDict(array=array, numbers=numbers, both=[array, numbers], n=1)
    returned["info"] = returned
    info = ending({1: returned}, mode="disabled").reset()[1]["env_infos"][0]
    assert type(info) is OrderedDict and list(info) == list(returned) and info["info"] is info
    assert info["both"][0] is info["array"] is not array and info["both"][1] is info["numbers"] is not numbers


def test_what_step_returns() -> None:
    envs = ending({1: {"x": 1}}, {3: {"y": 2}, 4: {"z": 3}}, mode="same_step")
    assert envs.reset()[1] == {"env_infos": [{"x": 1}, {}]}
    assert envs.step(np.zeros(2, int))[4] == {}
    infos = envs.step(np.zeros(2, int))[4]
    assert infos["env_infos"] == [{}, {"z": 3}] and infos["final_info"] == [{}, {"y": 2}]
    assert [row.tolist() for row in infos["final_obs"]] == [[0.0], [0.0]] and infos["_final_obs"].all()
