"""Pieces about columns of any kind."""

from benchmarks.piece_facts.facts import Facts

FACTS: dict[str, Facts] = {}
