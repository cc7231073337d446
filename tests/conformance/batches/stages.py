"""Pipelines of both libraries run stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from batches.snapshots import Flat, flat_mismatches, snapshot
from batches.user_pieces import spy
from epibatch.connectors._engine.chunks import chunk_keys
from oracle.compare import Mismatch
from oracle.libraries import Library

SHARED = ("memorized_map_structure", "_added_single_ts_time_rank", "_added_loss_mask_for_valid_episode_ts")
"""Entries of `shared_data` that pieces of users can rely on."""


@dataclass
class Record:
    """What one run of a pipeline showed.

    Attributes:
        places: position of each chunk of the call, by the keys that it has at some stage.
        stages: for each piece its name and the batch behind it.
        episodes: for some stages what the episodes hold then.
        shared: for each stage, and for the end, the entries of `shared_data` that users can rely on.
        final: the batch that the pipeline returned.
        values: what the module's value function says of it.
    """

    places: dict[Any, int] = field(default_factory=dict)
    stages: dict[str, Flat] = field(default_factory=dict)
    episodes: dict[str, Flat] = field(default_factory=dict)
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)
    final: Flat = field(default_factory=dict)
    values: Any = None

    def look(self, name: str, batch: Any, episodes: Any, shared: dict[str, Any], whole: bool) -> None:
        """Put down what there is behind a piece, with the episodes if wanted."""
        self.places.update({key: i for key, i in snapshot_keys(episodes).items() if key not in self.places})
        self.stages[name] = snapshot(batch, self.places)
        self.shared[name] = seen_shared(shared, self.places)
        if whole:
            self.episodes[name] = seen_episodes(episodes)

    def finish(self, batch: Any, episodes: Any, shared: dict[str, Any]) -> None:
        """Put down what the pipeline left."""
        self.final = snapshot(batch, self.places)
        self.shared["the end"] = seen_shared(shared, self.places)


def snapshot_keys(episodes: Any) -> dict[Any, int]:
    """Position of each chunk, by its key now; the first one's, of those that share a key."""
    if type(episodes).__module__.startswith("epibatch.") or type(episodes[0]).__module__.startswith("epibatch."):
        return {key: i for i, key in enumerate(chunk_keys(episodes))}
    return {(episode.id_,): i for i, episode in reversed(list(enumerate(episodes)))}


def seen_shared(shared: dict[str, Any], places: dict[Any, int]) -> dict[str, Any]:
    """The entries of `shared_data` that users can rely on, with positions for keys."""
    seen = {key: shared[key] for key in SHARED if key in shared}
    rows = seen.get("memorized_map_structure")
    if rows is not None:
        seen["memorized_map_structure"] = [places.get((key,), key) for key in rows]
    return seen


def watched(library: Library, pieces: Sequence[Any], record: Record) -> list[Any]:
    """The pieces with one behind each that puts into the record what is there."""

    def looker(name: str, whole: bool) -> Any:
        return spy(library)(look=lambda *seen: record.look(name, *seen, whole))

    out = []
    for i, piece in enumerate(pieces):
        cls = type(piece).__name__
        users = not type(piece).__module__.startswith(("ray.", "epibatch."))
        out += [piece, looker(f"{i}: {cls}", users or i == len(pieces) - 1 or cls.startswith("AddOneTs"))]
    return out


def overriding(pieces: Sequence[Any], record: Record) -> list[Any]:
    """Pieces of ours whose classes override `__call__`: each puts into the record what `super().__call__` gave."""
    out: list[Any] = []
    for i, piece in enumerate(pieces):
        if not type(piece).__module__.startswith("epibatch."):
            out.append(piece)
            continue
        arguments, keywords = piece.get_ctor_args_and_kwargs()
        out.append(_overriding(type(piece), record, f"{i}: {type(piece).__name__}")(*arguments, **keywords))
    return out


def check_overriding(pieces: Sequence[Any], record: Record) -> None:
    """Make sure that each override was called."""
    expected = {
        f"{i}: {type(one).__name__}" for i, one in enumerate(pieces) if type(one).__call__.__module__ == __name__
    }
    assert expected and record.stages.keys() >= expected


def _overriding(cls: Any, record: Record, stage: str) -> Any:
    def __call__(self: Any, *, batch: Any, **call: Any) -> Any:
        batch = super(sub, self).__call__(batch=dict(batch), **call)
        record.look(stage, batch, call["episodes"], call["shared_data"], False)
        return batch

    sub = type(cls.__name__, (cls,), {"__call__": __call__})
    return sub


def alone(pieces: Sequence[Any], spaces: Any, record: Record, batch: Any, call: dict[str, Any]) -> Any:
    """Call pieces one after the other without a pipeline, and look behind each."""
    for i, piece in enumerate(pieces):
        piece.input_action_space, piece.input_observation_space = spaces[1], spaces[0]
        batch = piece(batch=batch, **call)
        record.look(f"{i}: {type(piece).__name__}", batch, call["episodes"], call["shared_data"], i == len(pieces) - 1)
    return batch


def seen_episodes(episodes: Any) -> Flat:
    """What a user's piece can read from the episodes of a call."""
    seen: dict[str, Any] = {}
    for i, episode in enumerate(episodes):
        facts = episode.t_started, episode.t, len(episode), bool(episode.is_terminated), bool(episode.is_truncated)
        seen[f"facts {i}"] = facts
        seen[f"observations {i}"] = episode.get_observations()
        seen[f"actions {i}"] = episode.get_actions()
        seen[f"rewards {i}"] = episode.get_rewards()
        for key in episode.extra_model_outputs:
            seen[f"{key} {i}"] = episode.get_extra_model_outputs(key)
    return snapshot(seen)


def record_mismatches(theirs: Record, ours: Record) -> list[Mismatch]:
    """All differences of two runs, stage by stage as far as both were watched; each is one column of one stage."""
    found = []
    for name in ours.stages:
        found += flat_mismatches(theirs.stages[name], ours.stages[name], name)
        if name in ours.episodes:
            found += flat_mismatches(theirs.episodes[name], ours.episodes[name], f"episodes of {name}")
    for name, seen in ours.shared.items():
        if seen != theirs.shared[name]:
            found.append(Mismatch((name, "shared_data"), "value", theirs.shared[name], seen))
    return found + flat_mismatches(theirs.final, ours.final, "the end")
