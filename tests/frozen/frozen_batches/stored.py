"""All cases, and the file pair that says what their batches were."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .acting_cases import ActingCase
from .describing import Description
from .learner_cases import LearnerCase
from .team_acting_cases import TeamActingCase
from .team_learner_cases import TeamLearnerCase

KINDS: dict[str, tuple[Callable[[int], Any], int]] = {
    "learner": (LearnerCase, 90),
    "acting": (ActingCase, 45),
    "team-learner": (TeamLearnerCase, 45),
    "team-acting": (TeamActingCase, 45),
}
"""Class of a case, and how many of it there are."""
FOLDER = Path(__file__).parent.parent
LINES, VALUES = FOLDER / "batches.json", FOLDER / "batches.npz"

Stored = dict[str, tuple[list[str], np.ndarray[Any, Any]]]


def run(make: Callable[[int], Any], seed: int) -> Description:
    """Run one case."""
    description: Description = make(seed).run()
    return description


CASES = {f"{kind}-{seed}": partial(run, make, seed) for kind, (make, count) in KINDS.items() for seed in range(count)}


def values_of(description: Description) -> np.ndarray[Any, Any]:
    """Join all stored values of a case."""
    return np.concatenate([np.empty(0), *description.values])


def load() -> Stored:
    """Read what the batches were: lines and values by case."""
    cases = json.loads(LINES.read_text(encoding="utf-8"))
    ends = np.cumsum([case["values"] for case in cases.values()])
    parts = np.split(np.load(VALUES)["values"].astype(np.float64), ends[:-1])
    return {name: (case["lines"], part) for (name, case), part in zip(cases.items(), parts)}


def write() -> None:
    """Write what the batches are now."""
    found = {name: run() for name, run in CASES.items()}
    cases = {name: {"values": len(values_of(one)), "lines": one.lines} for name, one in found.items()}
    LINES.write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8", newline="\n")
    values = np.concatenate([values_of(one) for one in found.values()])
    np.savez_compressed(VALUES, values=values.astype(np.float32))
