"""Which listed differences a call of a learner pipeline can show, and what both sides give then.

What epibatch gives is held against RLlib again: RLlib must give the same once the cause of a listed difference is
taken out of the call, be it ids that coincide or episodes in lists. What RLlib gives instead is worked out here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from batches.advantages import chunkwise, gae_rows, running_on, standardised
from batches.learner_runs import LearnerCall
from batches.snapshots import Flat, column_of, rows_of, same_flat
from batches.stages import Record, record_mismatches
from batches.user_pieces import EARLY_COLUMNS, FLOAT_WRITERS, HISTORY
from epibatch.core.errors import ColumnError, EpisodeError, LookbackError
from oracle.compare import Mismatch, Outcome, outcome
from oracle.differences import IDS, difference, explanation_of
from oracle.libraries import RLLIB


@dataclass(frozen=True)
class LearnerSituation:
    """A call of a learner pipeline, how our pieces ran, and what was recorded."""

    call: LearnerCall
    way: str
    ours: Record | None = field(default=None, repr=False)
    theirs: Record | None = field(default=None, repr=False)
    memory: list[Record] = field(default_factory=list, repr=False)
    verdicts: list[bool] = field(default_factory=list, repr=False)

    @property
    def mended(self) -> list[Record]:
        """RLlib's runs of the call without the causes of the listed differences that it has."""
        if not self.memory:
            call = self.without_causes()
            wide = "column-types" in IDS and casts_rewards(call)
            calls = [call, replace(call, float_rewards=True)] if wide else [call]
            self.memory.extend(
                made.value for made in (outcome(lambda c=c: c.record(RLLIB)) for c in calls) if made.value
            )
        return self.memory

    def without_causes(self) -> LearnerCall:
        """The call without the causes of the listed differences that it has."""
        call = self.call
        numbered = "batch-keys" in IDS and renumbered(call)
        if numbered or ("O12" in IDS and shared_keys(call)):
            call = replace(call, chunks=tuple(replace(c, id_=f"unique_{i}") for i, c in enumerate(call.chunks)))
        if "columns" in IDS:
            call = replace(call, numpy=True)
        if "nested-writes" in IDS and refuses_writes(call):
            call = replace(call, swapped=True)
        return call

    def is_mended(self, mismatch: Mismatch) -> bool:
        """Whether RLlib gives what epibatch does, in that place, without the causes."""
        return any(_has(record, mismatch) for record in self.mended)

    def is_explained_by_the_mended_run(self, mismatch: Mismatch) -> bool:
        """Whether RLlib without the causes, where it stopped at an error with them, gives what epibatch does."""
        call = self.without_causes()
        if isinstance(mismatch.ours, Exception):
            run = outcome(lambda: call.record(RLLIB))
            other = Mismatch((), "error", run.error or run.value, mismatch.ours)
            same = run.kind == Outcome(error=mismatch.ours).kind
            return same or explanation_of(replace(self, call=call), other) is not None
        return bool(self.mended) and all(
            explanation_of(replace(self, call=call, theirs=self.mended[0]), own)
            for own in record_mismatches(self.mended[0], mismatch.ours)
            if "AddOneTs" not in own.path[0]  # that stands in front of the piece that writes
        )


def _has(record: Record, mismatch: Mismatch) -> bool:
    stage, column = mismatch.path
    if column == "shared_data":
        return bool(mismatch.ours == record.shared[stage])
    flats = {"the end": record.final, **record.stages}
    flats.update({f"episodes of {name}": flat for name, flat in record.episodes.items()})
    theirs = column_of(flats[stage], column)
    return same_flat(theirs, mismatch.ours) or ("notes" in column and same_objects(theirs, mismatch.ours))


def same_objects(theirs: Flat, ours: Flat) -> bool:
    """Whether arrays of strings and arrays of objects say the same; padding is an empty string there, 0 here."""
    leaves = [(np.asarray(leaf), np.asarray(ours.get(path))) for path, leaf in theirs.items()]
    return list(theirs) == list(ours) and all(
        a.dtype.kind == "U"
        and b.dtype.kind == "O"
        and a.shape == b.shape
        and all(x == y or (x == "" and y == 0) for x, y in zip(a.flat, b.flat))
        for a, b in leaves
    )


def shared_keys(call: LearnerCall) -> list[list[int]]:
    """Groups of chunks that share a key in some column of RLlib's batch, if there are any."""
    if call.ppo:
        return []  # every id gets a number in front of all that writes columns
    early = bool(set(call.front) & EARLY_COLUMNS)
    return groups_by_key(call, early)


def groups_by_key(call: LearnerCall, early: bool) -> list[list[int]]:
    """Groups of chunks with one key in RLlib, before it numbers ids without an underscore, or behind that."""
    groups: dict[str, list[int]] = {}
    for i, chunk in enumerate(call.chunks):
        groups.setdefault(chunk.id_ if early or "_" in chunk.id_ else f"{chunk.id_}_{i}", []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def renumbered(call: LearnerCall) -> bool:
    """Whether a user's piece takes columns together that were written in front of and behind RLlib's change of ids."""
    two = "own_rewards_column" in call.front and "two_columns_at_once" in call.columns
    return two and not call.ppo and any("_" not in chunk.id_ for chunk in call.chunks)


def casts_rewards(call: LearnerCall) -> bool:
    """Whether a user's piece writes Python floats into integer or float32 rewards."""
    return call.chunks[0].reward != "float" and bool(FLOAT_WRITERS & set(call.front))


def refuses_writes(call: LearnerCall) -> bool:
    """Whether a user's piece writes nested observations to episodes that hold arrays."""
    nested = isinstance(call.spaces[0], (gym.spaces.Dict, gym.spaces.Tuple))
    return nested and "swapped_observations" in call.front


def late_numbers(call: LearnerCall) -> bool:
    """Whether chunks that share an id have columns from before ids were numbered."""
    return bool(set(call.front) & EARLY_COLUMNS) and bool(groups_by_key(call, True))


@difference("O12", LearnerSituation)
def one_key_for_several_chunks(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib has the rows of all chunks with one key in the place of the first; epibatch has each in its own."""
    call = situation.call
    if not shared_keys(call) or mismatch.kind == "error":
        return False
    stage, column = mismatch.path
    if column == "shared_data":
        return has_map(mismatch.theirs, their_map(call)) and has_map(mismatch.ours, our_map(call))
    mismatch = replace(mismatch, ours=in_one_array(situation, mismatch))
    if stage.startswith("episodes") or not situation.is_mended(mismatch):
        return False
    if any(str(path[:1]).startswith("('chunk") for path in mismatch.ours):
        missing = {path[0] for path in mismatch.ours} - {path[0] for path in mismatch.theirs}
        early = groups_by_key(call, True) if late_numbers(call) else []
        groups = (groups_by_key(call, False), early)
        return missing in [{f"chunk {i}" for group in own for i in group[1:]} for own in groups]
    return _same_rows_in_another_order(mismatch, padded=bool(call.layout))


def in_one_array(situation: LearnerSituation, mismatch: Mismatch) -> Any:
    """Ours, where pieces that were called without a pipeline left padded sequences of strings in a list: stacked."""
    ours = mismatch.ours
    listed = "notes" in mismatch.path[1] and list(ours) == [(f"[{i}]",) for i in range(len(ours))]
    return (
        {(): np.stack(list(ours.values()))} if listed and ours and situation.way in ("alone", "two pipelines") else ours
    )


def _same_rows_in_another_order(mismatch: Mismatch, padded: bool) -> bool:
    """Whether both sides hold the same entries; padded rows may be cut elsewhere, so the count of one value is free."""
    if list(mismatch.theirs) != list(mismatch.ours):
        return False
    for path, one in mismatch.theirs.items():
        theirs, ours = (Counter(map(str, np.ravel(np.asarray(side)).tolist())) for side in (one, mismatch.ours[path]))
        if "notes" in mismatch.path[1]:  # padded with empty strings there, with 0 here
            theirs["0"] += theirs.pop("", 0)
        differing = [value for value in {*theirs, *ours} if theirs[value] != ours[value]]
        if len(differing) > padded and not {"loss_mask", "seq_lens"} & set(mismatch.path[1].split("/")):
            return False
    return True


@difference("batch-keys", LearnerSituation)
def columns_from_before_ids_were_changed(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib changes ids between two columns, which then have no common keys; here ids stay."""
    call = situation.call
    changed = [(f"{chunk.id_}_{i}",) for i, chunk in enumerate(call.chunks) if "_" not in chunk.id_]
    if not renumbered(call) or not isinstance(mismatch.theirs, KeyError) or mismatch.theirs.args[0] not in changed:
        return False
    return situation.is_explained_by_the_mended_run(mismatch)


@difference("columns", LearnerSituation)
def episodes_of_lists(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """Of list episodes RLlib shows one item per step, epibatch one array per chunk, with the same rows."""
    call = situation.call
    if call.numpy or mismatch.kind == "error" or mismatch.path[1] == "shared_data":
        return False
    theirs, ours = (rows_of(side) for side in (mismatch.theirs, mismatch.ours))
    same = theirs.keys() == ours.keys() and all(
        len(own) == len(ours[path]) and all(np.array_equal(a, b) for a, b in zip(own, ours[path]))
        for path, own in theirs.items()
    )
    if not same or mismatch.path[0].startswith("episodes of"):
        return same
    mended = situation.mended
    return situation.is_mended(mismatch) or any(_explained_of_arrays(situation, own, mismatch) for own in mended)


def _explained_of_arrays(situation: LearnerSituation, theirs: Record, mismatch: Mismatch) -> bool:
    """Whether what differs from RLlib's run on arrays, too, is another listed difference."""
    stage, column = mismatch.path
    one = column_of(theirs.final if stage == "the end" else theirs.stages[stage], column)
    kind = "value" if list(one) == list(mismatch.ours) else "layout"
    other = replace(situation, call=situation.without_causes(), theirs=theirs, memory=situation.mended)
    return explanation_of(other, Mismatch(mismatch.path, kind, one, mismatch.ours)) is not None


@difference("column-types", LearnerSituation)
def floats_into_narrower_rewards(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """Floats written into integer or float32 rewards: RLlib's are cut down to those, epibatch's column is widened."""
    if not casts_rewards(situation.call) or mismatch.kind == "error" or not situation.is_mended(mismatch):
        return False
    kinds = [
        (np.asarray(leaf).dtype, np.asarray(mismatch.ours.get(path)).dtype) for path, leaf in mismatch.theirs.items()
    ]
    wider = any(a != b and np.result_type(a, b) == b for a, b in kinds)
    return wider or mismatch.path[1].removeprefix("default_policy/") in ("rewards", "own_sign", "past_rewards")


@difference("column-types", LearnerSituation)
def bootstrap_rewards_keep_float32(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib's float32 rewards become float64 by the bootstrap row's 0.0; epibatch's stay what they are."""
    call = situation.call
    if not call.ppo or call.chunks[0].reward != "float32" or mismatch.kind != "value":
        return False
    pairs = [(np.asarray(leaf), np.asarray(mismatch.ours.get(path))) for path, leaf in mismatch.theirs.items()]
    own = any(name in mismatch.path[1] for name in ("rewards", "own_sign"))
    return own and all(a.dtype == np.float64 and b.dtype == np.float32 and np.array_equal(a, b) for a, b in pairs)


@difference("row-map", LearnerSituation)
def map_of_nested_observations(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """`memorized_map_structure` has one entry per chunk in RLlib if observations are nested, here one per row."""
    call = situation.call
    if mismatch.path[1:] != ("shared_data",) or not isinstance(call.spaces[0], (gym.spaces.Dict, gym.spaces.Tuple)):
        return False
    whole = not call.layout and call.numpy and ("own_observations_column" not in call.front)
    return whole and has_map(mismatch.theirs, their_map(call)) and has_map(mismatch.ours, our_map(call))


def our_map(call: LearnerCall) -> list[int]:
    """The chunk of each row of the batch, or of each sequence."""
    steps = call.max_seq_len if call.layout else 1
    return [i for i, length in enumerate(call.lengths) for _ in range(-(-length // steps))]


def their_map(call: LearnerCall) -> list[int]:
    """The chunk that RLlib says each row is of: the first with that key; one entry per chunk for nested arrays."""
    early = "own_observations_column" in call.front
    nested = isinstance(call.spaces[0], (gym.spaces.Dict, gym.spaces.Tuple)) and not early
    groups = groups_by_key(call, early and not call.ppo) if not call.ppo else []
    rows: list[int] = []
    for group in sorted([*groups, *([i] for i in range(len(call.chunks)) if not any(i in own for own in groups))]):
        length = sum(call.lengths[i] for i in group)
        if call.layout:
            length = -(-length // call.max_seq_len)
        elif nested and call.numpy:
            length = len(group)
        rows += [group[0]] * length
    return rows


def has_map(shared: dict[str, Any], expected: list[int]) -> bool:
    """Whether `shared_data` holds that map."""
    return bool(shared.get("memorized_map_structure") == expected)


@difference("row-count", LearnerSituation)
def a_column_written_twice(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """Two pieces add a row per step to one column: epibatch names it, RLlib gives a batch or fails later."""
    return isinstance(mismatch.ours, ColumnError) and bool(
        EARLY_COLUMNS & {*situation.call.front} & {*situation.call.columns}
    )


@difference("missing-history", LearnerSituation)
def history_that_is_not_there(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """A piece reads further back than a chunk goes on from: RLlib fills, epibatch raises."""
    call = situation.call
    return (
        mismatch.kind == "error"
        and isinstance(mismatch.ours, LookbackError)
        and any(
            chunk.t_started > chunk.lookback < HISTORY[name]
            for name in {*call.front} & HISTORY.keys()
            for chunk in call.chunks
        )
    )


@difference("no-steps", LearnerSituation)
def chunks_without_steps(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """A chunk without steps: RLlib gives a batch without rows of it or fails somewhere, epibatch names it."""
    return isinstance(mismatch.ours, EpisodeError) and any(not chunk.length for chunk in situation.call.chunks)


@difference("nested-writes", LearnerSituation)
def nested_observations_are_refused(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib holds each part of a nested observation against the whole space when it is written, and asserts."""
    asserted = mismatch.kind == "error" and isinstance(mismatch.theirs, AssertionError)
    if not asserted or not refuses_writes(situation.call) or not situation.call.numpy:
        return False
    return situation.is_explained_by_the_mended_run(mismatch)


@difference("object-outputs", LearnerSituation)
def outputs_that_are_no_numbers(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """Strings make arrays of strings in RLlib, with empty ones as padding; here arrays of objects, with zeros.

    Pieces that are called without a pipeline leave padded sequences of them in a list.
    """
    if mismatch.kind == "error" or "notes" not in mismatch.path[1]:
        return False
    ours = in_one_array(situation, mismatch)
    return mismatch.kind in ("value", "layout") and same_objects(mismatch.theirs, ours)


@difference("O29", LearnerSituation)
def bootstrap_steps_in_seq_lens(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib counts the bootstrap row of each chunk's last sequence; epibatch real steps only."""
    call = situation.call
    if call.ppo is None or not mismatch.path or not mismatch.path[1].endswith("seq_lens"):
        return False
    steps, real = [], []
    for chunk in call.chunks:
        whole = [min(call.max_seq_len, chunk.length + 1 - at) for at in range(0, chunk.length + 1, call.max_seq_len)]
        steps += whole
        real += [*whole[:-1], whole[-1] - 1]
    sides = [np.concatenate([np.ravel(leaf) for leaf in side.values()]) for side in (mismatch.theirs, mismatch.ours)]
    return same_form(mismatch) and sides[0].tolist() == steps and sides[1].tolist() == real


def same_form(mismatch: Mismatch) -> bool:
    """Whether both sides are alike but for their values."""
    theirs, ours = mismatch.theirs, mismatch.ours
    return list(theirs) == list(ours) and all(
        type(leaf) is type(ours[path]) and leaf.dtype == ours[path].dtype and leaf.shape == ours[path].shape
        for path, leaf in theirs.items()
    )


@difference("O28", LearnerSituation)
def standardised_over_bootstrap_rows(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib standardises over the bootstrap rows too; epibatch over the others, and those have 0."""
    if situation.call.ppo is None or mismatch.path[1:] != ("default_policy/advantages",) or not same_form(mismatch):
        return False
    theirs, ours = gae_rows(situation.call, situation.theirs), gae_rows(situation.call, situation.ours)
    running = running_on(theirs, situation.call.ppo)
    own = chunkwise(ours, situation.call.ppo)
    return theirs.fits(mismatch.theirs, standardised(running, np.ones_like(ours.real))) and ours.fits(
        mismatch.ours, np.where(ours.real, standardised(own, ours.real), 0)
    )


@difference("bootstrap-targets", LearnerSituation)
def targets_of_bootstrap_rows(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib's bootstrap rows have targets as if the next chunk followed; here it is the row's own value."""
    if situation.call.ppo is None or mismatch.path[1:] != ("default_policy/value_targets",) or not same_form(mismatch):
        return False
    theirs, ours = gae_rows(situation.call, situation.theirs), gae_rows(situation.call, situation.ours)
    expected = np.where(ours.real, chunkwise(ours, situation.call.ppo), 0) + ours.values
    return theirs.fits(mismatch.theirs, running_on(theirs, situation.call.ppo) + theirs.values) and ours.fits(
        mismatch.ours, expected
    )
