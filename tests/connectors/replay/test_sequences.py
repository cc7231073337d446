"""Sequences out of a replay buffer for a recurrent module, beside a loop over lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors import learner
from epibatch.connectors.replay import NStepReturns
from epibatch.connectors.sequences import RandomSubsequences
from epibatch.core.errors import ReplayError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer


class Adding(torch.nn.Module):
    """A module whose state is the sum of what it saw."""

    def __init__(self, **model_config):
        super().__init__()
        self.model_config = model_config

    def get_initial_state(self):
        return {"h": np.array([-1.0], np.float32)}

    def forward_train(self, batch):
        return {"state_out": {"h": batch["state_in"]["h"] + batch["obs"].sum(1)}}


def random_stream(rng, now):
    """Episodes in the parts in which they came, and of each all rows: obs, rewards, states after steps, and the end."""
    parts, episodes = [], []
    for number in range(int(rng.integers(2, 6))):
        episode = SingleAgentEpisode(id_=f"e{number}")
        rows = {"obs": [now], "rewards": [], "states": [], "end": (False, False), "held": []}
        episode.add_env_reset(np.array([now], np.float32))
        for _ in range(int(rng.integers(1, 25))):
            now += 1
            rows["obs"].append(now)
            rows["rewards"].append(float(rng.integers(-4, 5)))
            rows["states"].append(float(rng.integers(10**6)))
            end = rng.random()
            rows["end"] = bool(end < 0.05), bool(0.05 < end < 0.1)
            episode.add_env_step(
                np.array([now], np.float32), now, rows["rewards"][-1],
                extra_model_outputs={"state_out": {"h": np.array([rows["states"][-1]], np.float32)}},
                terminated=rows["end"][0], truncated=rows["end"][1],
            )  # fmt: skip
            if any(rows["end"]):
                break
            if rng.random() < 0.1:
                parts.append(episode)
                episode = episode.cut(len_lookback_buffer=1)
        if len(episode):
            parts.append(episode)
        episodes.append(rows)
        now += 1
    return parts, episodes


def expected_sequence(rows, oldest, t, length, burn_in, n, gamma):
    """The sequence of an episode for the drawn step t, by the definition, if steps before `oldest` are gone.

    Returns the rows to learn from, and the states before them and before the first of their next observations, if the
    steps before them add what they saw to the states that are stored.
    """
    last = len(rows["rewards"])
    earliest = 0 if oldest == 0 else oldest + 1  # a state before it has to be there
    begin = max(min(t, last - length), earliest) if burn_in else t
    first, stop = max(begin - burn_in, earliest), min(begin + length, last)
    begin = max(stop - length, first) if burn_in else first

    def row(at):
        k = min(n, last - at)
        total = sum(gamma**i * r for i, r in enumerate(rows["rewards"][at : at + k]))
        flags = [flag and at + k == last for flag in rows["end"]]
        return [rows["obs"][at], rows["obs"][at] + 1, total, rows["obs"][at + k], *flags, k, gamma**k]

    def state(at):
        return rows["states"][at - 1] if at else -1.0

    after = min(first + n, last)  # the first of the next observations
    burned = range(first, begin)
    now = state(first) + sum(rows["obs"][at] for at in burned)
    later = state(after) + sum(rows["obs"][min(at + n, last)] for at in burned)
    return [row(at) for at in range(begin, stop)], now, later


def rows_of(batch, b):
    """The rows with loss of one sequence, as lists."""
    mask = batch["loss_mask"][b].numpy()
    names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds", "n_step", "discounts")
    return [[float(np.ravel(batch[name][b, at])[0]) for name in names] for at in np.flatnonzero(mask)]


def check_case(seed):
    rng = np.random.default_rng(seed)
    length, burn_in = int(rng.integers(1, 8)), int(rng.choice([0, 0, 1, 3, 6]))
    n, gamma = int(rng.integers(1, 6)), 0.5
    parts, episodes = random_stream(rng, 0)
    buffer = EpisodeReplayBuffer(int(rng.integers(60, 250)), seed=seed)
    for part in parts:
        buffer.add(part, source=0)
    pieces = [*([RandomSubsequences(at="end")] if burn_in else []), NStepReturns(n_step=n, gamma=gamma)]
    pipeline = learner.default_pipeline(connectors=pieces, advantages=False, burn_in=bool(burn_in))
    drawn = buffer.sample(12, batch_length_T=length, burn_in=burn_in, lookback=1)
    module = Adding(max_seq_len=length + burn_in, burn_in=burn_in)
    batch = pipeline(rl_module=module, batch={}, episodes=drawn)
    assert tuple(batch["loss_mask"].shape) == (12, length)
    where = {obs: (rows, t) for rows in episodes for t, obs in enumerate(rows["obs"])}
    steps = buffer.lanes.steps_of(drawn.drawn)
    held = [
        int(leaf)
        for leaf in np.ravel(buffer.lanes.stored("obs").leaves[0][buffer.lanes.rows_at(buffer.lanes.newest())])
    ]
    for b in range(12):
        rows, t = episodes[int(drawn.ids[b][1:])], int(steps[b])
        oldest = min(where[obs][1] for obs in held if where[obs][0] is rows)
        wanted, state, later = expected_sequence(rows, oldest, t, length, burn_in, n, gamma)
        np.testing.assert_array_equal(rows_of(batch, b), np.array(wanted, float))
        assert int(batch["seq_lens"][b]) == len(wanted)
        assert not batch["obs"][b, len(wanted) :].any() and not batch["loss_mask"][b, len(wanted) :].any()
        assert float(batch["state_in"]["h"][b]) == state
        assert float(batch["next_state_in"]["h"][b]) == later


@pytest.mark.parametrize("seed", range(150))
def test_sequences_are_those_of_the_definition(seed):
    check_case(seed)


def prioritised(eta=0.9, **options):
    """A buffer with two episodes of 30 steps."""
    buffer = PrioritizedEpisodeReplayBuffer(100, seed=0, eta=eta, **options)
    for name in "ab":
        buffer.add(SingleAgentEpisode(id_=name, observations=list(range(31)), actions=[0] * 30, rewards=[0.0] * 30,
                                      terminated=True, len_lookback_buffer=0))  # fmt: skip
    return buffer


@pytest.mark.parametrize("eta", [0.0, 0.25, 0.9, 1.0])
def test_priorities_of_sequences_are_those_of_the_definition(eta):
    rng = np.random.default_rng(3)
    by_steps, by_hand = prioritised(eta, alpha=0.6), prioritised(eta, alpha=0.6)
    drawn = [buffer.sample(200, batch_length_T=6, burn_in=2) for buffer in (by_steps, by_hand)]
    errors = [rng.random(int(min(length, 6))) * 5 for length in drawn[0].lengths]
    padded = np.array([[*part, *[np.nan] * (6 - len(part))] for part in errors])
    by_steps.update_priorities(padded, drawn[0])
    by_hand.update_priorities([eta * max(part) + (1 - eta) * sum(part) / len(part) for part in errors], drawn[1])
    left, right = by_steps.get_state(), by_hand.get_state()
    np.testing.assert_allclose(left["priorities"], right["priorities"], rtol=1e-12)
    assert left["highest"] == pytest.approx(right["highest"])


@pytest.mark.parametrize(
    "errors", [[[1.0, -0.5], [1, 1]], [[np.nan, np.nan], [1, 1]], [[np.inf, 1.0], [1, 1]], [[1.0]]]
)
def test_wrong_errors_of_steps_change_nothing(errors):
    buffer = prioritised()
    drawn = buffer.sample(2, batch_length_T=2)
    before = buffer.get_state()["priorities"]
    with pytest.raises(ReplayError, match="a priority that is finite and not negative"):
        buffer.update_priorities(errors, drawn)
    np.testing.assert_array_equal(buffer.get_state()["priorities"], before)


def test_shares_of_the_highest_error_are_shares():
    with pytest.raises(ReplayError, match="eta"):
        prioritised(1.5)
