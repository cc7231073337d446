"""Pieces about rewards."""

from benchmarks.piece_facts.facts import Bare, Facts


def summed(rewards, counts):
    """`np.cumsum` of each episode's rewards, joined."""
    import numpy as np

    return np.concatenate([np.cumsum(own) for own in np.split(rewards, np.cumsum(counts)[:-1])])


def normalised(rewards):
    """`rewards` divided by their deviation, and clipped to 10."""
    import numpy as np

    return np.clip(rewards / np.sqrt(np.var(rewards, ddof=1) + 1e-8), -10, 10)


def counted(rewards, obs):
    """`rewards` plus 1 / the number of each row's visit, by `np.unique` of rows as bytes and a sort."""
    import numpy as np

    rows = np.ascontiguousarray(obs).view(np.dtype((np.void, obs[0].nbytes)))[:, 0]
    _, inverse, numbers = np.unique(rows, return_inverse=True, return_counts=True)
    rank = np.empty(len(rows), np.int64)
    rank[np.argsort(inverse, kind="stable")] = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    return rewards + 1 / (rank + 1)


FACTS: dict[str, Facts] = {
    "count_based_reward": Facts(Bare(counted, gives="rewards", close=1e-9)),
    "kl_reward": Facts("it runs a network; its own part is the divergence of two distributions"),
    "normalize_reward": Facts(Bare(normalised, {"gamma": None}, close=1e-6)),
    "binarize_reward": Facts(Bare("(rewards != 0).astype(rewards.dtype)")),
    "linearise_rewards": Facts("it needs vectors of rewards, `rewards @ weights`, which the sample does not have"),
    "reward_clipping": Facts(Bare("rewards.clip(-1.0, 1.0)")),
    "reward_scaling": Facts(Bare("rewards * 0.1", {"scale": 0.1})),
    "reward_sum": Facts(Bare(summed, gives="episode_return", close=1e-9)),
    "reward_sign": Facts(Bare("np.sign(rewards)")),
    "target_return": Facts("it puts one number beside each newest observation, from what recorders know"),
}
