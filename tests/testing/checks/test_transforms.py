"""Planted faults in transforms of columns that look at more than a row: they are found by name."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors.authoring import ColumnTransform


class CentersRewards(ColumnTransform):
    columns = "rewards"
    pipelines = ("learner",)

    def transform(self, x):
        return x - x.mean()


class SumsRewards(CentersRewards):
    def transform(self, x):
        return np.cumsum(x).astype(x.dtype)


@pytest.mark.parametrize("piece", [CentersRewards, SumsRewards])
def test_planted_faults_are_found_by_name(piece, found_by_name):
    found_by_name(piece, {}, {"row_by_row"})
