"""What environments that raise, die and hang did is what the runner returned: `make faults` in short."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import faults

from epibatch.episodes import SingleAgentEpisode


@pytest.mark.slow
def test_nothing_is_lost_or_returned_twice():
    runs = [
        faults.Run(agents, "raise", where, every, 4, mode)
        for agents, mode in ((1, "same_step"), (2, None))
        for where, every in (("step", 7), ("reset", 3))
    ]
    runs += [
        faults.Run(2, "kill", "step", 40, 2, failures=1, steps=100),  # an episode of 12 steps ends in it
        faults.Run(1, "hang", "reset", 4, 1, failures=1, steps=13),
        *(faults.Run(agents, "outside", "", 1, 4, failures=4, per_process=2) for agents in (1, 2)),
        faults.Run(1, "raise", "step", 1, 1),
    ]
    lines = [line.strip("| ").split(" | ") for line in faults.table(runs).splitlines()]
    names, figures = lines[0][2:], np.array([line[2:] for line in lines[2:]]).T
    counts = {name: [int(text.replace(",", "")) for text in column] for name, column in zip(names, figures)}
    assert len(lines) == 2 + 8
    for name in ("unreturned", "lost", "differing"):
        assert not any(counts[name]), (name, lines)
    assert all(counts["failures"]) and all(counts["finished"]) and all(counts["steps"])
    assert sum(counts["refused"]) == 4  # if every step fails, every call ends with an error


@pytest.mark.parametrize(
    ("change", "lost", "differing"),
    [
        (lambda chunks: None, 0, 0),
        (lambda chunks: chunks.pop(), 1, 1),
        (lambda chunks: chunks.append(chunks[0]), 0, 2),
        (lambda chunks: chunks[0].set_rewards(new_data=9.0, at_indices=0), 1, 2),
        (lambda chunks: setattr(chunks[1], "is_terminated", False), 1, 0),
    ],
)
def test_a_step_that_is_missing_or_wrong_is_found(change, lost, differing):
    rows = np.array([[1.0, 1, 1, t] for t in range(4)])
    log = np.array([[*row, 0.5 * t, 0.0, t == 3] for t, row in enumerate(rows)])[1:]
    chunks = [
        SingleAgentEpisode(
            observations=rows[start : stop + 1],
            actions=[0] * (stop - start),
            rewards=log[start:stop, 4],
            t_started=start,
            terminated=stop == 3,
            len_lookback_buffer=0,
        )
        for start, stop in ((0, 2), (2, 3))
    ]
    change(chunks)
    assert faults.compare(log, chunks, 1, False) == (1, lost, 3, differing)
