"""The page of differences from RLlib as code: which mismatches it lists, and in exactly which situation.

A differential test asks here about every mismatch. An explanation belongs to a row of
`docs/differences-from-rllib.md` by the row's id; without that row it does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oracle.cases import differences_met

PAGE = Path(__file__).resolve().parents[3] / "docs" / "differences-from-rllib.md"
LISTED = frozenset(re.findall(r"^\| (?:`([\w-]+)`|(O\d+)) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
IDS = frozenset(slug or fault for slug, fault in LISTED)

Explanation = Callable[[Any, Any], bool]
_explanations: list[tuple[str, type, Explanation]] = []


def difference(identity: str, situation: type) -> Callable[[Explanation], Explanation]:
    """Register what a row of the page excuses.

    The function gets a situation and a `Mismatch` and says whether this is the row's situation and whether both
    sides give exactly what the row says they give.

    Args:
        identity: the row's id, such as `O19` or `greedy-logp`.
        situation: the class of situations it is about.
    """

    def register(explanation: Explanation) -> Explanation:
        _explanations.append((identity, situation, explanation))
        return explanation

    return register


def explanation_of(situation: Any, mismatch: Any) -> str | None:
    """The id of the listed difference that a mismatch is, or None."""
    for identity, kind, explains in _explanations:
        if identity in IDS and isinstance(situation, kind) and explains(situation, mismatch):
            differences_met[identity] += 1
            return identity
    return None


def registered() -> frozenset[str]:
    """The ids that have code here."""
    return frozenset(identity for identity, _, _ in _explanations)


def listed(identity: str) -> bool:
    """Whether the page has the row; if so, it is counted as met."""
    if identity in IDS:
        differences_met[identity] += 1
        return True
    return False
