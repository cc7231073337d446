"""Earlier actions and rewards against a loop over steps, in recorded blocks, lists, and whole batches."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space, iterate

from epibatch.connectors._engine.call import PipelineCall
from epibatch.connectors.env_to_module.prev_actions_prev_rewards import StepHistory
from epibatch.core.errors import LookbackError, SpaceError
from epibatch.episodes import VectorRecorder

ACTIONS = {
    "discrete": (Discrete(3), 3),
    "discrete from 4": (Discrete(2, start=4), 2),
    "box": (Box(-2, 2, (2, 2)), 4),
    "scalar box": (Box(-2, 2, (), np.float64), 1),
    "integer box": (Box(1, 5, (2,), np.int64), 2),
    "multi-discrete": (MultiDiscrete([2, 3]), 5),
    "multi-discrete matrix": (MultiDiscrete([[2, 3], [2, 2]]), 9),
    "multi-binary": (MultiBinary(3), 3),
    "dict": (Dict(b=Box(-1, 1, (2,)), a=Discrete(3)), 5),
    "tuple": (Tuple([Discrete(2), Dict(x=MultiBinary(2), w=Box(-1, 1, ()))]), 5),
}


def vector_of(space, action):
    """An action as a vector, the slow way."""
    if isinstance(space, Dict):
        return np.concatenate([vector_of(space[key], action[key]) for key in sorted(space.spaces)])
    if isinstance(space, Tuple):
        return np.concatenate([vector_of(*pair) for pair in zip(space.spaces, action)])
    if isinstance(space, Discrete):
        return np.eye(space.n)[int(action) - int(space.start)]
    if isinstance(space, MultiDiscrete):
        return np.concatenate([np.eye(n)[i] for n, i in zip(space.nvec.ravel(), np.ravel(action))])
    return np.ravel(action).astype(np.float64)


def wanted(space, actions, rewards, t, n_actions, n_rewards):
    """What a step of an episode sees: its last actions and rewards, zeros before the start."""
    size = len(vector_of(space, space.sample()))
    before = [vector_of(space, actions[i]) if i >= 0 else np.zeros(size) for i in range(t - n_actions, t)]
    return np.concatenate(before), [rewards[i] if i >= 0 else 0.0 for i in range(t - n_rewards, t)]


def record(space, steps=14, fragments=(14,), lookback=3, num_envs=3, mode="next_step"):
    """Yield after each vector step the recorder and every running episode's actions and rewards so far."""
    rng, many = np.random.default_rng(0), batch_space(space, num_envs)
    many.seed(0)
    recorder = VectorRecorder(num_envs, Box(-1, 1, (1,)), space, autoreset=mode)
    recorder.reset(np.zeros((num_envs, 1), np.float32))
    recorder.commit()
    so_far = [([], []) for _ in range(num_envs)]
    waiting = [False] * num_envs
    yield recorder, so_far, []
    done_steps, delivered = 0, []
    for _ in range(steps):
        actions, rewards = many.sample(), rng.normal(size=num_envs)
        ends = (rng.random(num_envs) < 0.25) & ~np.array(waiting)
        final = np.ones((num_envs, 1), np.float32)
        recorder.step(
            actions,
            rewards,
            ends,
            np.zeros(num_envs, bool),
            final,
            final_observations=final if mode != "next_step" else None,
        )
        for env, action in enumerate(iterate(many, actions)):
            if waiting[env]:
                so_far[env], waiting[env] = ([], []), False
                continue
            so_far[env][0].append(action)
            so_far[env][1].append(rewards[env])
            if ends[env] and mode == "next_step":
                waiting[env] = True
            elif ends[env]:
                so_far[env] = ([], [])
        recorder.commit()
        yield recorder, so_far, delivered
        done_steps += 1
        if done_steps in fragments:
            delivered.append(recorder.harvest(lookback))


def call_of(episodes, **settings):
    return PipelineCall(rl_module=None, episodes=episodes, **settings).groups[None]


def histories(space, n_actions, n_rewards):
    return StepHistory("actions", n_actions, space, "Piece"), StepHistory("rewards", n_rewards, space, "Piece")


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(("space", "size"), ACTIONS.values(), ids=ACTIONS)
def test_before_the_newest_observation_in_a_block_and_in_a_list(space, size, mode):
    actions, rewards = histories(space, 3, 2)
    assert actions.space.shape == (3 * size,) and rewards.space.shape == (2,)
    for recorder, so_far, _ in record(space, fragments=(5, 6, 9), mode=mode):
        expected = [wanted(space, *own, len(own[0]), 3, 2) for own in so_far]
        for episodes in (recorder.episodes, list(recorder.episodes)):
            for part, row in ((actions, 0), (rewards, 1)):
                found = part.before_newest(call_of(episodes))
                assert found.dtype == np.float32 and found.shape == (3, *part.space.shape)
                np.testing.assert_array_equal(found, np.array([own[row] for own in expected], np.float32))
                assert all(vector in part.space for vector in found)


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize(("space", "size"), ACTIONS.values(), ids=ACTIONS)
def test_before_every_observation_of_delivered_chunks(space, size, plus_one):
    parts = histories(space, 3, 2)
    whole = {}
    *_, (_, _, delivered) = record(space, fragments=(4, 5, 9, 14))
    for episodes in delivered:
        expected = []
        for chunk in episodes:
            actions, rewards = whole.setdefault(chunk.id_, ([], []))
            actions += [chunk.get_actions(t) for t in range(len(chunk))]
            rewards += chunk.get_rewards().tolist()
            times = range(chunk.t_started, chunk.t + plus_one)
            expected += [wanted(space, actions, rewards, t, 3, 2) for t in times]
        for given in (episodes, list(episodes)):
            for row, part in enumerate(parts):
                found = part.before_every(call_of(given, training=True, plus_one=plus_one))
                assert found.dtype == np.float32 and found.shape == (len(expected), *part.space.shape)
                np.testing.assert_array_equal(found, np.array([own[row] for own in expected], np.float32))


def test_one_hot_parts_are_bounded_and_the_others_are_not():
    space = Dict(a=Discrete(2), b=Box(-1, 1, (1,)), c=MultiBinary(1))
    box = StepHistory("actions", 2, space, "Piece").space
    assert box.low.tolist() == [0, 0, -np.inf, 0] * 2 and box.high.tolist() == [1, 1, np.inf, 1] * 2
    assert StepHistory("actions", 1, Discrete(3), "Piece").space == Box(0.0, 1.0, (3,), np.float32)
    assert StepHistory("rewards", 2, None, "Piece").space == Box(-np.inf, np.inf, (2,), np.float32)


def test_history_that_a_chunk_does_not_carry_is_an_error(lab):
    part = StepHistory("actions", 3, gym.spaces.Discrete(2), "Piece")
    for chunk in (lab.episode("a", 2, t_started=5, lookback=2), lab.episode("a", 2, t_started=1)):
        with pytest.raises(LookbackError, match=r"Piece, episode 'a'(.|\n)*would hide actions that exist"):
            part.before_every(call_of([chunk], training=True))
    short = lab.episode("a", 0, t_started=5, lookback=2)
    with pytest.raises(LookbackError, match="starts at t=5"):
        part.before_newest(call_of([short]))
    enough = [lab.episode("a", 1, t_started=5, lookback=2), lab.episode("b", 0, t_started=2, lookback=2)]
    assert part.before_newest(call_of(enough))[1].tolist() == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_recorder_that_kept_too_little_is_told(kept):
    recorder, no = VectorRecorder(1), np.zeros(1, bool)
    recorder.reset(np.zeros((1, 1)))
    for step in range(3):
        recorder.step(np.zeros(1, int), np.array([1.0 + step]), no, no, np.zeros((1, 1)))
    recorder.harvest(kept)
    call = call_of(recorder.episodes)
    if kept == 2:
        assert StepHistory("rewards", 2, None, "Piece").before_newest(call).tolist() == [[2.0, 3.0]]
    else:
        with pytest.raises(LookbackError, match=rf"Piece, episode(.|\n)*of 2 steps(.|\n)*{kept} steps"):
            StepHistory("rewards", 2, None, "Piece").before_newest(call)


@pytest.mark.parametrize("space", [Text(3), None, Tuple([Discrete(2), Text(3)])])
def test_actions_without_a_fixed_number_of_entries_are_refused(space):
    with pytest.raises(SpaceError, match="Piece"):
        StepHistory("actions", 1, space, "Piece")
