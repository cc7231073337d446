"""Environments in one process beside Gymnasium's own class: the same environments, actions and resets must give the
same results."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from fixture_cases import random_examples
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import RunnerError
from epibatch.env_runner import make_vector_env
from fixture_envs import CountingEnv, FailingEnv

BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES: dict[str, gym.Space[Any]] = {
    "vector": BOX,
    "image": gym.spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "number": gym.spaces.Discrete(9),
    "nested": gym.spaces.Dict(a=BOX, b=gym.spaces.Tuple((gym.spaces.Discrete(9), BOX))),
}
ACTIONS: dict[str, gym.Space[Any]] = {
    "number": gym.spaces.Discrete(4),
    "nested": gym.spaces.Dict(x=gym.spaces.Discrete(4), y=BOX),
}


class Scripted(gym.Env[Any, Any]):
    """Draws everything that it returns from a seed of its own, in many shapes and types."""

    def __init__(self, number: int, observations: str, actions: str) -> None:
        self.observation_space, self.action_space = SPACES[observations], ACTIONS[actions]
        self.random = np.random.default_rng(number)
        self.log: list[Any] = []

    def _seen(self) -> Any:
        self.observation_space.seed(int(self.random.integers(1000)))
        seen = self.observation_space.sample()
        return seen.astype(np.float64) if self.observation_space is BOX and self.random.random() < 0.1 else seen

    def _told(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [{}, {"a": 1.5}, {"b": "text", "c": {"d": np.arange(2)}}]
        return choices[self.random.integers(3)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.log.append(("reset", seed, options))
        return self._seen(), self._told()

    def step(self, action: Any) -> Any:
        self.log.append(("step", repr(action)))
        rewards = [1, 0.5, np.float32(0.25), np.array(2.0), True]
        flags = [False, False, np.False_, 0, True, np.True_]
        ends = [flags[i] for i in self.random.integers(6, size=2)]
        return self._seen(), rewards[self.random.integers(5)], *ends, self._told()


def by_env(infos: dict[str, Any], number: int = 3) -> list[dict[str, Any]]:
    """Gymnasium's columns as what each environment has in them."""
    rows: list[dict[str, Any]] = [{} for _ in range(number)]
    for key in [key for key in infos if f"_{key}" in infos]:
        column = by_env(infos[key], number) if isinstance(infos[key], dict) else infos[key]
        for i in np.flatnonzero(infos[f"_{key}"]):
            rows[i][key] = column[i]
    return rows


def equal_results(theirs: Any, ours: Any) -> None:
    """The same, with our infos as a list of dicts."""
    equal(theirs[:-1], ours[:-1])
    theirs, ours = theirs[-1], {"env_infos": [{}] * 3, **ours[-1]}
    ends = [{key: theirs.pop(key) for key in ("final_obs", "_final_obs") if key in theirs}]
    ends.append({key: ours.pop(key) for key in ends[0]})
    equal(*ends)
    final = {key: theirs.pop(key) for key in ("final_info", "_final_info") if key in theirs}
    final_infos = [info.get("final_info", {}) for info in by_env(final)]
    np.testing.assert_equal(final_infos, ours.pop("final_info", [{}] * 3))
    np.testing.assert_equal({"env_infos": by_env(theirs)}, ours)


def equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, tuple) or (isinstance(one, np.ndarray) and one.dtype == object):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            equal(a, b)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@settings(max_examples=random_examples(15))
@given(
    st.sampled_from(list(AutoresetMode)),
    st.sampled_from(sorted(SPACES)),
    st.sampled_from(sorted(ACTIONS)),
    st.integers(0, 50),
    st.sampled_from([None, 7, [5, None, 3]]),
)
def test_everything_is_as_gymnasium_has_it(mode: Any, observations: str, actions: str, first: int, seed: Any) -> None:
    numbers = itertools.count(first)
    theirs = SyncVectorEnv(
        [lambda k=k: Scripted(first + k, observations, actions) for k in range(3)], autoreset_mode=mode
    )
    ours = make_vector_env(lambda: Scripted(next(numbers), observations, actions), 3, autoreset=mode)
    envs = [theirs, ours]
    assert ours.observation_space == theirs.observation_space and ours.metadata == theirs.metadata
    own_seed = np.int64(seed) if isinstance(seed, int) else seed  # a type that Gymnasium does not take
    equal_results(theirs.reset(seed=seed, options={"level": 2}), ours.reset(seed=own_seed, options={"level": 2}))
    ours.action_space.seed(first)
    for step in range(12):
        if step == 7:
            equal_results(*[env.reset() for env in envs])
        action = ours.action_space.sample()
        results = [env.step(action) for env in envs]
        equal_results(*results)
        done = results[0][2] | results[0][3]
        if mode is AutoresetMode.DISABLED and done.any():
            with pytest.raises(RunnerError, match=rf"environments \[{np.flatnonzero(done)[0]}[\s\S]*reset_mask"):
                ours.step(action)
            equal_results(*[env.reset(options={"reset_mask": done.copy(), "level": 3}) for env in envs])
    assert all(one.unwrapped.log == other.unwrapped.log for one, other in zip(*[env.envs for env in envs]))


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("mode", "call", "number", "ends"),
    [
        ("next_step", "step", 1, [False, True]),
        ("same_step", "step", 1, [False, True]),
        ("same_step", "reset", 2, [True, True]),  # the step itself is good
    ],
)
def test_an_environment_that_fails_does_not_lose_the_others_step(mode, call, number, ends, failing) -> None:
    made = [FailingEnv(**{call: number}, length=1), CountingEnv(1)]
    made = made if failing == 0 else made[::-1]
    envs = make_vector_env(lambda: made.pop(0), 2, autoreset=mode)
    envs.reset()
    _, rewards, terminateds, _, infos = envs.try_step(np.array([0, 0]))
    expected = ends if failing == 0 else ends[::-1]
    assert terminateds.tolist() == expected and rewards.tolist() == [float(end) for end in expected]
    assert {env: str(error) for env, error in envs.failures.items()} == {failing: f"simulator lost in {call}()"}
    if mode == "same_step":
        assert infos["_final_obs"].tolist() == expected


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"seed": [1]}, r"seed[\s\S]*one for each of 2[\s\S]*1 of them"),
        ({"seed": [1, 2, 3]}, r"seed[\s\S]*3 of them"),
        ({"options": {"reset_mask": [True, False]}}, r"reset_mask[\s\S]*bool of shape \(2,\)[\s\S]*\[True, False\]"),
        ({"options": {"reset_mask": np.array([1, 0])}}, r"reset_mask[\s\S]*array\(\[1, 0\]\)"),
        ({"options": {"reset_mask": np.array([True])}}, "reset_mask"),
        ({"options": {"reset_mask": np.array([True] * 3)}}, "reset_mask"),
        ({"options": {"reset_mask": np.array([False, False])}}, "reset_mask"),
    ],
)
def test_seeds_and_masks_that_gymnasium_refuses_too(keywords: dict[str, Any], problem: str) -> None:
    theirs = SyncVectorEnv([CountingEnv] * 2, autoreset_mode=AutoresetMode.DISABLED)
    ours = make_vector_env(CountingEnv, 2, autoreset="disabled")
    for envs, error, match in ((theirs, AssertionError, "seeds|reset_mask"), (ours, RunnerError, problem)):
        with pytest.raises(error, match=match):
            envs.reset(**{name: dict(value) if name == "options" else value for name, value in keywords.items()})


def test_as_many_actions_as_environments() -> None:
    envs = make_vector_env(CountingEnv, 2)
    envs.reset()
    for actions in (np.zeros(1, int), np.zeros(3, int)):
        with pytest.raises(ValueError, match="zip"):
            envs.step(actions)


def test_observations_are_not_kept_but_rewards_and_flags_are() -> None:
    envs = make_vector_env(CountingEnv, 1)
    seen, _ = envs.reset()
    first = envs.step(np.array([0]))
    assert first[0] is seen and seen.tolist() == [[1.0]]
    second = envs.step(np.array([0]))
    assert all(one is not other for one, other in zip(first[1:4], second[1:4]))
