"""Pieces that come with the ways to write pieces."""

from benchmarks.piece_facts.facts import Facts

FACTS = {
    "undo": Facts("it applies the inverse of another piece"),
}
