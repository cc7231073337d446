"""Pieces about rewards."""

from benchmarks.piece_facts.facts import Bare, Facts

FACTS: dict[str, Facts] = {
    "binarize_reward": Facts(Bare("(rewards != 0).astype(rewards.dtype)"), torchrl="BinarizeReward"),
    "linearise_rewards": Facts(
        "it needs vectors of rewards, `rewards @ weights`, which the sample does not have", torchrl="LineariseRewards"
    ),
    "reward_clipping": Facts(Bare("rewards.clip(-1.0, 1.0)"), torchrl="RewardClipping"),
    "reward_scaling": Facts(Bare("rewards * 0.1", {"scale": 0.1}), torchrl="RewardScaling"),
    "reward_sign": Facts(Bare("np.sign(rewards)"), torchrl="SignTransform"),
}
