"""docs/piece-table.md is what the code, the facts about pieces and the saved figures give, and facts are of pieces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.piece_facts import facts_by_room
from benchmarks.piece_page import FIGURES, PAGE, page, piece_names, room_of

from epibatch.core.registry import built_in_pieces

HOW = "run `make generated` and commit what it writes"


def test_the_page_is_in_step_with_the_code():
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(FIGURES.read_text(encoding="utf-8"))), HOW


def test_facts_are_of_pieces_and_in_the_file_of_their_room():
    rooms = {name: room_of(built_in_pieces()[name]) for name in piece_names()}
    said = {name: room for room, facts in facts_by_room().items() for name in facts}
    assert said.items() <= rooms.items()
    assert sum(map(len, facts_by_room().values())) == len(said)
