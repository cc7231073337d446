"""The interface of what train batches come from: runners, recorded episodes, or a source of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from epibatch.core.errors import ConfigError


class Source(Protocol):
    """A source of the episodes that `Algorithm.training_step` learns from.

    Attributes:
        is_late: True if steps of the newest batch acted with weights of before the last update.
    """

    is_late: bool

    def sample(self) -> Sequence[Any]:
        """Return the episodes, or chunks, of one train batch; none to learn nothing this time."""

    def sample_ahead(self) -> None:
        """Begin to prepare the next batch; does not wait for it."""

    def forget(self) -> None:
        """Drop what was prepared for a batch that was not returned yet."""


@runtime_checkable
class DrawnSource(Source, Protocol):
    """A source that draws its batches from a larger set, such as a replay buffer, by what was learned before.

    Attributes:
        num_env_steps: environment steps that were sampled for the newest batch.
    """

    num_env_steps: int

    def learned(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the update rule gave for each row of the newest batch: module id -> name -> tensor [rows]."""


@runtime_checkable
class StatefulSource(Source, Protocol):
    """A source with a state, which checkpoints contain."""

    def get_state(self) -> Mapping[str, Any]:
        """Return the state, as arrays, numbers and strings in mappings."""

    def set_state(self, state: Any) -> None:
        """Continue as the source did whose state it is."""


@runtime_checkable
class ReportingSource(Source, Protocol):
    """A source that adds to the results of `Algorithm.train`."""

    def get_metrics(self) -> Mapping[str, Any]:
        """Return what happened since the last call, by name of the result."""


_EVERY = ("sample", "sample_ahead", "forget", "is_late")
_OF_DRAWS = ("num_env_steps", "learned")
_OF_STATES = ("get_state", "set_state")


def check_source(config: Any, source: Any) -> None:
    """Make sure that a source can be used.

    Raises:
        ConfigError: it lacks a method or attribute.
    """
    where = f"{type(config).__name__}.make_source"
    names = list(_EVERY)
    for pair in (_OF_DRAWS, _OF_STATES):  # one without the other
        names += pair if any(hasattr(source, name) for name in pair) else ()
    missing = [name for name in names if not hasattr(source, name)]
    if missing:
        found = f"{type(source).__name__} without {', '.join(missing)}"
        do = f"add them: {', '.join(names)}; methods may do nothing"
        raise ConfigError(where, expected="a source", found=found, do=do)
