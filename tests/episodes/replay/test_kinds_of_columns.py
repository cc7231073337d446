"""Observations of all kinds, actions, model outputs and infos come out of a buffer as they went in."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors import learner
from epibatch.connectors.learner import AddInfosFromEpisodesToTrainBatch
from epibatch.core import load_state, save_state
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer, MixedReplay, PrioritizedEpisodeReplayBuffer

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (9, 84, 84, 1), dtype=np.uint8)
KINDS = {
    "number": lambda t: np.float32(t),
    "vector": lambda t: np.arange(t, t + 3, dtype=np.float64),
    "text": lambda t: "word" * (t % 4) + str(t),
    "image": lambda t: IMAGES[t],
    "dict": lambda t: {"image": IMAGES[t, :2], "text": f"say {t}", "deep": {"mask": np.array([t % 2 == 0, True])}},
    "tuple": lambda t: (np.int64(t), np.array([t / 2], np.float32)),
}


def episode(kind, steps=8, **more):
    row = KINDS[kind]
    return SingleAgentEpisode(
        observations=[row(t) for t in range(steps + 1)],
        actions=[{"move": t, "say": f"{t}!"} for t in range(steps)],
        rewards=[np.array([t, -t], np.float64) for t in range(steps)],
        infos=[{"t": t, "name": f"info {t}"} for t in range(steps + 1)],
        extra_model_outputs={"logp": [np.float32(-t) for t in range(steps)]},
        terminated=True, len_lookback_buffer=0, **more,
    )  # fmt: skip


def leaves(struct):
    """The parts of Dicts and Tuples in each other, by their keys."""
    if isinstance(struct, dict):
        return {(key, *rest): leaf for key, part in struct.items() for rest, leaf in leaves(part).items()}
    if isinstance(struct, tuple):
        return leaves(dict(enumerate(struct)))
    return {(): struct}


def assert_same(actual, expected):
    actual, expected = leaves(actual), leaves(expected)
    assert actual.keys() == expected.keys()
    for key, leaf in expected.items():
        assert np.asarray(actual[key]).dtype.kind == np.asarray(leaf).dtype.kind
        np.testing.assert_array_equal(actual[key], leaf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("buffer_type", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_episodes_come_back_equal(kind, buffer_type, tmp_path):
    buffer = buffer_type(50, seed=0, keep_infos=True)
    buffer.add(episode(kind))
    save_state(tmp_path / "buffer", buffer.get_state())
    restored = buffer_type(50, keep_infos=True)
    restored.set_state(load_state(tmp_path / "buffer"))
    row = KINDS[kind]
    for part in (*buffer.sample(10, batch_length_T=3, include_infos=True), *restored.sample(10, n_step=2, gamma=1.0)):
        t, n = part.t_started, len(part)
        last = t + (part.get_extra_model_outputs("n_step", 0) if "n_step" in part.extra_model_outputs else n)
        assert_same(part.get_observations(0), row(t))
        assert_same(part.get_observations(-1), row(int(last)))
        assert_same(part.get_actions(0), {"move": t, "say": f"{t}!"})
        assert part.get_extra_model_outputs("logp", 0) == -t
        assert part.get_rewards().sum(0).tolist() == [sum(range(t, int(last))), -sum(range(t, int(last)))]
        if n > 1:
            assert part.get_infos(0) == {"t": t, "name": f"info {t}"} and part.get_infos(-1)["t"] == t + n


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"text", "dict"}))
def test_batches_have_the_rows(kind):
    buffer = EpisodeReplayBuffer(50, seed=0, keep_infos=True)
    buffer.add(SingleAgentEpisode(
        observations=[KINDS[kind](t) for t in range(9)], actions=list(range(8)), rewards=[0.0] * 8,
        infos=[{"t": t} for t in range(9)], len_lookback_buffer=0,
    ))  # fmt: skip
    for options in ({}, {"n_step": (1, 3)}, {"batch_length_T": 4}):
        pipeline = learner.default_pipeline(connectors=[AddInfosFromEpisodesToTrainBatch()], advantages=False)
        batch = pipeline(rl_module=None, batch={}, episodes=buffer.sample(12, include_infos=True, **options))
        rows = [KINDS[kind](t) for t in batch["actions"]]
        for key, leaf in leaves(batch["obs"]).items():
            np.testing.assert_array_equal(leaf, [leaves(row)[key] for row in rows])
        assert [info["t"] for info in batch["infos"]] == batch["actions"].tolist()


def test_columns_on_request():
    buffer = EpisodeReplayBuffer(50, seed=0)
    buffer.add(episode("number"))
    assert "logp" in buffer.sample(1)[0].extra_model_outputs
    drawn = buffer.sample(4, n_step=1, include_extra_model_outputs=False)
    assert {*drawn[0].extra_model_outputs} == {"n_step", "discounts", "weights"}
    assert buffer.sample(1)[0].get_infos() == [{}, {}]
    mixed = MixedReplay({"a": 1, "b": 1}, {"a": buffer, "b": buffer}).sample(6, include_extra_model_outputs=False)
    assert [{*part.extra_model_outputs} for part in mixed] == [set()] * 6 and {*mixed.ids} == {*drawn.ids}
