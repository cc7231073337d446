"""Checks of shared memory: arrays that a piece may write to, and arrays that it may keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epibatch.connectors._engine.columns import EpisodeColumn
from epibatch.core.structs import flatten, is_leaf, map_struct
from epibatch.testing.comparing import difference, facts_of
from epibatch.testing.contract import Fault, Finding, NotApplied, contract_check
from epibatch.testing.probes import Probe
from epibatch.testing.rehearsal import Rehearsal
from epibatch.testing.stage import growing

__all__ = ["episodes_unchanged", "read_only_arrays", "shared_memory"]


@contract_check()
def episodes_unchanged(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Episodes are as they were, but for what it says that it writes to."""
    piece = rehearsal.make()
    pipeline = rehearsal.pipeline(piece)
    if not rehearsal.acting:
        if piece.mutates_episodes:
            yield NotApplied("it says mutates_episodes")
            return
        yield from _changes(rehearsal, pipeline, rehearsal.recording.episodes(), "mutates_episodes = True")
        return
    newest = rehearsal.side == "env_to_module" and (piece.rewrites_observations or not rehearsal.declared)
    do = "rewrites_observations = True" if rehearsal.side == "env_to_module" else ""
    for episodes in growing(rehearsal.recording.played()):
        faults = list(_changes(rehearsal, pipeline, episodes, do, newest))
        yield from faults
        if faults:
            return


def _changes(
    rehearsal: Rehearsal, pipeline: Any, episodes: list[Any], declare: str, newest: bool = False
) -> Iterator[Finding]:
    before = [_facts(episode, newest) for episode in episodes]
    rehearsal.call(pipeline, episodes)
    for i, (episode, facts) in enumerate(zip(episodes, before)):
        unlike = difference(facts, _facts(episode, newest))
        if unlike:
            say = f"say so in the class, {declare}, or " if declare else ""
            yield Fault(f"episode {i}", "as it was before the call", unlike, f"{say}work on copies")
            return


def _facts(episode: Any, newest: bool) -> dict[str, Any]:
    """Return the values that must not change; with `newest` the newest observation may, in type and nesting too."""
    if hasattr(episode, "agent_episodes"):
        return {str(agent): _facts(own, newest) for agent, own in episode.agent_episodes.items()}
    facts = facts_of(episode)
    if newest:
        facts.pop("observations")
        seen = episode.get_observations(slice(0, len(episode))) if len(episode) else None
        facts["observations"] = seen
    return facts


@contract_check()
def shared_memory(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its output shares no memory with the episodes: writing to a batch changes none of them."""
    pipeline = rehearsal.pipeline(rehearsal.make())
    if rehearsal.acting:
        shown = growing(rehearsal.recording.played())
    else:
        shown = iter([rehearsal.recording.episodes()[:1], rehearsal.recording.episodes()])
    for episodes in shown:
        batch = rehearsal.call(pipeline, episodes)
        before = [facts_of(episode) for episode in episodes]
        _spoil(batch)
        for i, (episode, facts) in enumerate(zip(episodes, before)):
            unlike = difference(facts, facts_of(episode))
            if unlike:
                do = "give copies: np.array(rows)"
                yield Fault(f"episode {i}, after its batch was written to", "as it was", unlike, do)
                return


def _spoil(batch: Any) -> None:
    """Write zeros, or ones where all are zeros, into every array."""
    for column in batch.values() if isinstance(batch, dict) else batch:
        if isinstance(column, (dict, list)) and not is_leaf(column):
            _spoil(column)
            continue
        for leaf in column if isinstance(column, list) else flatten(column)[0]:
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc" and leaf.flags.writeable:
                leaf[...] = 0 if np.any(leaf) else 1


@contract_check()
def read_only_arrays(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It works where columns and episodes are arrays that cannot be written to."""
    piece = rehearsal.make()
    guard = Probe(_lock_batch)
    pipeline = rehearsal.pipeline(piece, [guard])
    if rehearsal.acting:
        episodes: Any = None
    else:
        episodes = rehearsal.recording.episodes()
        for episode in episodes if rehearsal.declared and not piece.mutates_episodes else ():
            _lock_episode(episode)
    try:
        unlike = difference(rehearsal.base(), rehearsal.outputs(pipeline, episodes))
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if "read-only" in line]
        do = "work on a copy, `rows = rows + 1` in place of `rows += 1`"
        yield Fault("arrays that cannot be written to", "no writing to them", lines[0], do)
        return
    if unlike:
        yield Fault("arrays that cannot be written to", "the same batch", unlike, "go by the values of arrays only")


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
        for own in episode.agent_episodes.values():
            _lock_episode(own)
        return
    for column in (episode.observations, episode.actions, episode.rewards, *episode.extra_model_outputs.values()):
        for leaf in flatten(column.data)[0]:
            _lock(leaf if leaf.base is None else leaf.base)
