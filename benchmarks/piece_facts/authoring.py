"""Pieces that come with the ways to write pieces."""

from benchmarks.piece_facts.facts import Facts

FACTS: dict[str, Facts] = {}
