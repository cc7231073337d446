"""The sampling row with several agents: what was sampled is what the agents did, of each of them."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.equality import DifferentValuesError
from benchmarks.libraries import library
from benchmarks.names import OURS
from benchmarks.row import Options
from benchmarks.rows.agent_sampling import LENGTH, check, environment, library_side, moved, sampling
from benchmarks.several_agents import AGENTS


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


def test_epibatchs_side_counts_env_steps():
    side = library_side(OURS, 160)
    episodes = side.run(None)
    assert side.count(episodes) == sum(map(len, episodes)) == 160
    rows = side.rows(episodes)
    assert len(rows["actions"]) == 160 * len(AGENTS)


@pytest.mark.parametrize("change", ["obs", "actions", "next_obs", "rewards", "fewer", "a row"])
def test_what_no_agent_did_is_an_error(change):
    workload = sampling(Options(quick=True, rllib=False))
    outputs = {name: side().once() for name, side in workload.sides.items()}
    assert list(outputs) == [OURS]
    workload.check(outputs)
    sampled = dict(outputs[OURS])
    if change == "fewer":
        with pytest.raises(DifferentValuesError, match=OURS):
            check(sampled["env_steps"] + 1, {OURS: sampled})
        return
    if change == "a row":
        sampled = {name: rows if name == "env_steps" else rows[:-1] for name, rows in sampled.items()}
    else:
        sampled[change] = 1 - sampled["actions"] if change == "actions" else np.roll(sampled[change], 1, axis=0)
    with pytest.raises(DifferentValuesError, match=OURS):
        workload.check({OURS: sampled})
