"""Pieces about rewards."""

from benchmarks.piece_facts.facts import Bare, Facts


def summed(rewards, counts):
    """`np.cumsum` of each episode's rewards, joined."""
    import numpy as np

    return np.concatenate([np.cumsum(own) for own in np.split(rewards, np.cumsum(counts)[:-1])])


FACTS: dict[str, Facts] = {
    "binarize_reward": Facts(Bare("(rewards != 0).astype(rewards.dtype)"), torchrl="BinarizeReward"),
    "linearise_rewards": Facts(
        "it needs vectors of rewards, `rewards @ weights`, which the sample does not have", torchrl="LineariseRewards"
    ),
    "reward_clipping": Facts(Bare("rewards.clip(-1.0, 1.0)"), torchrl="RewardClipping"),
    "reward_scaling": Facts(Bare("rewards * 0.1", {"scale": 0.1}), torchrl="RewardScaling"),
    "reward_sum": Facts(Bare(summed, gives="episode_return", close=1e-9), torchrl="RewardSum"),
    "reward_sign": Facts(Bare("np.sign(rewards)"), torchrl="SignTransform"),
    "target_return": Facts(
        "it puts one number beside each newest observation, from what recorders know", torchrl="TargetReturn"
    ),
}
