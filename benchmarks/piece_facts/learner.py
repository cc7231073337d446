"""Pieces of the learner side."""

from benchmarks.piece_facts.facts import Bare, Facts


def returns_to_go(episodes):
    """For each episode `scipy.signal.lfilter` over its rewards backwards, joined."""
    import numpy as np
    from scipy.signal import lfilter

    return np.concatenate([lfilter([1.0], [1.0, -0.99], own.steps["rewards"][::-1])[::-1] for own in episodes])


FACTS = {
    "add_columns_from_episodes_to_train_batch": Facts(
        "it moves rows and computes nothing; timed with its pipeline ([L1](../benchmarks/README.md))",
    ),
    "add_infos_from_episodes_to_train_batch": Facts("infos are dicts, and no arrays"),
    "add_next_observations_from_episodes_to_train_batch": Facts(
        Bare("np.concatenate([own.obs[1:] for own in episodes])", gives="new_obs"),
    ),
    "add_one_ts_to_episodes_and_truncate": Facts(
        "it decides how many rows later pieces make ([L5](../benchmarks/README.md))",
    ),
    "compute_returns_to_go": Facts(
        Bare(returns_to_go, {"gamma": 0.99}, gives="returns_to_go", close=1e-9),
    ),
    "general_advantage_estimation": Facts(
        "it needs a network's values; rows L5 and GAE time it ([Speed](../README.md))",
    ),
    "prev_actions_prev_rewards_learner": Facts("it joins the rows of three columns with those before them"),
}
