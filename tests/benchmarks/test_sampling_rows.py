"""Sampling rows: what was sampled is CartPole, and steps are counted as the rows say."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from benchmarks.cartpole import check_dynamics, next_observations
from benchmarks.equality import DifferentValuesError
from benchmarks.floors.acting import transitions
from benchmarks.libraries import library
from benchmarks.row import FLOOR, OURS, Options
from benchmarks.rows import agent_sampling
from benchmarks.rows.agent_sampling import LENGTH, environment, moved
from benchmarks.rows.sampling import bare_side, library_side, sampling
from benchmarks.several_agents import AGENTS

MODES = ["sync", "vector_entry_point"]


def test_the_laws_of_motion_are_gymnasiums():
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(50):
        state = rng.uniform(-0.2, 0.2, 4)
        env.state, action = tuple(state), int(rng.integers(2))
        env.step(action)
        np.testing.assert_allclose(next_observations(state[None], [action])[0], env.state, rtol=1e-12)


@pytest.mark.parametrize("change", ["obs", "actions", "next_obs", "fewer"])
def test_what_is_not_cartpole_is_an_error(change):
    rng = np.random.default_rng(0)
    obs, actions = rng.uniform(-0.2, 0.2, (20, 4)), np.arange(20) % 2
    sampled = {"obs": obs, "actions": actions, "next_obs": next_observations(obs, actions)}
    check_dynamics(sampled, "it", 20)
    if change == "fewer":
        sampled = {name: rows[:19] for name, rows in sampled.items()}
    elif change == "actions":
        sampled["actions"] = 1 - actions
    else:
        sampled[change] = np.roll(sampled[change], 1, axis=0)
    with pytest.raises(DifferentValuesError, match="it: "):
        check_dynamics(sampled, "it", 20)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_bare_loop_counts_what_only_resets(mode, num_envs):
    torch.manual_seed(0)
    side = bare_side(num_envs, 300, mode)
    kept = side.run(None)
    assert side.count(kept) == 300 and len(kept) == 300 // num_envs
    rows = transitions(kept)
    check_dynamics(rows, "bare loop", 200)
    done = np.logical_or(kept.terminated, kept.truncated)
    assert done[:-1].sum() > 3
    assert rows["resets"] == pytest.approx(done[:-1].sum() / 300)
    assert len(rows["actions"]) == 300 - done[:-1].sum()


@pytest.mark.parametrize("mode", MODES)
def test_epibatchs_side_counts_steps_of_episodes(mode):
    side = library_side(OURS, 3, 200, mode)
    episodes = side.run(None)
    assert side.count(episodes) == sum(len(episode) for episode in episodes) >= 200
    check_dynamics(side.rows(episodes), OURS, 200)


def test_each_side_of_a_row_is_checked():
    workload = sampling(Options(quick=True, rllib=False), 4, 4000)
    outputs = {name: side().once() for name, side in workload.sides.items()}
    assert list(outputs) == [OURS, FLOOR]
    workload.check(outputs)
    for name, sampled in outputs.items():
        with pytest.raises(DifferentValuesError, match=name):
            workload.check({**outputs, name: {**sampled, "actions": 1 - sampled["actions"]}})


# --------------------------------------------------------------------------------------- several agents


def test_actions_push_points_both_ways():
    states = np.ones((2, 4), np.float32)
    expected = [[0.8, 1.1, 0.6, 1.3], [1.0, 0.7, 1.2, 0.5]]
    np.testing.assert_allclose(moved(states, [0, 1]), expected, rtol=1e-6)


def test_the_environment_moves_each_agents_point_and_ends_by_truncation():
    env = environment(library(OURS))()
    before, _ = env.reset(seed=0)
    for t in range(LENGTH):
        actions = {agent: int((t + i) % 3 == 0) for i, agent in enumerate(AGENTS)}
        after, rewards, terminateds, truncateds, _ = env.step(actions)
        for agent in AGENTS:
            assert np.array_equal(after[agent], moved(before[agent][None], [actions[agent]])[0])
            assert rewards[agent] == after[agent][0]
        assert (terminateds["__all__"], truncateds["__all__"]) == (False, t == LENGTH - 1)
        before = after


def test_epibatchs_side_counts_env_steps_of_agents():
    side = agent_sampling.library_side(OURS, 160)
    episodes = side.run(None)
    assert side.count(episodes) == sum(map(len, episodes)) == 160
    rows = side.rows(episodes)
    assert len(rows["actions"]) == 160 * len(AGENTS)


@pytest.mark.parametrize("change", ["obs", "actions", "next_obs", "rewards", "fewer", "a row"])
def test_what_no_agent_did_is_an_error(change):
    workload = agent_sampling.sampling(Options(quick=True, rllib=False))
    outputs = {name: side().once() for name, side in workload.sides.items()}
    assert list(outputs) == [OURS]
    workload.check(outputs)
    sampled = dict(outputs[OURS])
    if change == "fewer":
        with pytest.raises(DifferentValuesError, match=OURS):
            agent_sampling.check(sampled["env_steps"] + 1, {OURS: sampled})
        return
    if change == "a row":
        sampled = {name: rows if name == "env_steps" else rows[:-1] for name, rows in sampled.items()}
    else:
        sampled[change] = 1 - sampled["actions"] if change == "actions" else np.roll(sampled[change], 1, axis=0)
    with pytest.raises(DifferentValuesError, match=OURS):
        workload.check({OURS: sampled})
