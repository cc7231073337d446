"""The two ways of running pieces that tests compare, and outputs of a module."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fixture_pieces import Lab


@pytest.fixture(params=["columnar", "plain"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Every test runs both ways: pieces next to each other, and with undeclared pieces in between."""
    return Lab(request.param == "plain")


@pytest.fixture
def tensors() -> SimpleNamespace:
    """Logits that make the greedy actions of two environments 1 and 0, with and without a time axis."""
    logits = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
    return SimpleNamespace(logits=logits, recurrent=logits[:, None])
