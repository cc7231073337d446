"""How often each step is drawn, by chi-square: 10^5 draws, and 10^6 in the slow tests."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

COUNTS = [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)]


def filled(kind, **options):
    """200 rows in lanes of 50, written again and again; the actions are numbers in the order of adding."""
    buffer, number, rng = kind(200, seed=5, **options), 0, np.random.default_rng(0)
    running = [[f"e{lane}", 0] for lane in range(4)]
    for _ in range(30):
        for episode in running:
            steps, over = int(rng.integers(1, 9)), rng.random() < 0.3
            actions = list(range(number, number + steps))
            number += steps
            buffer.add(SingleAgentEpisode(
                id_=episode[0], t_started=episode[1], observations=[0.0] * (steps + 1), actions=actions,
                rewards=[0.0] * steps, terminated=over, len_lookback_buffer=0,
            ))  # fmt: skip
            episode[:] = (f"e{number}", 0) if over else (episode[0], episode[1] + steps)
    return buffer


def drawn_actions(buffer, count, **options):
    """The first action of each part, and how many parts began with each."""
    column, parts = buffer.lanes.stored("actions").leaves[0], 20
    draws = [buffer.sample(count // parts, **options) for _ in range(parts)]
    return np.concatenate([column[buffer.lanes.rows_at(draw.drawn)] for draw in draws]), draws


def assert_as_expected(observed, expected):
    """Chi-square with df degrees of freedom: more than df + 6 sqrt(2 df) once in a million."""
    chi_square, df = ((observed - expected) ** 2 / expected).sum(), len(expected) - 1
    assert chi_square < df + 6 * np.sqrt(2 * df), (chi_square, df)


OPTIONS = {
    "steps": {},
    "steps with history": {"lookback": 2},
    "sequences": {"batch_length_T": 5, "min_batch_length_T": 3, "lookback": 1},
    "by age": {"max_age": 40},
    "n steps": {"n_step": (1, 4)},
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_uniform_draws(name, count):
    buffer = filled(EpisodeReplayBuffer)
    actions, _ = drawn_actions(buffer, count, **OPTIONS[name])
    numbers, observed = np.unique(actions, return_counts=True)
    assert {"steps": len(buffer), "n steps": len(buffer), "by age": 40}.get(name, len(numbers)) == len(numbers) > 30
    assert_as_expected(observed, np.full(len(numbers), count / len(numbers)))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_by_priority(alpha, count):
    buffer = filled(PrioritizedEpisodeReplayBuffer, alpha=alpha)
    actions, draws = drawn_actions(buffer, 20_000)
    steps = np.unique(actions)
    assert len(steps) == len(buffer)
    priorities = 1.0 + steps % 7
    for draw, part in zip(draws, actions.reshape(len(draws), -1)):
        buffer.update_priorities(1.0 + part % 7, draw)
    observed = np.bincount(np.searchsorted(steps, drawn_actions(buffer, count)[0]), minlength=len(steps))
    shares = priorities**alpha
    assert_as_expected(observed, count * shares / shares.sum())


@pytest.mark.parametrize("count", COUNTS)
def test_random_n_includes_both_ends(count):
    """Of episodes that are long enough nothing is cut."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(SingleAgentEpisode(observations=[0.0] * 61, actions=[0] * 60, rewards=[0.0] * 60, len_lookback_buffer=0))
    drawn = [buffer.sample(count // 20, n_step=(1, 3), min_batch_length_T=3) for _ in range(20)]
    numbers, observed = np.unique(np.concatenate([d.per_chunk["n_step"] for d in drawn]), return_counts=True)
    assert numbers.tolist() == [1, 2, 3]
    assert_as_expected(observed, np.full(3, count / 3))
