"""Random programs of several operations on the same episode of both libraries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from epibatch.episodes import SingleAgentEpisode
from oracle.cases import SETTINGS, random_cases
from oracle.programs import Machine, programs
from oracle.twin_episodes import Case, cases


@random_cases(case=cases(length=3), program=programs)
def test_programs(case: Case, program: list[tuple[Any, ...]]) -> None:
    Machine(case).run(program)


@pytest.mark.slow
def test_a_planted_fault_is_found_and_shrunk_to_a_short_program(monkeypatch):
    """A cut that keeps one step of lookback too few fails in the end with nothing but a cut."""
    cut = SingleAgentEpisode.cut
    monkeypatch.setattr(
        SingleAgentEpisode, "cut", lambda self, len_lookback_buffer: cut(self, max(len_lookback_buffer - 1, 0))
    )
    failing: list[list[tuple[Any, ...]]] = []

    @settings(SETTINGS, max_examples=1000, print_blob=False, report_multiple_bugs=False)
    @given(case=cases(length=3), program=programs)
    def find(case: Case, program: list[tuple[Any, ...]]) -> None:
        try:
            Machine(case).run(program)
        except AssertionError:
            failing.append(program)
            raise

    with pytest.raises(AssertionError, match="not listed"):
        find()
    assert max(map(len, failing)) > 3
    assert len(failing[-1]) == 1 and failing[-1][0][0] in ("cut", "cut and join")
