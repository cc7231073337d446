"""What every planted fault is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from epibatch.core.errors import PieceCheckError
from epibatch.testing import check_connector


@pytest.fixture
def found_by_name() -> Callable[[Any, Any, set[str]], None]:
    """Check a piece, and see that these checks and no others found fault with it, and said what and where."""

    def check(piece: Any, how: Any, names: set[str]) -> None:
        with pytest.raises(PieceCheckError) as caught:
            check_connector(piece, **how)
        assert set(caught.value.report.failed) == names
        for result in caught.value.report:
            for fault in result.faults:
                assert fault.where and fault.expected and fault.found and fault.do
                assert f"- {result.check}" in str(caught.value)

    return check
