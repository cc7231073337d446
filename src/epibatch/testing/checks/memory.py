"""Checks of shared memory: arrays that a piece may write to, and arrays that it may keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.connectors import EpisodeColumn
from epibatch.core.structs import flatten, is_leaf, map_struct
from epibatch.testing.checks.columns import Probe
from epibatch.testing.comparing import facts_of
from epibatch.testing.contract import ContractFault, NotApplied, contract_check, require_equal
from epibatch.testing.harness import PieceHarness


@contract_check()
def episodes_unchanged(harness: PieceHarness) -> None:
    """Episodes are as they were, but for what it says that it writes to."""
    piece = harness.make()
    pipeline, declare, newest = harness.pipeline(piece), "mutates_episodes = True", False
    if harness.acting:
        declare = "rewrites_observations = True" if harness.side == "env_to_module" else ""
        newest = harness.side == "env_to_module" and (piece.rewrites_observations or not harness.declared)
    elif piece.mutates_episodes:
        raise NotApplied("it says mutates_episodes")
    do = f"say so in the class, {declare}, or work on copies" if declare else "work on copies"
    for episodes in harness.first() if harness.acting else [harness.first()]:
        before = [_facts(episode, newest) for episode in episodes]
        harness.call(pipeline, episodes)
        for i, (episode, facts) in enumerate(zip(episodes, before)):
            require_equal(facts, _facts(episode, newest), f"episode {i}", "as it was before the call", do)


def _facts(episode: Any, newest: bool) -> dict[str, Any]:
    """Return the values that must not change; with `newest` the newest observation may, in type and nesting too."""
    if hasattr(episode, "agent_episodes"):
        return {str(agent): _facts(agent_episode, newest) for agent, agent_episode in episode.agent_episodes.items()}
    facts = facts_of(episode)
    if newest:
        facts.pop("observations")
        seen = episode.get_observations(slice(0, len(episode))) if len(episode) else None
        facts["observations"] = seen
    return facts


@contract_check()
def shared_memory(harness: PieceHarness) -> None:
    """Its output shares no memory with the episodes: writing to a batch changes none of them."""
    pipeline = harness.pipeline()
    calls = harness.first() if harness.acting else [harness.first()[:1], harness.first()]
    where, do = "after its batch was written to", "give copies: np.array(rows)"
    for episodes in calls:
        batch = harness.call(pipeline, episodes)
        before = [facts_of(episode) for episode in episodes]
        _overwrite(batch)
        for i, (episode, facts) in enumerate(zip(episodes, before)):
            require_equal(facts, facts_of(episode), f"episode {i}, {where}", "as it was", do)


def _overwrite(batch: Any) -> None:
    """Write zeros, or ones where all are zeros, into every array."""
    for column in batch.values() if isinstance(batch, dict) else batch:
        if isinstance(column, (dict, list)) and not is_leaf(column):
            _overwrite(column)
            continue
        for leaf in column if isinstance(column, list) else flatten(column)[0]:
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc" and leaf.flags.writeable:
                leaf[...] = 0 if np.any(leaf) else 1


@contract_check()
def read_only_arrays(harness: PieceHarness) -> None:
    """It works where columns and episodes are arrays that cannot be written to."""
    piece = harness.make()
    pipeline, episodes = harness.pipeline(piece, [Probe(_lock_batch)]), harness.first()
    if not harness.acting and harness.declared and not piece.mutates_episodes:
        for episode in episodes:
            _lock_episode(episode)
    where = "arrays that cannot be written to"
    try:
        found = harness.outputs(pipeline, episodes)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if "read-only" in line]
        do = "work on a copy, `rows = rows + 1` in place of `rows += 1`"
        raise ContractFault(where, "no writing to them", lines[0], do) from error
    require_equal(harness.base(), found, where, "the same batch", "go by the values of arrays only")


def _lock_batch(batch: Any) -> None:
    for column in batch.values():
        data = column.data if isinstance(column, EpisodeColumn) else column
        if not isinstance(data, list):
            map_struct(_lock, data)


def _lock(leaf: Any) -> None:
    if isinstance(leaf, np.ndarray):
        leaf.flags.writeable = False


def _lock_episode(episode: Any) -> None:
    if hasattr(episode, "agent_episodes"):
        for agent_episode in episode.agent_episodes.values():
            _lock_episode(agent_episode)
        return
    for column in (episode.observations, episode.actions, episode.rewards, *episode.extra_model_outputs.values()):
        for leaf in flatten(column.data)[0]:
            _lock(leaf if leaf.base is None else leaf.base)
