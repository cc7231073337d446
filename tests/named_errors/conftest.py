"""What every row of the tables of mistakes is held to.

A table's row says which mistake: the error's class, a function that makes the mistake (of an empty folder, if
it takes one), and words that the message must have, so that it names the place and the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epibatch.core.errors import (
    EpisodeStateError,
    LoggerError,
    LookbackError,
    MissingExtraError,
    NonFiniteLossError,
    NotAvailableError,
    PieceError,
    RunnerArgumentError,
    RunnerError,
    StorageError,
    UnknownNameError,
)

BUILT_INS: dict[type[Exception], type[Exception]] = {
    EpisodeStateError: AssertionError,
    LoggerError: RuntimeError,
    LookbackError: IndexError,
    MissingExtraError: ImportError,
    NonFiniteLossError: FloatingPointError,
    NotAvailableError: NotImplementedError,
    PieceError: TypeError,
    RunnerArgumentError: AssertionError,
    RunnerError: RuntimeError,
    StorageError: OSError,
    UnknownNameError: KeyError,
}
"""Which built-in exception catches an error; those that are left out are ValueErrors."""


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any, Any], None]:
    """Make a mistake and read the message: where, what was expected, what was found, what to do."""

    monkeypatch.chdir(tmp_path)

    def check(error: type[Exception], mistake: Callable[..., Any], words: list[str]) -> None:
        with pytest.raises(error) as caught:
            mistake(*[tmp_path][: mistake.__code__.co_argcount])  # type: ignore[attr-defined]
        message = str(caught.value)
        assert isinstance(caught.value, BUILT_INS.get(error, ValueError))
        assert [word for word in words if word not in message] == [], message
        assert [part for part in ("expected: ", "found:", "do:  ") if part not in message] == [], message
        assert "mend it" not in message and len(message) < 2000, message

    return check
