"""Pipelines of both libraries run stage by stage, and what a batch holds at one stage, taken apart to be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from oracle.compare import Mismatch, mismatches
from oracle.libraries import Library
from oracle.makers import user

Flat = dict[tuple[Any, ...], Any]
PLAIN = {bool, int, float, str, np.bool_, np.int64, np.int32, np.float64, np.float32}


def snapshot(batch: Any, places: Mapping[Any, int] | None = None) -> Flat:
    """Copy a batch into `{path: leaf}`.

    A path has dict keys, `[i]` for places in lists, `(i)` for those in tuples, and ends with `batched` for arrays
    that are tagged as rows. Keys of chunks are replaced by the chunk's position, because the libraries name
    them differently.

    Args:
        batch: the batch.
        places: position of each chunk of the call, by its key.
    """
    out: Flat = {}
    places = places or {}
    for name, column in batch.items():
        if isinstance(column, (dict, Mapping)) and any(isinstance(key, tuple) for key in column):
            for key, items in column.items():
                _take(items, (name, f"chunk {places[key]}" if key in places else key), out)
        else:
            _take(column, (name,), out)
    return out


def _take(value: Any, path: tuple[Any, ...], out: Flat) -> None:
    kind = type(value)
    if kind in PLAIN:
        out[path] = value
    elif isinstance(value, np.ndarray):
        out[(*path, "batched") if kind.__name__ == "BatchedNdArray" else path] = np.array(value)
    elif isinstance(value, torch.Tensor):
        out[path] = value.clone()
    elif isinstance(value, (dict, Mapping)) and value:
        for key, own in value.items():
            _take(own, (*path, key), out)
    elif kind is list and value and _numbers(value):
        out[(*path, "[each]")] = np.array(value)
    elif isinstance(value, (list, tuple)) and len(value):
        left, right = "[]" if isinstance(value, list) else "()"
        for i, own in enumerate(value):
            _take(own, (*path, f"{left}{i}{right}"), out)
    elif isinstance(value, (Mapping, list, tuple)):
        out[path] = f"empty {'dict' if isinstance(value, Mapping) else kind.__name__}"
    else:
        out[path] = value


def _numbers(values: list[Any]) -> bool:
    kinds = {own.dtype.type if type(own) is np.ndarray and not own.ndim else type(own) for own in values}
    return len(kinds) == 1 and issubclass(kinds.pop(), (bool, int, float, np.bool_, np.number))


def flat_mismatches(theirs: Flat, ours: Flat, stage: str = "") -> list[Mismatch]:
    """Every column of two snapshots that differs, in one mismatch each.

    Returns:
        Mismatches whose path is (stage, column) and whose sides are that column's part of the snapshots.
    """
    if same_flat(theirs, ours):
        return []
    found = []
    both = [_columns(flat) for flat in (theirs, ours)]
    for name in dict.fromkeys([*both[0], *both[1]]):
        one, other = (columns.get(name, {}) for columns in both)
        if not one or not other:
            found.append(Mismatch((stage, name), "keys", one, other))
        elif list(one) != list(other):
            found.append(Mismatch((stage, name), "layout", one, other))
        elif not same_flat(one, other):
            found.append(Mismatch((stage, name), "value", one, other))
    return found


def same_flat(one: Flat, other: Flat) -> bool:
    """Whether two parts of snapshots are equal."""
    return list(one) == list(other) and all(_same(own, other[path]) for path, own in one.items())


def column_of(flat: Flat, name: str) -> Flat:
    """One column of a snapshot, by the name that mismatches have for it."""
    return _columns(flat).get(name, {})


def rows_of(flat: Flat) -> dict[Any, list[Any]]:
    """Rows by their place in the structure, whether they are items of lists or of arrays."""
    rows: dict[Any, list[Any]] = {}
    for path, leaf in flat.items():
        inner, single = _place(path)
        if isinstance(leaf, str) and leaf.startswith("empty "):
            continue
        own = [leaf] if single or np.ndim(leaf) == 0 else list(leaf)
        if own:
            rows.setdefault(inner, []).extend(own)
    return rows


@lru_cache(maxsize=4096)
def _place(path: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """A path without the places in lists, and whether it leads to one row in a list."""
    inner = tuple(part for part in path if part != "batched" and not str(part).startswith("["))
    single = any(str(part).startswith("[") and part != "[each]" for part in path) and "batched" not in path
    return inner, single


def same_rows(one: Flat, other: Flat) -> bool:
    """Whether both hold the same rows, of the same types, whether as items of lists or as arrays."""
    left, right = rows_of(one), rows_of(other)
    return left.keys() == right.keys() and all(
        len(own) == len(right[path])
        and all(np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b) for a, b in zip(own, right[path]))
        for path, own in left.items()
    )


def _columns(flat: Flat) -> dict[str, Flat]:
    """A snapshot by column, whether under a module or not."""
    columns: dict[str, Flat] = {}
    for path, own in flat.items():
        under = 1 + (path[0] == "default_policy" and len(path) > 1)
        columns.setdefault("/".join(map(str, path[:under])), {})[path[under:]] = own
    return columns


def _same(one: Any, other: Any) -> bool:
    arrays = type(one) is np.ndarray and type(other) is np.ndarray and one.dtype.kind != "O"
    if arrays and one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes():
        return True
    return not mismatches(one, other)


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

    def look_at(self, stage: str, batch: Any, call: Any) -> None:
        """Put down what an overriding piece tells."""
        self.look(stage, batch, call["episodes"], call["shared_data"], False)

    def finish(self, batch: Any, episodes: Any, shared: dict[str, Any]) -> None:
        """Put down what the pipeline left."""
        self.final = snapshot(batch, self.places)
        self.shared["the end"] = seen_shared(shared, self.places)


def snapshot_keys(episodes: Any) -> dict[Any, int]:
    """Position of each chunk, by its key now; the first one's, of those that share a key."""
    if type(episodes).__module__.startswith("epibatch.") or type(episodes[0]).__module__.startswith("epibatch."):
        counts = Counter(episode.id_ for episode in episodes)
        return {(e.id_ if counts[e.id_] == 1 else f"{e.id_}_{i}",): i for i, e in enumerate(episodes)}
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
        return user(library, lambda piece, *seen: record.look(name, *seen, piece.keywords["shared_data"], whole))

    out = []
    for i, piece in enumerate(pieces):
        cls = type(piece).__name__
        users = not type(piece).__module__.startswith(("ray.", "epibatch."))
        out += [piece, looker(f"{i}: {cls}", users or i == len(pieces) - 1 or cls.startswith("AddOneTs"))]
    return out


def overriding(pieces: Sequence[Any], look: Callable[[str, Any, Any], Any]) -> list[Any]:
    """Pieces of ours whose classes override `__call__`: each tells `look` its stage and what `super()` gave."""

    def overridden(cls: Any, stage: str) -> Any:
        def __call__(self: Any, *, batch: Any, **call: Any) -> Any:
            batch = super(sub, self).__call__(batch=dict(batch), **call)
            look(stage, batch, call)
            return batch

        sub = type(cls.__name__, (cls,), {"__call__": __call__})
        return sub

    out: list[Any] = []
    for i, piece in enumerate(pieces):
        if type(piece).__module__.startswith("epibatch."):
            arguments, keywords = piece.get_ctor_args_and_kwargs()
            piece = overridden(type(piece), f"{i}: {type(piece).__name__}")(*arguments, **keywords)
        out.append(piece)
    return out


def stages_of(pieces: Sequence[Any]) -> set[str]:
    """The stages that overriding pieces among some tell of."""
    return {f"{i}: {type(own).__name__}" for i, own in enumerate(pieces) if type(own).__call__.__module__ == __name__}


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
