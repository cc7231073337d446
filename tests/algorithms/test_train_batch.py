from __future__ import annotations

import pytest

from epibatch.algorithms.algorithm import sample_train_batch
from epibatch.core.errors import RunnerError
from epibatch.episodes import SingleAgentEpisode


class Gives:
    """A runner whose samples have given numbers of steps."""

    def __init__(self, *counts):
        self._counts = iter(counts)

    def sample(self):
        count = next(self._counts)
        if not count:
            return []
        rows = list(range(count))
        return [
            SingleAgentEpisode(observations=[*rows, count], actions=rows, rewards=rows, len_lookback_buffer=0),
        ]


@pytest.mark.parametrize(("counts", "taken"), [((5,), 1), ((4, 1), 2), ((2, 2, 9, 9), 3)])
def test_as_many_samples_as_it_takes(counts, taken):
    episodes = sample_train_batch(Gives(*counts), 5)
    assert [len(episode) for episode in episodes] == list(counts[:taken])


@pytest.mark.parametrize("counts", [(0, 0), (3, 0)])
def test_a_sample_without_steps(counts):
    with pytest.raises(RunnerError, match=rf"found: +{counts[0]}, and a sample without any"):
        sample_train_batch(Gives(*counts), 5)
