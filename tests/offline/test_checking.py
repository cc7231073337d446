"""`check_episodes`: each kind of fault, its number and its first place."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import check_episodes, read_episodes, write_episodes

BOX = gym.spaces.Box(-1.0, 1.0, (2,))


def episode(id_="a", steps=3, start=0, ends="terminated", **columns):
    """An episode without faults, except for what is given."""
    values = {
        "observations": np.zeros((steps + 1, 2), np.float32),
        "actions": np.zeros(steps, np.int64),
        "rewards": np.ones(steps),
        **columns,
    }
    flags = {} if ends is None else {ends: True}
    return SingleAgentEpisode(id_=id_, t_started=start, len_lookback_buffer=0, **values, **flags)


def with_value(array, place, value):
    array = np.array(array)
    array[place] = value
    return array


OBS = np.zeros((4, 2), np.float32)
CASES = {
    "none": ([episode()], []),
    "nan": (
        [episode(), episode("b", observations=with_value(OBS, (3, 1), np.nan), rewards=[1.0, np.inf, np.nan])],
        [("NaN or infinite", "obs", 1, "b", 3, True), ("NaN or infinite", "rewards", 2, "b", 1, True)],
    ),
    "an output": (
        [episode(extra_model_outputs={"logp": np.array([0.0, -np.inf, 0.0])})],
        [("NaN or infinite", "logp", 1, "a", 1, True)],
    ),
    "outside of a box": (
        [episode(observations=with_value(OBS, 1, 1.5)), episode("b", observations=with_value(OBS, (0, 0), -2))],
        [("outside Box(-1.0, 1.0, (2,), float32)", "obs", 2, "a", 1, True)],
    ),
    "outside of choices": (
        [episode(actions=np.array([0, 2, -1]))],
        [("outside Discrete(2)", "actions", 2, "a", 1, True)],
    ),
    "what the environment got": (
        [episode(actions=np.array([7, 7, 7]), extra_model_outputs={"actions_for_env": np.array([0, 1, 2])})],
        [("outside Discrete(2)", "actions_for_env", 1, "a", 2, True)],
    ),
    "no choice": (
        [episode(actions=np.array([0.0, 0.5, 1.0]))],
        [("outside Discrete(2)", "actions", 1, "a", 1, True)],
    ),
    "of another shape": (
        [episode(observations=np.zeros((4, 3), np.float32))],
        [("of shape (3,), outside Box(-1.0, 1.0, (2,), float32)", "obs", 4, "a", 0, True)],
    ),
    "of another nesting": (
        [episode(observations={"x": OBS})],
        [("another nesting than its space: leaf in place of {x: leaf}", "obs['x']", 4, "a", 0, True)],
    ),
    "a gap": (
        [episode("b", ends=None), episode("a"), episode("b", start=5)],
        [("later steps are there, but not the next ones", "", 1, "b", 3, True)],
    ),
    "an id twice": ([episode(), episode()], [("steps are there twice", "", 1, "a", 0, True)]),
    "a flag in the middle": (
        [episode(), episode("b", ends="truncated"), episode("b", start=3)],
        [("goes on after it was terminated or truncated", "", 1, "b", 3, True)],
    ),
    "no beginning": ([episode(start=2)], [("begins later than at step 0", "", 1, "a", 2, False)]),
    "no end": (
        [episode(), episode("b", ends=None), episode("c", ends=None)],
        [("ends without being terminated or truncated", "", 2, "b", 3, False)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_fault_has_its_number_and_first_place(name):
    episodes, expected = CASES[name]
    found = check_episodes(episodes, observation_space=BOX, action_space=gym.spaces.Discrete(2))
    assert list(map(tuple, found)) == expected


def test_spaces_of_the_data_are_used_and_actions_of_a_module_may_lie_outside_of_a_box():
    made = SingleAgentEpisode(observation_space=BOX, action_space=BOX, len_lookback_buffer=0)
    made.add_env_reset(np.zeros(2, np.float32))
    made.add_env_step(np.full(2, 3.0, np.float32), np.full(2, 2.0, np.float32), 1.0, terminated=True)
    found = check_episodes([made])
    assert [(fault.column, fault.step, fault.is_error) for fault in found] == [("obs", 1, True), ("actions", 0, False)]


@pytest.mark.slow
def test_large_data_is_checked_like_a_loop_over_its_episodes(tmp_path):
    rng = np.random.default_rng(0)
    space = gym.spaces.Dict({"a": BOX, "b": gym.spaces.MultiDiscrete([3, 5])})
    episodes = []
    for number, steps in enumerate([40_000, 9, 50_000, 1, 50_000]):
        observations = {"a": rng.normal(0, 0.25, (steps + 1, 2)), "b": rng.integers(0, [3, 5], (steps + 1, 2))}
        observations["b"][rng.random(steps + 1) < 1e-4, 1] = 5
        observations["a"][rng.random(steps + 1) < 1e-4, 0] = np.nan
        episodes.append(episode(str(number), steps, observations=observations))
    expected = {}
    for each in episodes:
        columns = each.get_observations()
        for step, (a, b) in enumerate(zip(columns["a"].tolist(), columns["b"].tolist(), strict=True)):
            faults = []
            if a[0] != a[0]:
                faults.append(("NaN or infinite", "obs['a']"))
            if abs(a[0]) > 1 or abs(a[1]) > 1:
                faults.append((f"outside {BOX}", "obs['a']"))
            if b[1] == 5:
                faults.append((f"outside {space['b']}", "obs['b']"))
            for fault in faults:
                count, *place = expected.get(fault, (0, each.id_, step))
                expected[fault] = (count + 1, *place)
    write_episodes(episodes, tmp_path / "data")
    found = check_episodes(read_episodes(tmp_path / "data"), space)
    assert {tuple(fault[:2]): fault[2:5] for fault in found} == expected
    assert len(expected) == 3
