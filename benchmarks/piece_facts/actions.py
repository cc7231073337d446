"""Pieces about actions."""

from benchmarks.piece_facts.facts import Facts

FACTS: dict[str, Facts] = {}
