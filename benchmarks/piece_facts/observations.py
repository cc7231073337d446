"""Pieces about observations."""

from benchmarks.piece_facts.facts import Bare, Facts


def goal_distances(episodes):
    """For each episode the distances of its observations to the goal, each less the next, joined."""
    import numpy as np

    out = []
    for own in episodes:
        distances = np.linalg.norm(own.obs - np.float32(0.5), axis=1)
        out.append(distances[:-1] - distances[1:])
    return np.concatenate(out)


def maxima(episodes):
    """For each episode `np.maximum` of its observations and those before them, joined."""
    import numpy as np

    return np.concatenate([np.concatenate([own.obs[:1], np.maximum(own.obs[1:-1], own.obs[:-2])]) for own in episodes])


FACTS: dict[str, Facts] = {
    "affine": Facts(
        Bare("(obs - np.float32(1.0)) / np.float32(2.0)", {"loc": 1.0, "scale": 2.0, "standard_form": True}),
    ),
    "clip": Facts(Bare("obs.clip(np.float32(-1.0), np.float32(1.0))", {"low": -1.0, "high": 1.0})),
    "count_steps": Facts(
        Bare("np.concatenate([np.arange(count) for count in counts])", gives="t"),
    ),
    "flatten_axes": Facts("it shows the same memory in another shape, which takes no time"),
    "frozen_module": Facts("a network's own time"),
    "goal_distance_rewards": Facts(Bare(goal_distances, {"goal": [0.5] * 16}, gives="rewards", close=1e-5)),
    "mark_first_steps": Facts(
        Bare("np.concatenate([np.arange(count) for count in counts]) == 0", gives="is_first"),
    ),
    "time_max_pool": Facts(Bare(maxima, {"as_learner_connector": True}, gives="obs", observations="frame")),
}
