"""Pieces of the env-to-module side."""

from benchmarks.piece_facts.facts import Bare, Facts

AGENTS = "it is about several agents at once"


def normalised(newest):
    """Mean and deviation of the rows, merged by Chan's formula; the rows shifted, scaled and clipped to 10."""
    import numpy as np

    rows = newest.astype(np.float64)
    mean = rows.mean(0)
    squares = np.square(rows - mean).sum(0)
    deviation = np.sqrt(squares / (len(rows) - 1))
    return np.clip((rows - mean) / (deviation + 1e-8), -10, 10).astype(np.float32)


FACTS = {
    "agent_indicator": Facts(AGENTS),
    "mean_std_filter": Facts(Bare(normalised, close=1e-5)),
    "pad_actions": Facts(AGENTS),
    "pad_observations": Facts(AGENTS),
    "prev_actions_prev_rewards": Facts("it joins the newest rows of three columns; the learner's twin is timed"),
    "write_observations_to_episodes": Facts("it moves rows into episodes, and computes nothing"),
}
