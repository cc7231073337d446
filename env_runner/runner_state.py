"""The state of a runner between its calls and steps."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

EpisodeT = TypeVar("EpisodeT")


class Running(enum.Enum):
    """State of the running episodes.

    Attributes:
        NONE: There are none; the next call resets the environments.
        WHOLE: They run since their resets, and no part of them was returned.
        CUT: Earlier calls returned parts of them.
    """

    NONE = "none"
    WHOLE = "whole"
    CUT = "cut"


@dataclass
class Pending:
    """The newest observations as the module gets them, and decisions about the step that follows.

    Attributes:
        batch: The output of the env-to-module pipeline.
        shared: The data that this call shares with that of the module-to-env pipeline.
        envs: The environments of the call; None: all.
        edits: Number of edits of the env-to-module pipeline before it.
        chosen: Actions of environments that were not stepped since they were chosen; None: none.
        skips: bool [N], environments that pieces asked to skip and that were not left out yet; None: none.
        conditions: Of environments that are asked at each step: function of episodes whose environments skip it.
        skipped: Number of vector steps in a row that these have made all environments skip.
    """

    batch: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    envs: list[int] | None = None
    edits: int = 0
    chosen: Any = None
    skips: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    conditions: dict[int, Callable[[list[Any]], Any]] = field(default_factory=dict)
    skipped: int = 0


@dataclass
class ActingPolicy:
    """The policy that the newest step was taken with.

    Attributes:
        weights_seq_no: Number of updates of the module's weights.
        num_edits: Number of edits of the two pipelines that were followed by a step.
        edits: Edits of each pipeline before that step; None before the first step.
        is_random: True if it acts at random instead of with the module.
    """

    weights_seq_no: int = 0
    num_edits: int = 0
    edits: tuple[int, int] | None = None
    is_random: bool = False

    @property
    def version(self) -> int:
        """The `weights_seq_no` of a step: the number of weight updates and pipeline edits before it."""
        return self.weights_seq_no + self.num_edits

    def edited(self, edits: tuple[int, int]) -> None:
        """Note that the next step follows another number of edits of the pipelines."""
        self.num_edits += self.edits is not None
        self.edits = edits


@dataclass
class CarriedOver(Generic[EpisodeT]):
    """Ended episodes that no call has returned yet.

    Attributes:
        episodes: The episodes.
        of_failure: True if a call failed; the next one returns them. Else `sample(num_episodes=...)` did not need them,
            and the next call of that kind does.
        partial: Ids of episodes that were returned in parts, and still run or ended last.
    """

    episodes: Sequence[EpisodeT] = ()
    of_failure: bool = False
    partial: set[str] = field(default_factory=set)
