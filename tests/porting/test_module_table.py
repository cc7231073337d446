from __future__ import annotations

import importlib
import importlib.util

import pytest

from epibatch.porting.module_table import MOVED_NAMES, RULES, module_here

TO_COME = {"epibatch.episodes.replay"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.theirs)
def test_modules_are_there_or_known_to_be_to_come(rule):
    module = rule.ours.removesuffix(".*")
    assert (importlib.util.find_spec(module) is None) == (module in TO_COME), module


def test_what_is_to_come_is_in_the_table():
    assert {rule.ours for rule in RULES} >= TO_COME


def test_moved_names_are_where_the_table_says():
    for module, name in MOVED_NAMES.values():
        assert hasattr(importlib.import_module(module), name), (module, name)


def test_no_rule_hides_behind_another():
    for rule in RULES:
        ours = rule.ours.removesuffix(".*")
        assert module_here(rule.theirs.removesuffix(".*")) == ours
        below = f"{rule.theirs.removesuffix('.*')}.some.leaf"
        if rule.theirs.endswith(".*"):
            assert module_here(below) == (f"{ours}.some.leaf" if rule.ours.endswith(".*") else ours)


@pytest.mark.parametrize(
    "stranger",
    ["ray", "ray.rllib", "ray.rllib.policy", "ray.rllib.corex", "ray.rllib.core.columns.x", "ray.tune", "os", "rayx"],
)
def test_modules_that_no_rule_speaks_of(stranger):
    assert module_here(stranger) is None
