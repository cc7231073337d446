"""The porting shims: every decorator returns what it decorates, bare and with arguments."""

from __future__ import annotations

import typing

import pytest

from epibatch.core import typing as shims

DECORATORS = [
    shims.PublicAPI,
    shims.DeveloperAPI,
    shims.OverrideToImplementCustomLogic,
    shims.OverrideToImplementCustomLogic_CallToSuperRecommended,
]


def double(x: int) -> int:
    return 2 * x


class Thing:
    pass


@pytest.mark.parametrize("decorator", DECORATORS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("target", [double, Thing], ids=["function", "class"])
def test_decorators_are_identities(decorator, target):
    assert decorator(target) is target
    assert decorator()(target) is target
    assert decorator(stability="alpha")(target) is target


@pytest.mark.parametrize(
    "target", [double, property(double), staticmethod(double)], ids=["function", "property", "static"]
)
def test_override_is_an_identity(target):
    assert shims.override(Thing)(target) is target
    assert shims.override(target) is target


def test_decorators_stack_in_a_ported_class():
    @shims.PublicAPI(stability="alpha")
    class Ported(Thing):
        @property
        @shims.override(Thing)
        def size(self) -> int:
            return 3

        @shims.override(Thing)
        @shims.OverrideToImplementCustomLogic
        def build(self, episodes: list[shims.EpisodeType]) -> shims.StateDict:
            return {"count": len(episodes)}

    assert Ported().size == 3
    assert Ported().build([1, 2]) == {"count": 2}


@pytest.mark.parametrize(
    ("alias", "meaning"),
    [
        ("AgentID", typing.Any),
        ("EpisodeType", typing.Any),
        ("TensorType", typing.Any),
        ("DeviceType", typing.Any),
        ("ModuleID", str),
        ("StateDict", dict[str, typing.Any]),
        ("ResultDict", dict[str, typing.Any]),
    ],
)
def test_aliases_can_annotate(alias, meaning):
    assert getattr(shims, alias) == meaning
    assert list[getattr(shims, alias)].__args__ == (meaning,)
