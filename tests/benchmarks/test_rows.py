"""All sides of every row give the same values; a side that does not is found out. Sampled steps are counted right."""

from __future__ import annotations

import json
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from benchmarks import memory
from benchmarks.checks import DifferentValuesError, check_sampled, next_cartpole, next_points
from benchmarks.floors.ppo import transitions
from benchmarks.libraries import library
from benchmarks.row import FLOOR, OURS, RLLIB, Options, Timed
from benchmarks.rows import all_rows, sampling, training
from benchmarks.timing import as_arrays, in_a_process
from benchmarks.workloads import AGENTS
from fixture_cases import slow_but

OPTIONS = Options(quick=True, rllib=False)
ROWS = {row.name: row for row in all_rows() if isinstance(row.measure, Timed)}
SHARED = {name for name, row in ROWS.items() if len(row.measure.build(OPTIONS).sides) > 1 or name.startswith("R1m")}

QUICK = [name for name in ROWS if name[0] not in "BEW" or name == "E1/128"]


def outputs_of(name):
    workload = ROWS[name].measure.build(OPTIONS)
    return workload, {side: as_arrays(make().once()) for side, make in workload.sides.items()}


@pytest.mark.parametrize("name", slow_but(QUICK, sorted(ROWS)))
def test_sides_give_the_same_and_one_value_that_differs_is_found(name):
    workload, outputs = outputs_of(name)
    assert OURS in outputs
    workload.check(outputs)
    if name in SHARED:
        spoil(outputs[OURS])
        with pytest.raises(DifferentValuesError):
            workload.check(outputs)


def spoil(output):
    """Change one number: the first of the first column with several."""
    for name, column in output.items():
        if isinstance(column, dict):
            return spoil(column)
        changed = np.array(column)
        if changed.size > 1:
            changed.flat[0] = not changed.flat[0] if changed.dtype == bool else changed.flat[0] + 1
            output[name] = changed
            return None
    raise AssertionError("nothing to spoil")


# -------------------------------------------------------------------------------------------- sampling


def test_the_laws_of_motion_are_gymnasiums():
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(50):
        state = rng.uniform(-0.2, 0.2, 4)
        env.state, action = tuple(state), int(rng.integers(2))
        env.step(action)
        np.testing.assert_allclose(next_cartpole(state[None], [action])[0], env.state, rtol=1e-12)
    pushed = next_points(np.ones((2, 4), np.float32), [0, 1])
    np.testing.assert_allclose(pushed, [[0.8, 1.1, 0.6, 1.3], [1.0, 0.7, 1.2, 0.5]], rtol=1e-6)


@pytest.mark.parametrize("change", ["obs", "actions", "next_obs", "fewer"])
def test_what_is_not_cartpole_is_an_error(change):
    rng = np.random.default_rng(0)
    obs, actions = rng.uniform(-0.2, 0.2, (20, 4)), np.arange(20) % 2
    sampled = {"obs": obs, "actions": actions, "next_obs": next_cartpole(obs, actions)}
    check_sampled(sampled, "it", 20)
    if change == "fewer":
        sampled = {name: rows[:19] for name, rows in sampled.items()}
    else:
        sampled[change] = 1 - actions if change == "actions" else np.roll(sampled[change], 1, axis=0)
    with pytest.raises(DifferentValuesError, match="it: "):
        check_sampled(sampled, "it", 20)


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_bare_loop_counts_what_only_resets_and_epibatch_does_not(mode, num_envs):
    torch.manual_seed(0)
    side = sampling.bare_side(num_envs, 300, mode)
    kept = side.run(None)
    assert side.count(kept) == 300 and len(kept) == 300 // num_envs
    rows = transitions(kept)
    check_sampled(rows, "bare loop", 200)
    done = np.array([terminated | truncated for *_, terminated, truncated, _ in kept])
    assert done[:-1].sum() > 3
    assert rows["resets"] == pytest.approx(done[:-1].sum() / 300)
    assert len(rows["actions"]) == 300 - done[:-1].sum()
    side = sampling.library_side(OURS, num_envs, 200, mode)
    episodes = side.run(None)
    assert side.count(episodes) == sum(len(episode) for episode in episodes) >= 200
    check_sampled(side.show(episodes), OURS, 200)


def test_the_environment_moves_each_agents_point_and_ends_by_truncation():
    env = sampling.points(library(OURS))()
    before, _ = env.reset(seed=0)
    for t in range(sampling.LENGTH):
        actions = {agent: int((t + i) % 3 == 0) for i, agent in enumerate(AGENTS)}
        after, rewards, terminateds, truncateds, _ = env.step(actions)
        for agent in AGENTS:
            assert np.array_equal(after[agent], next_points(before[agent][None], [actions[agent]])[0])
            assert rewards[agent] == after[agent][0]
        assert (terminateds["__all__"], truncateds["__all__"]) == (False, t == sampling.LENGTH - 1)
        before = after


@pytest.mark.parametrize("change", ["obs", "actions", "next_obs", "rewards", "fewer", "a row"])
def test_what_no_agent_did_is_an_error(change):
    sampled = sampling.library_side(OURS, 16, 160, agents=True).once()
    sampling.check_agents(160, {OURS: sampled})
    assert sampled["env_steps"] == 160
    if change == "a row":
        sampled = {name: rows if name == "env_steps" else rows[:-1] for name, rows in sampled.items()}
    elif change != "fewer":
        sampled[change] = 1 - sampled["actions"] if change == "actions" else np.roll(sampled[change], 1, axis=0)
    with pytest.raises(DifferentValuesError, match=OURS):
        sampling.check_agents(160 + (change == "fewer"), {OURS: sampled})


# -------------------------------------------------------------------------------------------- training


def test_the_record_of_returns(tmp_path, monkeypatch):
    record = {OURS: {"returns": {"0": 100.0, "1": 200.0}}, RLLIB: {"returns": {"7": 1.0, "1": 110.0, "0": 90.0}}}
    path = tmp_path / "ppo_seeds.json"
    monkeypatch.setattr(training, "RECORD", path)
    assert training.recorded_returns(Options()).values == {}
    path.write_text(json.dumps({**record, FLOOR: {"returns": {"1": 3.0}}}))
    assert training.recorded_returns(Options()).values == {}
    path.write_text(json.dumps(record))
    measured = training.recorded_returns(Options())
    assert measured.values == {OURS: [100.0, 200.0], RLLIB: [90.0, 110.0]}
    assert "epibatch 150 +- 71 over 2 seeds" in measured.note


@pytest.mark.slow
def test_iterations_of_both_own_sides_train(monkeypatch):
    monkeypatch.setattr(training, "STEPS", 200)
    monkeypatch.setattr(training, "EPOCHS", 1)
    sides = training.iterations(OPTIONS).sides
    assert list(sides) == [OURS, FLOOR]
    for side in sides.values():
        assert 8 < side().once() < 60  # an untrained policy's episodes


# ---------------------------------------------------------------------------------------------- memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory can be reset on Linux only")


def needs(size, kept):
    """Touch so many MiB, and give back all but some."""
    return np.ones(size * memory.MIB, np.uint8)[: kept * memory.MIB].copy()


def peak_of_needs(size, kept):
    peak, output = memory.peak_of(partial(needs, size, kept))
    return peak / memory.MIB, output.nbytes / memory.MIB


@pytest.mark.slow
@linux
def test_the_peak_is_what_was_needed_at_once():
    for size, kept in ((40, 40), (80, 0)):
        peak, output = in_a_process(peak_of_needs, size, kept)
        assert output == kept and size + kept - 1 < peak < size + kept + 4
    peak, size = in_a_process(memory.stacked, OURS, 256)
    assert size == pytest.approx(256 * 84 * 84 * 4 / memory.MIB, rel=0.01)
    assert size < peak + 1 < 3 * size


def test_growth_is_the_slope_after_the_warm_up():
    looks = [(0, 0), (1_000_000, 500 * memory.MIB), (2_000_000, 503 * memory.MIB), (3_000_000, 506 * memory.MIB)]
    assert memory.per_million(looks, 1_000_000) == pytest.approx(3.0)
    assert memory.per_million(looks, 0) > 100


@pytest.mark.slow
@linux
def test_a_training_is_looked_at_every_so_often():
    looks = memory.train(2500, 1000, num_envs=4)
    assert [steps // 1000 for steps, _ in looks] == [1, 2]
    assert all(size > 50 * memory.MIB for _, size in looks)
