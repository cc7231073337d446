"""Random nested spaces all the way: sample, env-to-module, module, module-to-env, learner batch, one update, restore.

The environment refuses every action that is no member of its action space. Set EPIBATCH_CASES for another number of
random cases than 20.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import random_examples
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.core import load_state, save_state
from epibatch.env_runner import SingleAgentEnvRunner
from fixture_episodes import assert_same, leaves_of

DISCRETE = [
    Discrete(3),
    Discrete(2, start=-4),
    Discrete(3, start=7),
    MultiDiscrete([2, 3]),
    MultiDiscrete([[2, 3], [4, 1]], start=[[0, -2], [5, 1]]),
    MultiDiscrete([3, 2], dtype=np.int32),
    MultiBinary(3),
    MultiBinary((2, 2)),
    Box(-3, 4, (2,), np.int8),
    Box(-128, 127, (), np.int8),
    Box(250, 255, (1,), np.uint8),
]
BOXES = [
    Box(-1, 1, (2,)),
    Box(-2, 5, ()),
    Box(np.array([-1.0, 0.1]), np.array([0.3, np.inf]), dtype=np.float64),
    Box(-np.inf, np.inf, (2, 1)),
    Box(0, 1, (1, 2, 2), np.float16),
]
SEEN_ONLY = [Box(0, 255, (8, 9, 2), np.uint8), Box(-9, 9, (2,), np.int64), Box(0, 1, (2,), np.bool_)]


def nested(leaves: list[Any]) -> Any:
    """Leaves by themselves, or Dicts and Tuples of them."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(Tuple),
            st.dictionaries(st.sampled_from("zabc"), inner, min_size=1, max_size=3).map(
                lambda parts: Dict(list(parts.items()))
            ),
        ),
        max_leaves=4,
    )


OBSERVATIONS, ACTIONS = nested([*DISCRETE, *BOXES, *SEEN_ONLY]), nested([*DISCRETE, *BOXES])


class Mirror(gym.Env[Any, Any]):
    """Shows samples of its observation space, takes members of its action space, and ends after `length` steps."""

    def __init__(self, observation_space: Any, action_space: Any, length: int) -> None:
        self.observation_space, self.action_space = copy.deepcopy((observation_space, action_space))  # own randomness
        self.length = length
        self.received: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        action = flattened_scalars(self.action_space, action)
        assert self.action_space.contains(action), f"{action!r} is no member of {self.action_space}"
        leaves, given = leaf_spaces(self.action_space), leaves_of(action)
        assert leaves.keys() == given.keys()
        for path, leaf in leaves.items():
            own = given[path]
            assert np.asarray(own).dtype == leaf.dtype, f"{own!r} is not of type {leaf.dtype}"
        self.received.append(action)
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == self.length, False, {}


def flattened_scalars(space: Any, action: Any) -> Any:
    """Gymnasium's vector environments hand scalars of Boxes without axes over as NumPy scalars, not as arrays."""
    if isinstance(space, Dict):
        return {key: flattened_scalars(own, action[key]) for key, own in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(flattened_scalars(own, part) for own, part in zip(space.spaces, action))
    return np.asarray(action) if isinstance(space, Box) else action


def leaf_spaces(space: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """The leaves of a space by their paths."""
    if isinstance(space, (Dict, Tuple)):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return {where: leaf for key, own in parts for where, leaf in leaf_spaces(own, (*path, key)).items()}
    return {path: space}


CASES = st.builds(
    lambda **options: SimpleNamespace(**options),
    observations=OBSERVATIONS,
    actions=ACTIONS,
    envs=st.integers(1, 3),
    length=st.integers(1, 6),
    lstm=st.booleans(),
    shared=st.booleans(),
    squash=st.booleans(),
    free_log_std=st.booleans(),
    seed=st.integers(0, 100),
)
PLANE = SimpleNamespace(
    observations=DISCRETE[4],  # Gymnasium warns when somebody asks a space of several axes for its truth value
    actions=DISCRETE[4],
    **{"envs": 2, "length": 3, "lstm": True, "shared": False, "squash": False, "free_log_std": False, "seed": 0},
)
MANY = settings(
    max_examples=random_examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def config_of(case: Any, envs: list[Mirror] | None = None) -> PPOConfig:
    def make(env_config: Any) -> Mirror:
        env = Mirror(case.observations, case.actions, case.length)
        if envs is not None:
            envs.append(env)
        return env

    model = {
        "fcnet_hiddens": [8],
        "use_lstm": case.lstm,
        "lstm_cell_size": 4,
        "max_seq_len": 3,
        "vf_share_layers": case.shared,
        "squash_actions": case.squash,
        "free_log_std": case.free_log_std,
    }
    return (
        PPOConfig()
        .environment(make)
        .env_runners(num_envs_per_env_runner=case.envs)
        .rl_module(model_config=model)
        .training(train_batch_size=16, minibatch_size=8, num_epochs=1)
        .debugging(seed=case.seed)
    )


def batch_type(space: Any) -> torch.dtype:
    """The type of a leaf in a train batch: the space's, float64 as float32."""
    if space.dtype == np.float64:
        return torch.float32
    found: torch.dtype = getattr(torch, np.dtype(space.dtype).name)
    return found


@MANY
@example(case=PLANE)
@given(case=CASES)
def test_every_action_is_accepted_and_the_learner_batch_is_what_the_spaces_say(case: Any) -> None:
    envs: list[Mirror] = []
    algo = config_of(case, envs).build_algo()
    try:
        results = algo.train()["learners"]["default_policy"]
        assert np.isfinite([results[name] for name in ("total_loss", "entropy", "mean_kl", "grad_norm")]).all()
        assert sum(len(env.received) for env in envs) >= 16
        for options in ({"explore": True}, {"explore": False}, {"random_actions": True}):
            algo.env_runner.sample(num_timesteps=5, **options)
        episodes = algo.env_runner.sample(num_timesteps=12, force_reset=True)
        batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)["default_policy"]
        check_batch(case, batch, episodes)
    finally:
        algo.stop()


def check_batch(case: Any, batch: Any, episodes: Any) -> None:
    mask = batch["loss_mask"]
    assert int(mask.sum()) == sum(map(len, episodes))
    assert mask.ndim == 1 + case.lstm
    for name, space in (("obs", case.observations), ("actions", case.actions)):
        found = leaves_of(batch[name])
        for path, leaf in leaf_spaces(space).items():
            rows = found.pop(path)
            assert tuple(rows.shape) == (*mask.shape, *leaf.shape), name
            if name == "obs" or np.dtype(leaf.dtype).kind == "f":
                expected = torch.float32 if name == "actions" else batch_type(leaf)
                assert rows.dtype == expected, f"{name}: {rows.dtype} for {leaf}"
            else:
                assert not rows.dtype.is_floating_point
                if not isinstance(leaf, Box):  # integer Boxes count from their lower bound
                    assert all(leaf.contains(row) for row in rows[mask].to(batch_type(leaf)).numpy())
        assert found == {}
    own = [leaves_of(episode.get_observations(slice(0, len(episode)))) for episode in episodes]
    for path, rows in leaves_of(batch["obs"]).items():
        expected = np.concatenate([part[path] for part in own])
        np.testing.assert_array_equal(rows[mask].numpy(), expected.astype(rows.numpy().dtype))


@MANY
@example(case=PLANE)
@given(case=CASES)
def test_a_restored_runner_goes_on_alike(case: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    one, two = (SingleAgentEnvRunner(config=config_of(case)) for _ in range(2))
    try:
        one.sample(num_timesteps=7)
        one.checkpoint_reset()
        folder = tmp_path_factory.mktemp("state") / "runner"
        save_state(folder, one.get_state())
        two.set_state(load_state(folder))
        for explore in (True, False):
            chunks = [list(runner.sample(num_timesteps=9, explore=explore)) for runner in (one, two)]
            assert len(chunks[0]) == len(chunks[1])
            for mine, theirs in zip(*chunks):
                for column in ("get_observations", "get_actions"):
                    assert_same(getattr(mine, column)(), getattr(theirs, column)())
    finally:
        one.stop()
        two.stop()
