"""Facts about pieces, a file per room of `epibatch.connectors`, each with a dict FACTS.

A piece is a line:

    "clip_rewards": Facts(Bare("np.clip(rewards, -1, 1)", {"limit": 1.0})),

or, where it computes nothing that one expression says, `Facts("why not")`. `make piece-table` measures and writes the
page.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from benchmarks.piece_facts.facts import Bare, Facts

__all__ = ["Bare", "Facts", "all_facts", "facts_by_room"]


def facts_by_room() -> dict[str, dict[str, Facts]]:
    """Room -> registered name -> facts."""
    rooms = sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name != "facts")
    return {room: import_module(f"{__name__}.{room}").FACTS for room in rooms}


def all_facts() -> dict[str, Facts]:
    """Registered name -> facts."""
    return {name: own for facts in facts_by_room().values() for name, own in facts.items()}
