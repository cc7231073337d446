"""Replay buffers: what they hold and draw, beside lists that are kept by hand."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors import learner
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, ColumnError, ReplayError
from epibatch.episodes import SingleAgentEpisode, VectorEpisodes
from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer


class ByHand:
    """Streams of episodes, each a list of rows of which the newest count: what a buffer of these lanes holds."""

    def __init__(self, rows_per_lane):
        self.rows_per_lane = rows_per_lane
        self.streams = {}

    def add(self, lane, episode, goes_on):
        rows = self.streams.setdefault(lane, [])
        if goes_on:
            rows.pop()  # the observation with which the part begins
        for t in range(len(episode) + 1):
            step = t < len(episode)
            rows.append(
                {
                    "id": episode.id_,
                    "t": episode.t_started + t,
                    "obs": episode.get_observations(t),
                    "action": episode.get_actions(t) if step else None,
                    "reward": episode.get_rewards(t) if step else None,
                    "terminated": episode.is_terminated and t == len(episode) - 1,
                    "truncated": episode.is_truncated and t == len(episode) - 1,
                }
            )

    def steps(self):
        for rows in self.streams.values():
            held = rows[-self.rows_per_lane :]
            for row, after in zip(held, [*held[1:], None]):
                if row["action"] is not None:
                    yield {**row, "new_obs": after["obs"]}


def random_part(rng, running, name):
    """A part of an episode with one step at least: of a running one, or of a new one."""
    episode = running
    if episode is None:
        episode = SingleAgentEpisode(id_=name)
        episode.add_env_reset(float(rng.integers(10**6)))
    for _ in range(int(rng.integers(1, 8))):
        end = rng.random() < 0.15
        episode.add_env_step(
            float(rng.integers(10**6)), int(rng.integers(10**6)), float(rng.integers(10**6)),
            terminated=bool(end and rng.random() < 0.5), truncated=bool(end),
        )  # fmt: skip
        if episode.is_done:
            break
    return episode


def transitions(buffer, count):
    """Draw many single steps through a learner pipeline, as rows of a dict."""
    pieces = [AddNextObservationsFromEpisodesToTrainBatch()]
    pipeline = learner.default_pipeline(connectors=pieces, advantages=False)
    batch = pipeline(rl_module=None, batch={}, episodes=buffer.sample(count))
    return {
        (float(o), int(a), float(r), float(n), bool(te), bool(tr))
        for o, a, r, n, te, tr in zip(*(batch[k] for k in NAMES))
    }


NAMES = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")


@pytest.mark.parametrize("seed", range(12))
def test_it_holds_the_newest_steps_of_a_list(seed):
    """One list of parts after the other: running episodes go on, and the oldest steps of a lane are overwritten."""
    rng = np.random.default_rng(seed)
    capacity, running, number = int(rng.integers(4, 30)), None, 0
    buffer, model = EpisodeReplayBuffer(capacity, seed=seed), ByHand(capacity)
    for _ in range(15):
        goes_on = running is not None
        episode = random_part(rng, running, f"e{number}")
        number += not goes_on
        buffer.add(episode)
        model.add(0, episode, goes_on)
        running = None if episode.is_done else episode.cut(len_lookback_buffer=int(rng.integers(0, 3)))
        expected = list(model.steps())
        assert len(buffer) == len(expected)
        if expected:
            rows = (
                (s["obs"], s["action"], s["reward"], s["new_obs"], s["terminated"], s["truncated"]) for s in expected
            )
            assert transitions(buffer, 400) == {(o, a, r, n, bool(te), bool(tr)) for o, a, r, n, te, tr in rows}


def vector_part(rng, steps, envs, first):
    """Steps of environments that end at random, as a runner delivers them; observations are all different."""
    obs = first + np.arange((steps + 1) * envs, dtype=np.float64).reshape(steps + 1, envs)
    ends = rng.random((steps, envs)) < 0.1
    terminated = ends & (rng.random((steps, envs)) < 0.5)
    return VectorEpisodes.from_arrays(obs, obs[:-1].astype(np.int64), obs[:-1] / 2, terminated, ends & ~terminated)


def test_deliveries_of_environments_that_step_together():
    rng = np.random.default_rng(0)
    buffer, seen = EpisodeReplayBuffer(64, seed=0), []
    for k in range(6):
        part = vector_part(rng, 9, 4, 1000.0 * k)
        buffer.add(part)
        seen.append(part)
    held = transitions(buffer, 3000)
    every = set()
    for part in seen:
        for episode in part:
            observations = episode.get_observations()
            for t in range(len(episode)):
                last = t == len(episode) - 1
                flags = (last and episode.is_terminated, last and episode.is_truncated)
                o = float(observations[t])
                every.add((o, int(o), o / 2, float(observations[t + 1]), *flags))
    assert held <= every and len(held) == len(buffer) >= 40


def test_draws_are_uniform():
    buffer = EpisodeReplayBuffer(500, seed=3)
    for start in range(0, 60, 6):
        steps = list(range(start, start + 6))
        buffer.add(SingleAgentEpisode(observations=[*steps, -1], actions=steps, rewards=[0.0] * 6, terminated=True,
                                      len_lookback_buffer=0))  # fmt: skip
    drawn = np.concatenate([buffer.lanes.steps_of(buffer.sample(600).drawn) for _ in range(100)])
    counts = np.bincount(drawn, minlength=6)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 25  # chi-square, 5 degrees of freedom: p > 0.0001


@pytest.mark.parametrize("length", [1, 4, 9])
def test_sequences_stop_where_episodes_do(length):
    buffer = EpisodeReplayBuffer(200, seed=0)
    for number, steps in enumerate((1, 3, 5, 8, 13)):
        obs = [100 * number + t for t in range(steps + 1)]
        ends = {"terminated": number % 2 == 0, "truncated": number % 2 == 1, "len_lookback_buffer": 0}
        rewards = [1.0] * steps
        buffer.add(SingleAgentEpisode(id_=f"e{number}", observations=obs, actions=obs[:-1], rewards=rewards, **ends))
    lengths = {f"e{i}": n for i, n in enumerate((1, 3, 5, 8, 13))}
    for part in buffer.sample(300, batch_length_T=length):
        first, total = part.t_started, lengths[part.id_]
        assert len(part) == min(length, total - first)
        obs = [100 * int(part.id_[1:]) + first + t for t in range(len(part) + 1)]
        assert part.get_observations().tolist() == obs and part.get_actions().tolist() == obs[:-1]
        at_end = first + len(part) == total
        assert (part.is_terminated, part.is_truncated) == (at_end and total in (1, 5, 13), at_end and total in (3, 8))
        before = part.get_observations(slice(-first, 0), neg_index_as_lookback=True)  # all that was before it
        assert np.asarray(before).tolist() == [obs[0] - first + t for t in range(first)]


def test_starts_have_the_history_and_the_length_that_is_asked_for():
    buffer = EpisodeReplayBuffer(16, seed=0)
    obs = list(range(41))
    buffer.add(SingleAgentEpisode(observations=obs, actions=obs[:-1], rewards=[0.0] * 40, terminated=True,
                                  len_lookback_buffer=0))  # fmt: skip
    assert len(buffer) == 15
    drawn = buffer.sample(500, batch_length_T=3, lookback=4, min_batch_length_T=3)
    assert set(drawn.starts.tolist()) == set(range(25 + 4, 38))
    with pytest.raises(ReplayError, match="20 steps before it"):
        buffer.sample(1, lookback=20)


def test_errors_leave_the_buffer_as_it_was():
    buffer = EpisodeReplayBuffer(10, seed=0)
    with pytest.raises(ReplayError, match="an empty buffer"):
        buffer.sample(1)
    with pytest.raises(ReplayError, match="at least 2"):
        EpisodeReplayBuffer(1)
    good = SingleAgentEpisode(observations=[0.0, 1.0], actions=[1], rewards=[1.0], len_lookback_buffer=0)
    buffer.add(good)
    for wrong in (
        SingleAgentEpisode(observations=[[0.0], [1.0]], actions=[1], rewards=[1.0], len_lookback_buffer=0),
        SingleAgentEpisode(
            observations=[0.0, 1.0], actions=[1], rewards=[1.0], len_lookback_buffer=0, extra_model_outputs={"x": [1]}
        ),
    ):
        with pytest.raises(ColumnError):
            buffer.add(wrong)
    assert len(buffer) == 1 and buffer.sample(2)[0].get_observations().tolist() == [0.0, 1.0]


def whole(number, steps):
    obs = [100 * number + t for t in range(steps + 1)]
    return SingleAgentEpisode(
        id_=f"e{number}",
        observations=obs,
        actions=obs[:-1],
        rewards=[1.0] * steps,
        terminated=True,
        len_lookback_buffer=0,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_drawn_by_their_priorities(alpha):
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=alpha, seed=0)
    buffer.add([whole(0, 4), whole(1, 4)])
    drawn = buffer.sample(200)
    actions = np.array([episode.get_actions(0) for episode in drawn])
    priorities = 1.0 + actions % 100 + 4 * (actions // 100)  # 1 to 8
    buffer.update_priorities(priorities, drawn)
    again = buffer.sample(20_000, beta=0.5)
    counts = np.bincount(again.starts + 4 * (np.asarray(again.ids) == "e1"), minlength=8)
    shares = np.arange(1, 9.0) ** alpha
    expected = 20_000 * shares / shares.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 30  # 7 degrees of freedom


def test_weights_undo_the_preference():
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=1.0, seed=0)
    buffer.add(whole(0, 4))
    drawn = buffer.sample(100)
    buffer.update_priorities(1.0 + drawn.starts, drawn)
    for beta in (0.0, 0.4, 1.0):
        again = buffer.sample(100, beta=beta)
        weights = (1.0 + again.starts) ** -beta
        np.testing.assert_allclose(again.per_chunk["weights"], weights / weights.max(), rtol=1e-6)


def test_late_priorities_of_steps_that_are_gone_are_left_out():
    """Draws wait in any number and order, while the buffer goes on; a ring that is written again has new steps."""
    buffer = PrioritizedEpisodeReplayBuffer(12, alpha=1.0, seed=1)
    buffer.add(whole(0, 5))
    early = buffer.sample(40)
    buffer.add(whole(1, 5))
    late = buffer.sample(40)
    buffer.add(whole(2, 3))  # overwrites steps 0 to 3 of the first one
    new = {t for t, name in zip(late.starts.tolist(), late.ids) if name == "e1"}
    assert new == {0, 1, 2, 3, 4}
    buffer.update_priorities(np.zeros(40), late)
    buffer.update_priorities(np.zeros(40), early)
    assert {episode.id_ for episode in buffer.sample(50)} == {"e2"}, "the only one whose steps were not set to 0"


@pytest.mark.parametrize("priorities", [[1.0], [1.0, -1.0], [1.0, np.nan], np.ones((3, 1))])
def test_wrong_priorities_are_named(priorities):
    buffer = PrioritizedEpisodeReplayBuffer(12, seed=1)
    with pytest.raises(ReplayError, match="no draw"):
        buffer.update_priorities([])
    buffer.add(whole(0, 5))
    buffer.sample(2)
    with pytest.raises(ReplayError, match="2 parts"):
        buffer.update_priorities(priorities)
    assert len({*buffer.sample(60).starts.tolist()}) == 5


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_a_restored_buffer_goes_on_bit_for_bit(kind, tmp_path):
    """Through a folder, without pickle: running episodes go on, and draws are the same."""
    rng = np.random.default_rng(1)

    def fill(buffers, number, part):
        for buffer in buffers:
            buffer.add(part)
            buffer.add([whole(10 + number, 3), whole(30 + number, 7)], source="lists")

    buffer = kind(90, seed=4)
    parts = [vector_part(rng, 9, 4, 1000.0 * k) for k in range(6)]
    for number, part in enumerate(parts[:3]):
        fill([buffer], number, part)
    if kind is PrioritizedEpisodeReplayBuffer:
        drawn = buffer.sample(30)
        buffer.update_priorities(rng.random(30), drawn)
    save_state(tmp_path / "buffer", buffer.get_state())
    again = kind(90, seed=99)
    again.set_state(load_state(tmp_path / "buffer"))
    for number, part in enumerate(parts[3:]):
        fill([buffer, again], 3 + number, part)
        assert len(buffer) == len(again)
        for length in (1, 4):
            one, other = (b.sample(40, batch_length_T=length) for b in (buffer, again))
            assert one.drawn.tolist() == other.drawn.tolist()
            assert [e.get_observations().tolist() for e in one] == [e.get_observations().tolist() for e in other]
            assert list(one.ids) == list(other.ids)
    assert buffer.get_added_timesteps() == again.get_added_timesteps()


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_a_state_that_does_not_fit_leaves_the_buffer_as_it_was(kind):
    buffer = kind(60, seed=4)
    buffer.add([whole(0, 5), whole(1, 6)])
    other, same = kind(60, seed=1), kind(60)
    other.add(whole(7, 2))
    same.set_state(other.get_state())
    for spoil in (
        lambda s: s.pop("counts"),
        lambda s: s["lanes"].pop("bounds"),
        lambda s: s["lanes"].update(written=s["lanes"]["written"] + 1),
        lambda s: s["lanes"].update(lives=s["lanes"]["lives"] + 5),
        lambda s: s["lanes"].update(segments=[]),
        lambda s: s["lanes"].update(rows_per_lane=10**12),
        lambda s: s["lanes"].update(columns={"obs": np.zeros(3)}),
        lambda s: s["lanes"].update(names=[["x"]]),
        lambda s: s.update(lane_of=[[0, 0, 7]]),
        lambda s: s.update(generator={}),
        lambda s: s.update(counts=[-1, 0]),
    ):
        state = buffer.get_state()
        spoil(state)
        with pytest.raises(CheckpointError):
            other.set_state(state)
        assert len(other) == len(same) and list(other.sample(9).ids) == list(same.sample(9).ids)
