"""Names of columns, and what they are called elsewhere."""

from __future__ import annotations

import pytest

from epibatch.core.columns import Columns, column_meant, nearest_column


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("observations", "obs"),
        ("next_obs", "new_obs"),
        ("reward", "rewards"),
        ("dones", "terminateds"),
        ("values", "vf_preds"),
        ("obs", "obs"),
        ("mine", "mine"),
    ],
)
def test_what_a_name_means(name, meant):
    assert column_meant(name) == meant


def test_no_column_of_ours_means_another():
    own = [name for key, name in vars(Columns).items() if key.isupper()]
    assert [column_meant(name) for name in own] == own


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("observations", ["actions", "obs"], "did you mean 'obs'? Known: actions, obs"),
        ("action", ["actions", "obs"], "did you mean 'actions'? Known: actions, obs"),
        ("observations", ["observation"], "did you mean 'observation'? Known: observation"),
        ("reward", ["obs"], "Known: obs"),
        ("obs", [], "Known: none"),
    ],
)
def test_the_nearest_column(name, known, said):
    assert nearest_column(name, known) == said
