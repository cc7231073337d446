"""Which listed differences a call of a learner pipeline can show, and what both sides give then.

RLlib is given the call without the causes of some listed differences (`LearnerCall.for_rllib`), so that it gives what
epibatch does with them. What it gives instead where that cannot be is worked out here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from batches.learner_runs import LearnerCall
from batches.stages import Flat, Record, column_of, record_mismatches, same_flat
from batches.user_pieces import EARLY_COLUMNS, FLOAT_WRITERS, HISTORY
from epibatch.core.errors import ColumnError, EpisodeError, LookbackError
from oracle.compare import Mismatch, Outcome, outcome, settle
from oracle.differences import difference
from oracle.libraries import EPIBATCH, RLLIB


@dataclass
class Rows:
    """The rows of all chunks, one chunk after the other, without padding.

    Attributes:
        at: position of each row in the flat batch.
        counts: rows of each chunk, the bootstrap row included.
        real: whether a row is a step.
    """

    at: Any
    counts: list[int]
    real: Any
    values: Any
    rewards: Any
    terminateds: Any
    truncateds: Any

    def fits(self, column: dict[Any, Any], expected: Any) -> bool:
        """Whether a column of the batch has the expected numbers in its rows, and zeros in between.

        RLlib computes with float32, in which an advantage is what is left of targets and values: 0.5 % of the largest.
        """
        (leaf,) = column.values()
        flat = np.ravel(np.asarray(leaf, np.float64))
        between = np.ones(len(flat), bool)
        between[self.at] = False
        scale = 5e-3 * max(1.0, np.abs(expected).max())
        return bool(np.allclose(flat[self.at], expected, rtol=0, atol=scale) and (flat[between] == 0).all())


def gae_rows(call: Any, record: Record) -> Rows:
    """What a finished batch gives the estimation to work with."""
    counts = [chunk.length + 1 for chunk in call.chunks]
    at: list[int] = []
    start = 0
    for count in counts:
        at += range(start, start + count)
        start += -(-count // call.max_seq_len) * call.max_seq_len if call.layout else count
    real = np.concatenate([np.arange(count) < count - 1 for count in counts])

    def column(name: str) -> Any:
        return np.ravel(np.asarray(record.final["default_policy", name], np.float64))[at]

    values = np.ravel(np.asarray(record.values, np.float64))[at]
    return Rows(np.array(at), counts, real, values, *map(column, ("rewards", "terminateds", "truncateds")))


def chunkwise(rows: Rows, ppo: tuple[float, float]) -> Any:
    """Advantages of each chunk by itself; its last row is the bootstrap's."""
    gamma, lambda_ = ppo
    out, start = np.zeros(len(rows.at)), 0
    for count in rows.counts:
        running = 0.0
        for t in range(start + count - 2, start - 1, -1):
            goes_on = 1 - rows.terminateds[t]
            error = rows.rewards[t] + gamma * goes_on * rows.values[t + 1] - rows.values[t]
            running = out[t] = error + gamma * lambda_ * running
        start += count
    return out


def running_on(rows: Rows, ppo: tuple[float, float]) -> Any:
    """Advantages of rows as if all were one episode, cut only where a flag says so."""
    gamma, lambda_ = ppo
    following = np.append(rows.values[1:], 0.0)
    out, running = np.zeros(len(rows.at)), 0.0
    for t in range(len(rows.at) - 1, -1, -1):
        goes_on = 1 - rows.terminateds[t]
        error = rows.rewards[t] + gamma * goes_on * following[t] - rows.values[t]
        running = out[t] = error + gamma * lambda_ * goes_on * (1 - rows.truncateds[t]) * running
    return out


def standardised(values: Any, rows: Any) -> Any:
    """Shifted and scaled by the mean and deviation of some rows."""
    some = values[rows.astype(bool)]
    return (values - some.mean()) / max(1e-4, some.std())


@dataclass(frozen=True)
class LearnerSituation:
    """A call of a learner pipeline, how our pieces ran, and what was recorded."""

    call: LearnerCall
    way: str
    ours: Record | None = field(default=None, repr=False)
    theirs: Record | None = field(default=None, repr=False)

    def is_that_of_float_rewards(self, mismatch: Mismatch) -> bool:
        """Whether RLlib gives what epibatch does, in that place, if rewards are floats from the start."""
        stage, column = mismatch.path
        record = replace(self.call, float_rewards=True).record(RLLIB)
        flats = {"the end": record.final, **record.stages}
        flats.update({f"episodes of {name}": flat for name, flat in record.episodes.items()})
        return same_flat(column_of(flats[stage], column), mismatch.ours)


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


def casts_rewards(call: LearnerCall) -> bool:
    """Whether a user's piece writes Python floats into integer or float32 rewards."""
    return call.chunks[0].reward != "float" and bool(FLOAT_WRITERS & set(call.front))


def in_one_array(situation: LearnerSituation, mismatch: Mismatch) -> Any:
    """Ours, where pieces that were called without a pipeline left padded sequences of strings in a list: stacked."""
    ours = mismatch.ours
    listed = "notes" in mismatch.path[1] and list(ours) == [(f"[{i}]",) for i in range(len(ours))]
    return (
        {(): np.stack(list(ours.values()))} if listed and ours and situation.way in ("alone", "two pipelines") else ours
    )


@difference("column-types", LearnerSituation)
def floats_into_narrower_rewards(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """Floats written into integer or float32 rewards: RLlib's are cut down to those, epibatch's column is widened."""
    if not casts_rewards(situation.call) or mismatch.kind == "error" or mismatch.path[1] == "shared_data":
        return False
    if not situation.is_that_of_float_rewards(mismatch):
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
    theirs, ours = (shared.get("memorized_map_structure") for shared in (mismatch.theirs, mismatch.ours))
    every = [i for i, length in enumerate(call.lengths) for _ in range(length)]
    whole = not call.layout and "own_observations_column" not in call.front
    return whole and theirs == list(range(len(call.chunks))) and ours == every


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


def as_without_them(call: LearnerCall, ours: Outcome) -> bool:
    """Whether ours gives what it does without the chunks that have no steps, and that is as it should be.

    RLlib's pieces, called alone, fail then or have a row for some columns of such a chunk.
    """
    kept = [i for i, chunk in enumerate(call.chunks) if chunk.length]
    if not kept and ours.kind:
        return isinstance(ours.error, EpisodeError) or outcome(lambda: call.record(RLLIB, "alone")).kind == ours.kind
    if not kept:
        return all(is_empty(leaf) for leaf in ours.value.final.values())
    fewer = replace(call, chunks=tuple(call.chunks[i] for i in kept))
    theirs, without = (outcome(lambda library=library: fewer.record(library, "alone")) for library in (RLLIB, EPIBATCH))
    found = LearnerSituation(fewer, "alone", without.value, theirs.value)
    if outcome(lambda: settle(theirs, without, found, record_mismatches)).kind:
        return False
    if ours.error or without.error:
        return told(ours.error, range(len(call.chunks))) == told(without.error, kept)
    names = {f"chunk {i}": f"chunk {kept.index(i)}" if i in kept else "" for i in range(len(call.chunks))}
    stages = [(ours.value.stages[name], flat) for name, flat in without.value.stages.items()]
    ends = [*stages, (ours.value.final, without.value.final)]
    return all(same_flat(renamed(flat, names), other) for flat, other in ends)


def told(error: Exception | None, places: Sequence[int]) -> tuple[type, str]:
    """What an error is and says, with the place of a chunk in another call for its name and place."""
    chunk = re.compile(r"episode '[^']*' \(chunk (\d+) of \d+\)")
    return type(error), chunk.sub(lambda found: f"chunk {places[int(found[1])]}", str(error))


def is_empty(leaf: Any) -> bool:
    """Whether a leaf of a snapshot has no rows."""
    return leaf.startswith("empty ") if isinstance(leaf, str) else not len(leaf)


def renamed(flat: Flat, names: dict[str, str]) -> Flat:
    """A snapshot with other names for chunks, and without those that have none and hold nothing."""
    out: Flat = {}
    for path, leaf in flat.items():
        if not any(names.get(part) == "" and is_empty(leaf) for part in path):
            out[tuple(names.get(part, part) for part in path)] = leaf
    return out
