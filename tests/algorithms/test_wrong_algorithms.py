"""Algorithms that cannot work are refused when they are built, with the module that it is about."""

from __future__ import annotations

import pytest
import torch

from epibatch.algorithms import AlgorithmConfig, PPOConfig, config_class, register_algorithm
from epibatch.core.errors import ConfigError, EpibatchError
from epibatch.core.rl_module import QValueAPI
from epibatch.env_runner import make_multi_agent
from epibatch.learner import Group, Losses, UpdateRule


class Values(UpdateRule):
    """Moves the mean value; subclasses make one mistake."""

    def losses(self, batch, module, own, coefficients):
        return Losses({"total": module.compute_values(batch).mean()})


class NeedsQValues(Values):
    needs = (QValueAPI,)


class MissingPart(Values):
    def groups(self, module, own):
        return {"total": Group(module.critic)}


class MissingTarget(Values):
    def make_own(self, module):
        return module.critic


class Twice(Values):
    def groups(self, module, own):
        return {"total": Group(module), "value": Group(module.vf)}


class Nowhere(Values):
    def groups(self, module, own):
        return {"total": Group(module.vf)}


class Foreign(Values):
    def groups(self, module, own):
        return {"total": Group(module, torch.nn.Linear(1, 1))}


@register_algorithm("with_mistakes")
class MistakesConfig(AlgorithmConfig):
    """Learns by the rule that a test gives it."""


@register_algorithm("offline_with_mistakes")
class OfflineConfig(AlgorithmConfig):
    """Learns from recorded episodes only."""

    rule, offline = Values, True


IN_ONE_GROUP = "each trainable parameter of the module"
RULES = [
    (NeedsQValues, "a module with the methods of QValueAPI", "none, in DefaultActorCritic", "inherit QValueAPI"),
    (MissingPart, "the parts of a module that make_own and groups of MissingPart name", "'critic'", "these parts"),
    (MissingTarget, "the parts of a module that make_own and groups of MissingTarget name", "'critic'", "these parts"),
    (Twice, IN_ONE_GROUP, "vf.0.weight in total and value", "let one loss move what several share"),
    (Nowhere, IN_ONE_GROUP, "pi.net.0.weight in none", "requires_grad_(False) on what none moves"),
    (Foreign, IN_ONE_GROUP, "a parameter of another module", ""),
]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("rule", "expected", "found", "do"), RULES, ids=[each[0].__name__ for each in RULES])
def test_rules_that_do_not_fit_a_module_are_refused_with_its_id(rule, expected, found, do, several, monkeypatch):
    monkeypatch.setattr(MistakesConfig, "rule", rule)
    config, module_id = MistakesConfig().environment("CartPole-v1"), "default_policy"
    if several:
        module_id = "red"
        config.environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
        config.multi_agent(policies=["red", "blue"], policy_mapping_fn={"0": "red", "1": "blue"})
    with pytest.raises(ConfigError) as raised:
        config.build_algo()
    error = raised.value
    assert expected in error.expected and found in error.found and do in error.do and error.where
    assert f"module {module_id!r}" in str(error)


@pytest.mark.parametrize(
    ("build", "where", "expected", "found", "do"),
    [
        (OfflineConfig().build_algo, "OfflineConfig.build_algo", "recorded episodes", "none", ".offline_data(input_="),
        (
            OfflineConfig().environment("CartPole-v1").build_algo,
            "OfflineConfig.build_algo",
            "recorded episodes",
            "none",
            ".offline_data(input_=",
        ),
        (PPOConfig().build_algo, "PPOConfig.build_algo", "an environment", "none", '.environment("CartPole-v1")'),
        (
            AlgorithmConfig().environment("CartPole-v1").build_algo,
            "AlgorithmConfig.build_algo",
            "the config of an algorithm",
            "the general config",
            "@register_algorithm",
        ),
        (
            lambda: config_class("offline_with_mistake"),
            "algorithm 'offline_with_mistake'",
            "a known algorithm",
            "no algorithm that is installed",
            "did you mean 'offline_with_mistakes'",
        ),
        (
            lambda: config_class("no_such_module:Config"),
            "algorithm 'no_such_module:Config'",
            "a known algorithm",
            "an import path, which runs code when it is loaded",
            "allow_imports=True",
        ),
    ],
)
def test_algorithms_that_are_not_there_or_learn_from_nothing(build, where, expected, found, do):
    with pytest.raises(EpibatchError) as raised:
        build()
    error = raised.value
    assert (error.where, error.expected, error.found) == (where, expected, found) and do in error.do
