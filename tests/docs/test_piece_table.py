"""docs/piece-table.md is what the code, the facts about pieces and the saved figures give, and no piece is left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.piece_facts import facts_by_room
from benchmarks.piece_page import FIGURES, PAGE, page, room_of

from epibatch.core.piece_names import BUILT_IN_PIECES

HOW = "run `python -m benchmarks.pieces --page` (a new piece's figures: `--only PIECE`) and commit what it writes"


def test_the_page_is_in_step_with_the_code():
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(FIGURES.read_text(encoding="utf-8"))), HOW


def test_every_piece_has_facts_in_the_file_of_its_room():
    rooms = {name: room_of(path) for name, path in BUILT_IN_PIECES.items()}
    said = {name: room for room, facts in facts_by_room().items() for name in facts}
    missing = {f"benchmarks/piece_facts/{rooms[name]}.py: {name}" for name in rooms.keys() - said.keys()}
    assert missing == set(), "add a line with the bare expression, or with why there is none"
    assert said == rooms
    assert sum(map(len, facts_by_room().values())) == len(said)
