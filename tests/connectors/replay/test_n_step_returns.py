"""n-step returns, of drawn steps and of whole chunks, beside a loop over lists."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2, learner
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import ConfigError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer


class ClipRewards(ColumnTransform):
    """Between -1 and 1."""

    columns = "rewards"

    def transform(self, rewards):
        return np.clip(rewards, -1, 1)


class DoubleRewards(ConnectorV2):
    """Writes to the episodes, as pieces of other libraries do."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=[2 * float(r) for r in episode.get_rewards()])
        return batch


def random_episodes(rng):
    """Episodes cut into parts, as a list of the parts and a list of whole rows by id."""
    parts, whole, now = [], {}, 0
    for number in range(int(rng.integers(1, 5))):
        episode = SingleAgentEpisode(id_=f"e{number}")
        rows = whole[episode.id_] = {"obs": [now], "rewards": [], "end": (False, False)}
        episode.add_env_reset(np.array([float(now)], np.float32))
        for _ in range(int(rng.integers(1, 15))):
            now += 1
            rows["obs"].append(now)
            rows["rewards"].append(float(rng.integers(-4, 5)) / 2)
            end = rng.random()
            flags = bool(end < 0.08), bool(0.08 < end < 0.16)
            episode.add_env_step(
                np.array([float(now)], np.float32), now, rows["rewards"][-1], terminated=flags[0], truncated=flags[1]
            )
            rows["end"] = flags
            if any(flags):
                break
            if rng.random() < 0.2:
                parts.append(episode)
                episode = episode.cut(len_lookback_buffer=int(rng.integers(3, 6)))
        now += 1
        if len(episode):
            parts.append(episode)
    return parts, whole


def expected_row(rows, t, stop, n, gamma, shaped, frames):
    """What the definition says about step t, if rows up to the observation `stop` are known."""
    count = min(n, stop - t)
    total = sum(gamma**i * shaped(r) for i, r in enumerate(rows["rewards"][t : t + count]))
    at_end = t + count == len(rows["rewards"])

    def stack(at):
        return [float(rows["obs"][i]) if i >= 0 else 0.0 for i in range(at - frames + 1, at + 1)]

    flags = [bool(flag and at_end) for flag in rows["end"]]
    return stack(t), total, stack(t + count), *flags, count, gamma**count


def rows_of(batch):
    names = ("obs", "rewards", "new_obs", "terminateds", "truncateds", "n_step", "discounts")
    for o, r, n, te, tr, k, d in zip(*(np.asarray(batch[name]) for name in names)):
        yield o.reshape(-1).tolist(), float(r), n.reshape(-1).tolist(), bool(te), bool(tr), int(k), float(d)


SHAPING = {
    "none": ([], lambda r: r),
    "clipped": ([ClipRewards()], lambda r: min(max(r, -1), 1)),
    "in the episodes": ([DoubleRewards()], lambda r: 2 * r),
}


@pytest.mark.parametrize("shaping", SHAPING)
@pytest.mark.parametrize("stacked", [None, "before", "behind"])
@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_the_definition(seed, stacked, shaping):
    rng = np.random.default_rng(seed)
    n, gamma = int(rng.integers(1, 11)), float(rng.choice([0.5, 0.9, 1.0]))
    pieces, shaped = SHAPING[shaping]
    nstep, stack = NStepReturns(n_step=n, gamma=gamma), FrameStacking(num_frames=3)
    order = {None: [*pieces, nstep], "before": [*pieces, stack, nstep], "behind": [*pieces, nstep, stack]}[stacked]
    more = [AddNextObservationsFromEpisodesToTrainBatch()] if seed % 2 else []
    pipeline = learner.default_pipeline(connectors=[*order, *more], advantages=False)
    frames = 1 if stacked is None else 3
    parts, whole = random_episodes(rng)
    by_obs = {obs: (rows, t) for rows in whole.values() for t, obs in enumerate(rows["obs"])}

    def check(batch, stop_of):
        count = 0
        for row in rows_of(batch):
            rows, t = by_obs[int(row[0][-1])]
            expected = expected_row(rows, t, stop_of(rows, t), n, gamma, shaped, frames)
            np.testing.assert_allclose(
                np.array([*row[0], row[1], *row[2], *row[3:]], float),
                np.array([*expected[0], expected[1], *expected[2], *expected[3:]], float),
                rtol=1e-6,
            )
            count += 1
        return count

    buffer = EpisodeReplayBuffer(200, seed=seed)
    buffer.add(parts)
    drawn = pipeline(rl_module=None, batch={}, episodes=buffer.sample(64))
    assert check(drawn, lambda rows, t: len(rows["rewards"])) == 64

    ends = {part.get_observations(-1).item(): None for part in parts}
    copies = [SingleAgentEpisode.from_state(part.get_state()) for part in parts]

    def end_of_part(rows, t):
        return next(i for i in range(t + 1, len(rows["obs"])) if float(rows["obs"][i]) in ends)

    batch = pipeline(rl_module=None, batch={}, episodes=copies)
    assert check(batch, end_of_part) == sum(map(len, parts))


def test_sequences_have_a_sum_at_each_step():
    buffer = EpisodeReplayBuffer(100, seed=0)
    obs, rewards = np.arange(31, dtype=np.float32)[:, None], np.arange(30.0)
    buffer.add(SingleAgentEpisode(observations=obs, actions=list(range(30)), rewards=rewards, terminated=True,
                                  len_lookback_buffer=0))  # fmt: skip
    pipeline = learner.default_pipeline(connectors=[NStepReturns(n_step=3, gamma=0.5)], advantages=False)
    drawn = buffer.sample(20, batch_length_T=6)
    batch = pipeline(rl_module=None, batch={}, episodes=drawn)
    steps = np.concatenate([np.arange(a, a + k) for a, k in zip(drawn.starts, drawn.lengths)])
    assert batch["obs"][:, 0].tolist() == steps.tolist()
    assert batch["new_obs"][:, 0].tolist() == np.minimum(steps + 3, 30).tolist()
    sums = [sum(0.5**i * (t + i) for i in range(min(3, 30 - t))) for t in steps]
    np.testing.assert_allclose(batch["rewards"], sums)
    assert batch["terminateds"].tolist() == (steps + 3 >= 30).tolist()


@pytest.mark.parametrize("arguments", [{"n_step": 0}, {"gamma": 1.5}])
def test_arguments_out_of_range_are_named(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        NStepReturns(**arguments)
