"""Side by side with Gymnasium's own class: the same environments, actions and resets must give the same results."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import RunnerError, SpaceError
from epibatch.env_runner.vector_envs import SyncEnvs

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


def equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            equal(a, b)
    elif isinstance(one, np.ndarray) and one.dtype == object:
        equal(tuple(one), tuple(other))
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@settings(max_examples=40)
@given(
    st.sampled_from(list(AutoresetMode)),
    st.sampled_from(sorted(SPACES)),
    st.sampled_from(sorted(ACTIONS)),
    st.integers(0, 50),
    st.sampled_from([None, 7, [5, None, 3]]),
)
def test_everything_is_as_gymnasium_has_it(mode: Any, observations: str, actions: str, first: int, seed: Any) -> None:
    envs = [
        kind([lambda k=k: Scripted(first + k, observations, actions) for k in range(3)], autoreset_mode=mode)
        for kind in (SyncVectorEnv, SyncEnvs)
    ]
    ours = envs[1]
    assert ours.observation_space == envs[0].observation_space and ours.metadata == envs[0].metadata
    equal(*[env.reset(seed=seed, options={"level": 2}) for env in envs])
    ours.action_space.seed(first)
    for step in range(12):
        if step == 7:
            equal(*[env.reset() for env in envs])
        action = ours.action_space.sample()
        results = [env.step(action) for env in envs]
        equal(*results)
        done = results[0][2] | results[0][3]
        if mode is AutoresetMode.DISABLED and done.any():
            with pytest.raises(RunnerError, match=rf"environments \[{np.flatnonzero(done)[0]}[\s\S]*reset_mask"):
                ours.step(action)
            equal(*[env.reset(options={"reset_mask": done.copy(), "level": 3}) for env in envs])
    assert all(one.log == other.log for one, other in zip(*[env.envs for env in envs]))


class Fixed(gym.Env[Any, Any]):
    """Returns one observation after the other."""

    observation_space, action_space = BOX, gym.spaces.Discrete(2)

    def __init__(self, *rows: Any) -> None:
        self.rows = itertools.cycle(rows)

    def reset(self, **kwargs: Any) -> Any:
        return next(self.rows), {}

    def step(self, action: Any) -> Any:
        return next(self.rows), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (np.zeros(2, np.float32), r"float32 array of shape \(2,\)"),
        (np.zeros((1, 3), np.float32), r"float32 array of shape \(1, 3\)"),
        (np.float32(0), r"float32 array of shape \(\)"),
        (np.zeros(3, complex), r"complex128 array of shape \(3,\)"),
        ([[1.0], [2.0, 3.0]], "list"),
        (["1", "2", "3"], "list"),
        (None, "NoneType"),
    ],
)
def test_observations_that_do_not_fit_are_named_and_those_of_the_others_are_kept(row: Any, found: str) -> None:
    good = np.ones(3, np.float32)
    envs = SyncEnvs([lambda: Fixed(good), lambda: Fixed(good, row)])
    envs.reset()
    with pytest.raises(SpaceError, match=rf"observation of Fixed[\s\S]*numbers of shape \(3,\)[\s\S]*{found}"):
        envs.step(np.array([0, 1]))
    assert list(envs.failures) == [1]
    envs.reset()  # with the good one again
    assert not envs.failures
    observations, *_ = envs.try_step(np.array([0, 1]))
    assert observations[0].tolist() == [1.0] * 3 and list(envs.failures) == [1]


def test_a_type_that_the_space_cannot_hold_is_named() -> None:
    class Bytes(Fixed):
        observation_space = gym.spaces.Box(0, 255, (3,), np.uint8)

    envs = SyncEnvs([lambda: Bytes(np.zeros(3, np.uint8), np.full(3, 0.5))] * 2)
    envs.reset()
    with pytest.raises(SpaceError, match=r"observation of Bytes[\s\S]*uint8[\s\S]*Cannot cast"):
        envs.step(np.array([0, 1]))


NESTED = gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Tuple((BOX, gym.spaces.Dict(c=BOX))))
ROW = {"a": 1, "b": (np.zeros(3, np.float32), {"c": np.zeros(3, np.float32)})}


@pytest.mark.parametrize(
    ("row", "part", "found"),
    [
        ({"a": 1}, "Nested\n", "['a']"),
        ({**ROW, "more": 1}, "Nested\n", "['a', 'b', 'more']"),
        ({**ROW, "b": (*ROW["b"], 1)}, "Nested['b']\n", "tuple of 3"),
        ({**ROW, "b": (ROW["b"][0], {"c": ROW["b"][0], "d": 1})}, "Nested['b'][1]\n", "['c', 'd']"),
        ({**ROW, "b": (ROW["b"][0], {"c": np.zeros(2)})}, "Nested['b'][1]['c']\n", "shape (2,)"),
        ({**ROW, "a": 0.5}, "Nested['a']\n", "float"),
    ],
)
def test_which_part_of_a_nested_observation_does_not_fit(row: Any, part: str, found: str) -> None:
    class Nested(Fixed):
        observation_space = NESTED

    envs = SyncEnvs([lambda: Nested(ROW), lambda: Nested(ROW, row)])
    envs.reset()
    with pytest.raises(SpaceError) as error:
        envs.step(np.array([0, 1]))
    assert f"observation of {part}" in str(error.value) and found in str(error.value)


class Ends(Fixed):
    """Ends at every step with a reward of 1; raises in a call that it is told."""

    def __init__(self, call: str = "", at: int = -1) -> None:
        super().__init__(np.ones(3, np.float32))
        self.call, self.left = call, at

    def _count(self, call: str) -> None:
        self.left -= call == self.call
        if self.left == 0:
            raise ConnectionError("no answer")

    def reset(self, **kwargs: Any) -> Any:
        self._count("reset")
        return super().reset()

    def step(self, action: Any) -> Any:
        self._count("step")
        return next(self.rows), 1.0, True, False, {}


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("mode", "call", "at", "ends"),
    [
        (AutoresetMode.NEXT_STEP, "step", 1, [False, True]),
        (AutoresetMode.SAME_STEP, "step", 1, [False, True]),
        (AutoresetMode.SAME_STEP, "reset", 2, [True, True]),  # the step itself is good
    ],
)
def test_an_environment_that_fails_does_not_lose_the_others_step(
    mode: Any, call: str, at: int, ends: list[bool], failing: int
) -> None:
    makers = [lambda: Ends(call, at), Ends]
    envs = SyncEnvs(makers if failing == 0 else makers[::-1], autoreset_mode=mode)
    envs.reset()
    _, rewards, terminateds, _, infos = envs.try_step(np.array([0, 0]))
    expected = ends if failing == 0 else ends[::-1]
    assert terminateds.tolist() == expected and rewards.tolist() == [float(end) for end in expected]
    assert {env: str(error) for env, error in envs.failures.items()} == {failing: "no answer"}
    if mode is AutoresetMode.SAME_STEP:
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
    for kind, error, match in ((SyncVectorEnv, AssertionError, "seeds|reset_mask"), (SyncEnvs, RunnerError, problem)):
        envs = kind([lambda: Fixed(np.ones(3, np.float32))] * 2, autoreset_mode=AutoresetMode.DISABLED)
        with pytest.raises(error, match=match):
            envs.reset(**{name: dict(value) if name == "options" else value for name, value in keywords.items()})


def test_seeds_of_any_kind() -> None:
    seeds: list[Any] = []

    class Seeded(Fixed):
        def reset(self, *, seed: Any = None, **kwargs: Any) -> Any:
            seeds.append(seed)
            return super().reset()

    envs = SyncEnvs([lambda: Seeded(np.ones(3, np.float32))] * 2)
    for seed in ((3, None), np.int64(5), [7, 9]):
        envs.reset(seed=seed)
    assert seeds == [3, None, 5, 6, 7, 9]


def test_as_many_actions_as_environments() -> None:
    envs = SyncEnvs([lambda: Fixed(np.ones(3, np.float32))] * 2)
    envs.reset()
    for actions in (np.zeros(1, int), np.zeros(3, int)):
        with pytest.raises(ValueError, match="zip"):
            envs.step(actions)


def test_observations_are_not_kept_but_rewards_and_flags_are() -> None:
    envs = SyncEnvs([lambda: Fixed(np.ones(3, np.float32), np.zeros(3, np.float32))])
    seen, _ = envs.reset()
    first = envs.step(np.array([0]))
    assert first[0] is seen and not seen.any()
    second = envs.step(np.array([0]))
    assert all(one is not other for one, other in zip(first[1:4], second[1:4]))
