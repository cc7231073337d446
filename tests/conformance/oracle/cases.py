"""How many random cases a property runs, and what was counted while they ran.

`EPIBATCH_CASES` sets the number of cases per property. Without it there are 40 and they are the same in every run;
with it they are drawn anew, and a failing one prints what reproduces it.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

CASES = int(os.environ.get("EPIBATCH_CASES", "40"))
SETTINGS = settings(
    max_examples=CASES,
    derandomize="EPIBATCH_CASES" not in os.environ,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

cases_run: Counter[str] = Counter()
"""Random cases per property (node id of its test)."""

differences_met: Counter[str] = Counter()
"""How often each listed difference explained a mismatch."""


def random_cases(**strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test a property: it runs with `CASES` drawn values of its arguments, which are counted.

    Args:
        **strategies: argument name -> Hypothesis strategy; arguments without one stay pytest's.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def counted(*arguments: Any, **keywords: Any) -> None:
            cases_run[os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]] += 1
            test(*arguments, **keywords)

        return SETTINGS(given(**strategies)(counted))

    return decorate
