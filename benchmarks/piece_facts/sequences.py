"""Pieces about sequences."""

from benchmarks.piece_facts.facts import Facts

FACTS: dict[str, Facts] = {
    "burn_in": Facts("it runs the module on the first steps of sequences"),
    "jagged_sequences": Facts("it takes rows of padded sequences ([figures](sequences.md#what-it-costs))"),
    "pack_sequences": Facts("it takes rows of padded sequences ([figures](sequences.md#what-it-costs))"),
    "random_subsequences": Facts("it draws one number per chunk"),
}
