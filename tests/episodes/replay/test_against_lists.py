"""Draws from replay buffers beside lists of rows, from which each expected row is made as the definition says.

Environments that step together fill lanes of a few rows, over and over: episodes end terminated, truncated or not yet,
are cut by deliveries, overwritten in part, and shorter than the sums or the sequences that are drawn.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from epibatch.connectors import learner
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import ReplayError
from epibatch.episodes import VectorEpisodes
from epibatch.episodes.replay import EpisodeReplayBuffer, MixedReplay, PrioritizedEpisodeReplayBuffer

CASES = int(os.environ.get("EPIBATCH_CASES", "60"))
BLOCKS = 12


def cases(block):
    return range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS)


class Streams:
    """Environments that end at random, and lists of all that they ever gave; observations are numbers in order."""

    def __init__(self, rng, capacity=None, ending=0.15):
        self.rng, self.ending = rng, ending
        self.num_envs = int(rng.integers(1, 4))
        self.capacity = int(rng.integers(4, 26)) * self.num_envs if capacity is None else capacity
        self.lanes = [[] for _ in range(self.num_envs)]  # rows: (episode, t)
        self.episodes = [self._new_episode() for _ in range(self.num_envs)]  # those that run
        self.numbers = np.zeros(self.num_envs, np.int64)
        self.now = 0
        self.order = []  # all steps, in the order of adding

    def _new_episode(self):
        return {"obs": [], "rewards": [], "end": (False, False)}

    def _next_obs(self):
        self.now += 1
        return self.now

    def deliver(self, steps):
        """The next steps of all environments, as a runner gives them."""
        rng, n = self.rng, self.num_envs
        shape = steps, n
        obs, rewards = np.zeros((steps + 1, n, 1), np.float32), rng.integers(-4, 5, shape) / 2
        ends, tails = np.zeros((2, *shape), np.bool_), {}
        t_started = np.array([len(e["rewards"]) for e in self.episodes])
        numbers = self.numbers.copy()
        for env in range(n):
            for t in range(steps):
                episode = self.episodes[env]
                if not episode["obs"]:
                    episode["obs"].append(self._next_obs())
                    self.lanes[env].append((episode, 0))
                obs[t, env] = episode["obs"][-1]
                self.order.append((env, episode, len(episode["rewards"])))
                episode["rewards"].append(float(rewards[t, env]))
                episode["obs"].append(self._next_obs())
                self.lanes[env].append((episode, len(episode["rewards"])))
                if rng.random() < self.ending:
                    over = bool(rng.random() < 0.5)
                    episode["end"] = over, not over
                    ends[:, t, env] = episode["end"]
                    tails.setdefault(t, []).append((env, episode["obs"][-1]))
                    self.episodes[env] = self._new_episode()
                    self.numbers[env] += 1
            obs[steps, env] = self.episodes[env]["obs"][-1] if self.episodes[env]["obs"] else 0
        last = {
            t: (np.array([env for env, _ in rows]), np.array([[o] for _, o in rows], np.float32))
            for t, rows in tails.items()
        }
        actions = (obs[:-1, :, 0] * 3).astype(np.int64)
        return VectorEpisodes.from_arrays(
            obs, actions, rewards, *ends, terminal_observations=last, t_started=t_started, numbers=numbers, name="e"
        )

    def held(self):
        """The steps that a buffer of this capacity holds: observation -> (episode, step, steps held before it)."""
        out = {}
        for rows in self.lanes:
            kept = rows[-(self.capacity // self.num_envs) :]
            oldest = {}
            for episode, t in kept:
                oldest.setdefault(id(episode), t)
                if t < len(episode["rewards"]):
                    out[episode["obs"][t]] = episode, t, t - oldest[id(episode)]
        return out

    def priorities(self, of_observations):
        """What a buffer's state has: of all rows, lane by lane; 1 where nothing is known, 0 where there is no step."""
        rows = [row for lane in self.lanes for row in lane[-(self.capacity // self.num_envs) :]]
        return [of_observations.get(e["obs"][t], 1.0) if t < len(e["rewards"]) else 0.0 for e, t in rows]


def n_step_row(episode, t, n, gamma, frames):
    """A row by definition: stacked observation, sum, stacked observation after it, flags, k and gamma^k."""
    k = min(n, len(episode["rewards"]) - t)
    total = sum(gamma**i * r for i, r in enumerate(episode["rewards"][t : t + k]))
    at_end = t + k == len(episode["rewards"])

    def stack(at):
        return [float(episode["obs"][i]) if i >= 0 else 0.0 for i in range(at - frames + 1, at + 1)]

    return [*stack(t), total, *stack(t + k), *(flag and at_end for flag in episode["end"]), k, gamma**k]


NAMES = ("obs", "rewards", "new_obs", "terminateds", "truncateds", "n_step", "discounts")


def rows_of(batch):
    rows = [np.asarray(batch[name], np.float64).reshape(len(batch["obs"]), -1) for name in NAMES]
    return np.concatenate(rows, 1)


def piped(episodes, *pieces):
    pipeline = learner.default_pipeline(connectors=list(pieces), advantages=False)
    return pipeline(rl_module=None, batch={}, episodes=episodes)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_steps_of_n_steps(block):
    """By the argument, as batches and as episodes, and by the piece."""
    for seed in cases(block):
        rng = np.random.default_rng(seed)
        streams = Streams(rng)
        buffer = EpisodeReplayBuffer(streams.capacity, seed=seed)
        for _ in range(int(rng.integers(1, 6))):
            buffer.add(streams.deliver(int(rng.integers(1, 12))))
        held, n, gamma = streams.held(), int(rng.integers(1, 11)), float(rng.choice([0.5, 0.9, 1.0]))
        assert len(buffer) == len(held)
        frames = int(rng.choice([1, 3]))
        lookback = frames - 1
        stack = [FrameStacking(num_frames=frames)] if lookback else []
        starts = {obs for obs, (_, t, before) in held.items() if before >= min(lookback, t)}
        if not starts:
            with pytest.raises(ReplayError, match="none among"):
                buffer.sample(1, n_step=n, lookback=lookback)
            continue
        drawn = buffer.sample(40, n_step=n, gamma=gamma, lookback=lookback)
        batch = piped(drawn, *stack, AddNextObservationsFromEpisodesToTrainBatch())
        obs = batch["obs"].reshape(40, -1)[:, -1].astype(int)
        assert set(obs) <= starts
        expected = np.array([n_step_row(*held[o][:2], n, gamma, frames) for o in obs])
        np.testing.assert_allclose(rows_of(batch), expected, rtol=1e-6)
        assert (batch["actions"] == 3 * obs).all() and (batch["weights"] == 1).all()

        for episode, o, row in zip(drawn[:5], obs, expected):
            assert len(episode) == 1 and episode.t_started == held[o][1]
            assert episode.get_observations().reshape(-1).tolist() == [o, row[-5]]
            np.testing.assert_allclose(episode.get_rewards(), row[frames], rtol=1e-6)
            assert [episode.is_terminated, episode.is_truncated] == row[-4:-2].astype(bool).tolist()
            assert episode.get_extra_model_outputs("n_step", 0) == row[-2]
            earlier = episode.get_observations(slice(-lookback, 0), neg_index_as_lookback=True, fill=0.0)
            assert np.reshape(earlier, -1).tolist() == row[:lookback].tolist()

        batch = piped(buffer.sample(40, lookback=lookback), NStepReturns(n_step=n, gamma=gamma), *stack)
        obs = batch["obs"].reshape(40, -1)[:, -1].astype(int)
        expected = np.array([n_step_row(*held[o][:2], n, gamma, frames) for o in obs])
        np.testing.assert_allclose(rows_of(batch), expected, rtol=1e-6)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_sequences(block):
    for seed in cases(block):
        rng = np.random.default_rng(seed)
        streams = Streams(rng, ending=float(rng.choice([0.05, 0.2])))
        buffer = EpisodeReplayBuffer(streams.capacity, seed=seed)
        for _ in range(int(rng.integers(1, 6))):
            buffer.add(streams.deliver(int(rng.integers(1, 12))))
        most = min(6, streams.capacity // streams.num_envs - 1)
        length, lookback = int(rng.integers(1, most + 1)), int(rng.integers(0, 4))
        shortest = int(rng.integers(0, length + 1))
        options = {"batch_length_T": length, "lookback": lookback, "min_batch_length_T": shortest}
        starts = {
            obs: (episode, t)
            for obs, (episode, t, before) in streams.held().items()
            if before >= min(lookback, t) and len(episode["rewards"]) - t >= shortest
        }
        if not starts:
            with pytest.raises(ReplayError, match="none among"):
                buffer.sample(1, **options)
            continue
        drawn = buffer.sample(60, **options)
        batch, row = piped(drawn), 0
        for first, count in zip(drawn.starts, drawn.lengths):
            obs = int(batch["obs"][row, 0])
            episode, t = starts[obs]
            left = len(episode["rewards"]) - t
            assert (first, count) == (t, min(length, left))
            rows = slice(row, row + count)
            assert batch["obs"][rows, 0].tolist() == episode["obs"][t : t + count]
            assert batch["rewards"][rows].tolist() == episode["rewards"][t : t + count]
            for flag, ended in zip(("terminateds", "truncateds"), episode["end"]):
                assert batch[flag][rows].tolist() == [False] * (count - 1) + [ended and count == left]
            row += count
        assert row == len(batch["obs"])
        few = buffer.sample(40 * len(starts), **options)
        assert {o for o, *_ in (e.get_observations(0) for e in few[: 12 * len(starts)])} <= set(starts)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_new_steps_and_steps_by_age(block):
    for seed in cases(block):
        rng = np.random.default_rng(seed)
        streams = Streams(rng)
        buffer = EpisodeReplayBuffer(streams.capacity, seed=seed)
        given = 0
        for _ in range(int(rng.integers(1, 6))):
            buffer.add(streams.deliver(int(rng.integers(1, 9))))
            held = streams.held()
            age = int(rng.integers(1, 12))
            recent = {e["obs"][t] for _, e, t in streams.order[-age:]} & set(held)
            if recent:  # nothing is left of them where the lanes are that short
                drawn = piped(buffer.sample(50 * len(recent), max_age=age))["obs"][:, 0]
                assert set(drawn.astype(int)) == recent
            if rng.random() < 0.5:
                continue
            length = int(rng.integers(1, min(5, streams.capacity // streams.num_envs)))
            expected, parts = [], []
            for number, (env, episode, t) in enumerate(streams.order):
                if number < given or episode["obs"][t] not in held:
                    continue
                before = expected[-1] if expected else None
                goes_on = before is not None and before[:2] == (env, id(episode)) and before[2] == t - 1
                if goes_on and len(parts[-1]) < length:
                    parts[-1].append(episode["obs"][t])
                else:
                    parts.append([episode["obs"][t]])
                expected.append((env, id(episode), t))
            if not parts:
                continue
            most = None if rng.random() < 0.5 else int(rng.integers(1, len(parts) + 1))
            drawn = buffer.sample(most, batch_length_T=length, only_new=True)
            assert [e.get_observations().reshape(-1)[:-1].astype(int).tolist() for e in drawn] == parts[:most]
            last = parts[:most][-1][-1]
            given = 1 + next(i for i, (_, e, t) in enumerate(streams.order) if e["obs"][t] == last)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_late_priorities(block):
    """Draws wait in any number and order while the buffer goes on; steps that are gone get none."""
    for seed in cases(block):
        rng = np.random.default_rng(seed)
        streams, alpha = Streams(rng), float(rng.choice([0.5, 1.0]))
        buffer = PrioritizedEpisodeReplayBuffer(streams.capacity, alpha=alpha, seed=seed)
        priorities, highest, waiting = {}, 1.0, []
        for _ in range(6):
            given = float(rng.integers(1, 5)) if rng.random() < 0.3 else None
            before = set(streams.held())
            buffer.add(streams.deliver(int(rng.integers(1, 6))), weight=given)
            for obs in set(streams.held()) - before:
                priorities[obs] = highest if given is None else given**alpha
            drawn = buffer.sample(int(rng.integers(1, 20)), n_step=(1, 3), beta=1.0)
            obs = piped(drawn)["obs"][:, 0].astype(int)
            shares = np.array([priorities[o] for o in obs])
            np.testing.assert_allclose(drawn.per_chunk["weights"], shares.min() / shares, rtol=1e-5)
            waiting.append((drawn, obs))
            if rng.random() < 0.6:
                late, observations = waiting.pop(int(rng.integers(len(waiting))))
                values = rng.integers(1, 9, len(late)).astype(float)
                buffer.update_priorities(values, late)
                held = streams.held()
                for o, value in zip(observations, values):
                    if o in held:
                        priorities[o] = value**alpha
                        highest = max(highest, value**alpha)
        np.testing.assert_allclose(buffer.get_state()["priorities"], streams.priorities(priorities))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_mixtures(block):
    """Rows of several buffers in one batch, in their shares; priorities go where the rows are from."""
    for seed in cases(block):
        rng = np.random.default_rng(seed)
        streams = [Streams(rng, capacity=60) for _ in range(3)]
        kinds = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]
        buffers = {str(i): kind(60, seed=seed) for i, kind in enumerate(kinds)}
        for offset, (stream, buffer) in enumerate(zip(streams, buffers.values())):
            stream.now = 10_000 * offset
            for _ in range(3):
                buffer.add(stream.deliver(4))
        shares = dict(zip(buffers, rng.random(3) + 0.05))
        replay = MixedReplay(shares, buffers)
        held = {obs: row for stream in streams for obs, row in stream.held().items()}
        n, frames, counts = int(rng.integers(1, 5)), int(rng.choice([1, 3])), np.zeros(3)
        stack = [FrameStacking(num_frames=3)] if frames == 3 else []
        for by_piece in (False, True):
            options = {"lookback": frames - 1} if by_piece else {"n_step": n, "gamma": 0.5, "lookback": frames - 1}
            pieces = [NStepReturns(n_step=n, gamma=0.5)] if by_piece else []
            drawn = replay.sample(int(rng.integers(20, 60)), **options)
            batch = piped(drawn, *pieces, *stack, AddNextObservationsFromEpisodesToTrainBatch())
            obs = batch["obs"].reshape(len(drawn), -1)[:, -1].astype(int)
            expected = np.array([n_step_row(*held[o][:2], n, 0.5, frames) for o in obs])
            np.testing.assert_allclose(rows_of(batch), expected, rtol=1e-6)
            counts += np.bincount(obs // 10_000, minlength=3)
        goal = counts.sum() * np.array(list(shares.values())) / sum(shares.values())
        assert np.abs(counts - goal).max() < 4
        values = rng.integers(0, 9, len(drawn)).astype(float)
        replay.update_priorities(values, drawn)
        priorities = dict(zip(obs.tolist(), values))  # of a step that was drawn twice the last one counts
        for stream, buffer in list(zip(streams, buffers.values()))[1:]:
            assert buffer.get_state()["priorities"].tolist() == stream.priorities(priorities)


def test_shares_of_a_mixture_are_exact_in_the_long_run():
    buffers = {name: EpisodeReplayBuffer(50, seed=0) for name in ("demo", "online")}
    for number, buffer in enumerate(buffers.values()):
        streams = Streams(np.random.default_rng(0), capacity=50)
        streams.now = 1000 * number
        buffer.add(streams.deliver(5))
    replay = MixedReplay({"demo": 0.25, "online": 0.75}, buffers)
    counts = [np.bincount(piped(replay.sample(10))["obs"][:, 0].astype(int) // 1000, minlength=2) for _ in range(200)]
    assert all(1 <= demo <= 4 for demo, _ in counts)
    assert np.abs(np.cumsum(counts, 0)[:, 0] - 2.5 * np.arange(1, 201)).max() < 4
