"""Calls that replay buffers refuse: each raises an error that names its place, and the buffer stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors import learner
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import ColumnError, LookbackError, PipelineError, ReplayError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorEpisodes
from epibatch.episodes.replay import (
    EpisodeReplayBuffer,
    MixedReplay,
    MultiAgentEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)


def episode(steps=5, obs=lambda t: np.array([t, t], np.float32), action=int, reward=float, **more):
    return SingleAgentEpisode(
        observations=[obs(t) for t in range(steps + 1)], actions=[action(t) for t in range(steps)],
        rewards=[reward(t) for t in range(steps)], len_lookback_buffer=0, **more,
    )  # fmt: skip


def filled(kind=PrioritizedEpisodeReplayBuffer, **options):
    buffer = kind(40, seed=0, **options)
    buffer.add([episode(5, terminated=True), episode(3, id_="running")])
    buffer.add(vector(4))
    buffer.sample(4)
    return buffer


def vector(envs, steps=3):
    ends = np.zeros((steps, envs), np.bool_)
    obs = np.zeros((steps + 1, envs, 2), np.float32)
    return VectorEpisodes.from_arrays(obs, np.zeros((steps, envs), np.int64), np.zeros((steps, envs)), ends, ends)


def two_agents():
    """An episode of which one agent has three steps and the other one."""
    return MultiAgentEpisode(
        observations=[{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 2}, {"a": 3}],
        actions=[{"a": 0, "b": 0}, {"a": 0}, {"a": 0}],
        rewards=[{"a": 1.0, "b": 1.0}, {"a": 1.0}, {"a": 1.0}], len_lookback_buffer=0,
        agent_to_module_mapping_fn=lambda agent, episode: agent,
    )  # fmt: skip


CALLS = {
    "no items": (lambda b: b.sample(0), ReplayError, "sample, num_items", "at least 1"),
    "fewer than no items": (lambda b: b.sample(batch_size_B=-3), ReplayError, "sample, batch_size_B", "at least 1"),
    "half an item": (lambda b: b.sample(2.5), ReplayError, "sample, num_items", "whole number"),
    "two numbers of items": (lambda b: b.sample(2, batch_size_B=2), ReplayError, "sample, num_items", "one number"),
    "arrays": (lambda b: b.sample(2, sample_episodes=False), ReplayError, "sample_episodes", "True"),
    "n of 0": (lambda b: b.sample(2, n_step=0), ReplayError, "sample, n_step", "at least 1"),
    "n from 3 to 1": (lambda b: b.sample(2, n_step=(3, 1)), ReplayError, "sample, n_step", "at least 3"),
    "n of three numbers": (lambda b: b.sample(2, n_step=(1, 2, 3)), ReplayError, "sample, n_step", "a pair"),
    "n and sequences": (
        lambda b: b.sample(2, n_step=2, batch_length_T=2), ReplayError, "sample, n_step", "1 for sequences",
    ),
    "gamma": (lambda b: b.sample(2, n_step=2, gamma=1.5), ReplayError, "sample, gamma", "[0, 1]"),
    "beta": (lambda b: b.sample(2, beta=-1.0), ReplayError, "sample, beta", "at least 0"),
    "infos that were not kept": (
        lambda b: b.sample(2, include_infos=True), ReplayError, "include_infos", "keeps infos",
    ),
    "longer than a lane": (lambda b: b.sample(2, batch_length_T=8), ReplayError, "batch_length_T", "at most 7"),
    "longer than all": (lambda b: b.sample(2, min_batch_length_T=6), ReplayError, "sample", "6 of its episode"),
    "age of 0": (lambda b: b.sample(2, max_age=0), ReplayError, "sample, max_age", "at least 1"),
    "new steps of an age": (
        lambda b: b.sample(2, only_new=True, max_age=3), ReplayError, "sample, only_new", "no max_age",
    ),
    "no new steps": (
        lambda b: [b.sample(only_new=True) for _ in range(2)], ReplayError, "sample", "not given yet",
    ),
    "too few priorities": (lambda b: b.update_priorities([1.0]), ReplayError, "update_priorities", "each of its parts"),
    "negative priorities": (
        lambda b: b.update_priorities([1, 1, 1, -1]), ReplayError, "update_priorities", "not negative",
    ),
    "NaN priorities": (
        lambda b: b.update_priorities([1, 1, 1, np.nan]), ReplayError, "update_priorities", "finite",
    ),
    "errors of another number of parts": (
        lambda b: b.update_priorities(np.ones((3, 1))), ReplayError, "update_priorities", "each of its parts",
    ),
    "a priority whose power is infinite": (
        lambda b: (setattr(b, "alpha", 2.0), b.update_priorities([1e200, 1, 1, 1])), ReplayError, "update", "finite",
    ),
    "new steps with steps to burn in": (lambda b: b.sample(only_new=True, burn_in=2), ReplayError, "only_new", "burn"),
    "a negative weight with an exponent": (
        lambda b: (setattr(b, "alpha", 0.6), b.add(episode(), weight=-1.0)), ReplayError, "add, weight", "at least 0",
    ),
    "a negative weight": (lambda b: b.add(episode(), weight=-1.0), ReplayError, "add, weight", "at least 0"),
    "another shape": (
        lambda b: b.add([episode(), episode(2, obs=lambda t: np.zeros(3, np.float32))]), ColumnError, "obs", "shape",
    ),
    "another nesting": (
        lambda b: b.add(episode(2, obs=lambda t: {"a": np.zeros(2, np.float32)})), ColumnError, "", "",
    ),
    "text": (lambda b: b.add(episode(2, obs=lambda t: "text")), ColumnError, "'obs'", "numbers of shape (2,)"),
    "text of actions": (lambda b: b.add(episode(2, action=str)), ColumnError, "'actions'", "numbers of shape ()"),
    "more columns": (
        lambda b: b.add(episode(2, extra_model_outputs={"x": [1, 2]})), ColumnError, "replay buffer", "actions, obs",
    ),
    "more environments than rows": (lambda b: b.add(vector(30)), ReplayError, "", "a capacity of at least"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_are_refused(name, shown):
    call, error, where, expected = CALLS[name]
    buffer = filled()
    if name == "no new steps":
        assert len(buffer.sample(only_new=True)) == len(buffer)
    before = shown(buffer.get_state())
    with pytest.raises(error) as caught:
        call(buffer)
    assert where in caught.value.where and expected in caught.value.expected, str(caught.value)
    np.testing.assert_equal(shown(buffer.get_state()), before)
    buffer.add(episode(2))  # it goes on
    assert len(buffer.sample(3)) == 3


def test_without_a_priority_above_0_there_is_nothing_to_draw():
    buffer = filled()
    drawn = buffer.sample(400)
    buffer.update_priorities(np.zeros(400), drawn)
    with pytest.raises(ReplayError, match="a priority above 0"):
        buffer.sample(4)
    buffer.update_priorities(np.where(drawn.starts == drawn.starts[0], 1.0, 0.0), drawn)
    assert set(buffer.sample(50).starts.tolist()) == {int(drawn.starts[0])}


def test_a_draw_of_several_buffers_that_one_refuses_leaves_them_all(shown):
    buffers = {"full": filled(EpisodeReplayBuffer), "of zeros": filled(), "empty": EpisodeReplayBuffer(20)}
    of_zeros = buffers["of zeros"]
    of_zeros.update_priorities(np.zeros(200), of_zeros.sample(200))
    agents = MultiAgentEpisodeReplayBuffer(40, seed=0)
    agents.add(two_agents())
    for refused in ("of zeros", "empty", "agents"):
        several = {name: buffers[name] for name in ("full", refused)} if refused in buffers else agents.buffers
        draw = agents if refused == "agents" else MixedReplay(dict.fromkeys(several, 0.5), several)
        before = [shown(buffer.get_state()) for buffer in several.values()]
        with pytest.raises(ReplayError):
            draw.sample(8, min_batch_length_T=3)
        np.testing.assert_equal([shown(buffer.get_state()) for buffer in several.values()], before)


MADE = {
    "capacity": lambda: EpisodeReplayBuffer(1),
    "capacity of half a row": lambda: EpisodeReplayBuffer(10.5),
    "capacity below a sequence": lambda: EpisodeReplayBuffer(20, batch_length_T=20),
    "batch_size_B": lambda: EpisodeReplayBuffer(20, batch_size_B=0),
    "batch_length_T": lambda: EpisodeReplayBuffer(20, batch_length_T=-1),
    "alpha": lambda: PrioritizedEpisodeReplayBuffer(20, alpha=-0.1),
    "alpha of NaN": lambda: PrioritizedEpisodeReplayBuffer(20, alpha=np.nan),
    "share": lambda: MixedReplay({"a": 0.0}, {"a": filled()}),
    "shares": lambda: MixedReplay({}, {}),
    "buffer": lambda: MixedReplay({"a": 1.0, "b": 1.0}, {"a": filled()}),
    "new steps of a mixture": lambda: MixedReplay({"a": 1.0}, {"a": filled()}).sample(2, only_new=True),
    "items of a mixture": lambda: MixedReplay({"a": 1.0}, {"a": filled()}).sample(0),
    "an empty part": lambda: MixedReplay({"a": 1, "b": 1}, {"a": filled(), "b": EpisodeReplayBuffer()}).sample(4),
    "priorities of a mixture": lambda: MixedReplay({"a": 1.0}, {"a": filled()}).update_priorities([1.0]),
    "nothing was added": lambda: EpisodeReplayBuffer().sample(1),
    "nothing was added with priorities": lambda: PrioritizedEpisodeReplayBuffer().sample(1, n_step=3),
    "no draw": lambda: PrioritizedEpisodeReplayBuffer().update_priorities([]),
}


@pytest.mark.parametrize("name", MADE)
def test_what_cannot_be_made_or_drawn(name):
    with pytest.raises(ReplayError) as caught:
        MADE[name]()
    assert caught.value.where and caught.value.expected and caught.value.found and caught.value.do


def test_what_rllib_cannot_draw_is_drawn():
    """More than there is, with replacement; and n larger than all episodes, which are shorter sums then."""
    buffer = EpisodeReplayBuffer(50, seed=0)
    buffer.add([episode(2, terminated=True) for _ in range(3)])
    drawn = buffer.sample(100, n_step=10, gamma=1.0)
    assert len(drawn) == 100 and set(drawn.per_chunk["n_step"]) == {1, 2} and all(e.is_terminated for e in drawn)


def test_pipelines_refuse_what_they_would_get_wrong():
    def run(piece, **options):
        pipeline = learner.default_pipeline(connectors=[piece], advantages=False)
        return pipeline(rl_module=None, batch={}, episodes=filled().sample(20, n_step=2, **options))

    with pytest.raises(PipelineError, match="sums over several steps"):
        run(NStepReturns(n_step=2))
    with pytest.raises(LookbackError, match="lookback"):
        run(FrameStacking(num_frames=3))
