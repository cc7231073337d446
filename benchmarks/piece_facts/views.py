"""Pieces about other times and agents."""

from benchmarks.piece_facts.facts import Facts

FACTS: dict[str, Facts] = {}
