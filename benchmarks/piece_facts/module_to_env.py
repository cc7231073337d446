"""Pieces of the module-to-env side."""

from benchmarks.piece_facts.facts import Facts

WHOLE = "it moves rows and computes nothing; timed with its pipeline ([E1](../benchmarks/README.md))"

FACTS = {
    "cut_padded_actions": Facts("it is about several agents at once"),
    "get_actions": Facts("it draws from a network's distribution; timed with its pipeline (E1)"),
    "listify_data_for_vector_env": Facts(WHOLE),
    "module_to_agent_unmapping": Facts(WHOLE),
    "normalize_and_clip_actions": Facts("it needs actions of a module; timed with its pipeline (E1)"),
    "remove_single_ts_time_rank_from_batch": Facts(WHOLE),
    "unbatch_to_individual_items": Facts(WHOLE),
    "unstack_agents": Facts("it is about several agents at once"),
}
