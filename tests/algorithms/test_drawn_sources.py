"""Sources that draw from a larger set: when they learn, what is counted, and the values of rows that they get."""

from __future__ import annotations

import torch

from epibatch.algorithms import AlgorithmConfig, TrainingSettings, register_algorithm
from epibatch.learner import Losses, UpdateRule


class SumRule(UpdateRule):
    """Gives back the sum of each row's observation."""

    row_outputs = ("sum",)

    def losses(self, batch, module, own, coefficients):
        rows = batch["obs"].sum(-1)
        return Losses({"total": module.forward_train(batch)["action_dist_inputs"].square().mean()}, {}, {"sum": rows})


class Remembered:
    """Every second time it draws the same steps twice each, of all that were sampled."""

    is_late = False

    def __init__(self, group):
        self.group, self.chunks, self.calls = group, [], 0
        self.drawn, self.heard, self.num_env_steps = [], [], 0

    def sample(self):
        fresh = list(self.group.sample(num_timesteps=10))
        self.chunks += fresh
        self.num_env_steps = sum(map(len, fresh))
        self.calls += 1
        newest = self.chunks[-1]
        self.drawn = [newest[0:1], newest[0:1], self.chunks[0][0:1]] if self.calls % 2 == 0 else []
        return self.drawn

    def learned(self, rows):
        self.heard.append(rows)

    def sample_ahead(self):
        """Prepare nothing."""

    def forget(self):
        """Forget nothing."""


@register_algorithm("remembering")
class RememberingConfig(AlgorithmConfig):
    """Learns from what `Remembered` draws."""

    training_model, rule = TrainingSettings, SumRule

    def make_source(self, env_runner_group):
        self.__dict__["source"] = Remembered(env_runner_group)
        return self.__dict__["source"]


def built(**options):
    config = RememberingConfig().environment("CartPole-v1").debugging(seed=0)
    return config.training(minibatch_size=2, **options).build_algo()


def test_it_may_return_nothing_to_learn_from():
    algo = built()
    source = algo.config.__dict__["source"]
    weights = [parameter.clone() for parameter in algo.get_module().parameters()]
    results = algo.train()
    assert not results["learners"] and results["num_env_steps_sampled_lifetime"] == 10 and not source.heard
    assert all(torch.equal(one, other) for one, other in zip(weights, algo.get_module().parameters()))
    results = algo.train()
    assert results["learners"]["default_policy"]["num_rows"] == 3
    assert results["num_env_steps_sampled_lifetime"] == 20, "of which three rows were drawn"
    assert results["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"] == 20, "what schedules count"
    algo.stop()


def test_values_of_rows_come_in_the_order_of_what_was_drawn():
    algo = built()
    source = algo.config.__dict__["source"]
    for _ in range(2):
        algo.train()
    sums = [float(chunk.get_observations(0).sum()) for chunk in source.drawn]
    torch.testing.assert_close(source.heard[-1]["default_policy"]["sum"], torch.tensor(sums))
    algo.stop()


def test_an_iteration_lasts_as_long_as_its_algorithm_wants():
    class Long(RememberingConfig):
        """Iterations of 45 steps at least."""

        min_env_steps_per_iteration = 45

    algo = Long().environment("CartPole-v1").debugging(seed=0).build_algo()
    results = algo.train()
    assert results["num_env_steps_sampled_lifetime"] == 50 and results["training_iteration"] == 1
    assert results["learners"]["default_policy"]["num_rows"] == 3 and set(results["timers"]) == {"sample", "learn"}
    assert results["learners"]["__all_modules__"]["num_updates"] == 2
    algo.stop()
