"""The porting shims: every decorator returns what it decorates, bare and with arguments."""

from __future__ import annotations

import pytest

from epibatch.core import typing as shims

NAMES = ["PublicAPI", "DeveloperAPI", "OverrideToImplementCustomLogic"]


class Thing:
    pass


@pytest.mark.parametrize("name", [*NAMES, "OverrideToImplementCustomLogic_CallToSuperRecommended"])
@pytest.mark.parametrize("target", [len, Thing, property(len), staticmethod(len)], ids=lambda x: type(x).__name__)
def test_decorators_return_what_they_decorate(name, target):
    decorator = getattr(shims, name)
    assert decorator(target) is decorator()(target) is decorator(stability="alpha")(target) is target
    assert shims.override(Thing)(target) is target and (target is Thing or shims.override(target) is target)


def test_aliases_can_annotate():
    for name in ("AgentID", "EpisodeType", "TensorType", "DeviceType", "ModuleID", "StateDict", "ResultDict"):
        assert list[getattr(shims, name)].__args__
