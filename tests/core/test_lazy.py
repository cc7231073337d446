"""Names load on first use, and a wrong one is an AttributeError like any other."""

from __future__ import annotations

import pytest

import epibatch.connectors.learner
from epibatch.core.lazy import lazy_exports


def test_names_come_from_their_homes_relative_or_absolute():
    get, names = lazy_exports("epibatch.learner", {"PPOLoss": ".ppo_loss", "Columns": "epibatch.core.columns"})
    from epibatch.core.columns import Columns
    from epibatch.learner.ppo_loss import PPOLoss

    assert get("PPOLoss") is PPOLoss and get("Columns") is Columns
    assert {"PPOLoss", "Columns", "__name__"} <= set(names())


def test_a_package_offers_the_common_pieces_of_its_side():
    from epibatch.connectors.common import NumpyToTensor

    assert epibatch.connectors.learner.NumpyToTensor is NumpyToTensor
    assert "NumpyToTensor" in dir(epibatch.connectors.learner)


def test_an_unknown_name_is_an_attribute_error():
    get, _ = lazy_exports("epibatch.learner", {})
    with pytest.raises(AttributeError, match=r"module 'epibatch.learner' has no attribute 'Nope'"):
        get("Nope")
