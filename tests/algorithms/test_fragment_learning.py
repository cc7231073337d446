"""IMPALA and APPO learn; slow."""

from __future__ import annotations

import pytest

from epibatch.algorithms import APPOConfig, IMPALAConfig
from fixture_configs import best_return, pole_of_fragments


@pytest.mark.slow
@pytest.mark.parametrize("kind", [IMPALAConfig, APPOConfig])
def test_the_pole_is_balanced(kind):
    best = []
    for seed in range(3):
        best.append(best_return(pole_of_fragments(kind, seed), 150_000, 475, iterations=5))
        if best[-1] >= 475:
            break
    assert max(best) >= 475, best
