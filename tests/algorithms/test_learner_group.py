from __future__ import annotations

from epibatch.algorithms import PPOConfig


def test_the_group_is_the_learner():
    algorithm = PPOConfig().environment("CartPole-v1").build_algo()
    assert algorithm.learner_group.foreach_learner(lambda learner: learner) == [algorithm.learner]
    assert algorithm.learner_group.is_local
    algorithm.stop()
