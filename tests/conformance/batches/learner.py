"""Random calls of learner pipelines, what both libraries make of them, and which listed differences that can show.

RLlib is given the call without the causes of some listed differences (`LearnerCall.for_rllib`), so that it gives what
epibatch does with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from batches.chunks import STATES, BatchChunk, build_all, built, chunk_lists, in_a_block
from batches.stages import (
    Flat,
    Record,
    alone,
    column_of,
    overriding,
    record_mismatches,
    same_flat,
    snapshot_keys,
    stages_of,
    watched,
)
from batches.user_pieces import BATCHED, COLUMNS, EARLY_COLUMNS, FLOAT_WRITERS, HISTORY, LEARNER, Body, user_piece
from epibatch.core.errors import ColumnError, EpisodeError, LookbackError
from oracle.compare import Mismatch, Outcome, difference, listed, outcome, settle
from oracle.episodes import spaces
from oracle.libraries import EPIBATCH, RLLIB, Library
from oracle.modules import LEARNER as DEFAULTS
from oracle.modules import PPO, pieces_of

WAYS = ("columnar list", "columnar block", "plain", "overriding")
"""How our built-in pieces run: next to each other on a list or on a block, with a plain piece between each two, or as
subclasses that override `__call__`."""


@dataclass(frozen=True)
class LearnerCall:
    """One call of a learner pipeline, as data.

    Attributes:
        chunks: the episodes.
        layout: of the module's recurrent state, a name in `STATES`.
        max_seq_len: steps of a sequence.
        front: names of users' pieces in front.
        columns: names of users' pieces behind the last default piece that adds per-step columns.
        batched: name and default piece of users' pieces behind pieces that make arrays or tensors.
        ppo: discount and lambda, if PPO's two pieces are there; its first one stands in front of the users'.
        float_rewards: build RLlib's episodes with float rewards, whatever the chunks' are.
        swapped: build RLlib's episodes as `swapped_observations` makes them, which then does nothing.
        seed: for the users' pieces.
    """

    chunks: tuple[BatchChunk, ...]
    layout: str = ""
    max_seq_len: int = 20
    front: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    batched: tuple[tuple[str, str], ...] = ()
    ppo: tuple[float, float] | None = None
    float_rewards: bool = False
    swapped: bool = False
    seed: int = field(default=0, compare=False)

    @property
    def spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        return self.chunks[0].observation_space, self.chunks[0].action_space

    @property
    def lengths(self) -> list[int]:
        """Rows of each chunk in the batch."""
        return [chunk.length + (self.ppo is not None) for chunk in self.chunks]

    def for_rllib(self) -> LearnerCall:
        """The call without the causes of some listed differences.

        These are ids that several chunks share (`O12`), ids that RLlib changes between two columns (`batch-keys`), and
        observations that it refuses to be written (`nested-writes`).
        """
        chunks = tuple(replace(chunk, id_=f"unique_{i}") for i, chunk in enumerate(self.chunks))
        nested = isinstance(self.spaces[0], (gym.spaces.Dict, gym.spaces.Tuple))
        return replace(self, chunks=chunks, swapped=nested and "swapped_observations" in self.front)

    def pieces(self, library: Library) -> list[Any]:
        """New pieces of a library, in the order of its default pipeline."""

        def users(names: Any, table: dict[str, Body]) -> list[Any]:
            return [user_piece(library, table[name], self.seed, self.swapped and "swapped" in name) for name in names]

        defaults = self.default_pieces(library)
        out = [defaults.pop(0)] if self.ppo else []
        out += users(self.front, LEARNER)
        for piece in defaults:
            name = type(piece).__name__
            out.append(piece)
            if name == "AddColumnsFromEpisodesToTrainBatch":
                out += users(self.columns, COLUMNS)
            out += users([own for own, place in self.batched if place == name], BATCHED)
        return out

    def default_pieces(self, library: Library) -> list[Any]:
        """New default pieces of a library: what our `default_pipeline` gives, and RLlib's in its order."""
        discounts = dict(zip(("gamma", "lambda_"), self.ppo or ()))
        if library is EPIBATCH:
            return list(library.learner.default_pipeline(*self.spaces, advantages=bool(self.ppo), **discounts))
        return pieces_of(library, "learner", *(PPO if self.ppo else DEFAULTS), GeneralAdvantageEstimation=discounts)

    def record(self, library: Library, way: str = "plain") -> Record:
        """Run it with somebody looking behind every piece; with columnar pieces at the end only."""
        if library is RLLIB and self != self.for_rllib():
            return self.for_rllib().record(library, way)
        record, pieces = Record(), self.pieces(library)
        if way == "plain":
            pieces = watched(library, pieces, record)
        elif way == "overriding" and library is EPIBATCH:
            pieces = overriding(pieces, record.look_at)
        if way == "columnar block":
            episodes = in_a_block(self.chunks)
        elif library is EPIBATCH:
            episodes = build_all(library, self.chunks)
        else:
            episodes = [self._build(chunk) for chunk in self.chunks]
        record.places = snapshot_keys(episodes)
        module = built(library, self.spaces, self.layout, self.max_seq_len, multi=True)
        shared: dict[str, Any] = {}
        call = {"rl_module": module, "episodes": episodes, "explore": None, "shared_data": shared}
        if way == "alone":
            batch = alone(pieces, self.spaces, record, {}, call)
        elif way == "two pipelines":
            batch, at = {}, [type(piece).__name__ for piece in pieces].index("BatchIndividualItems")
            for part in (pieces[:at], pieces[at:]):
                batch = library.learner.LearnerConnectorPipeline(*self.spaces, connectors=part)(batch=batch, **call)
        else:
            batch = library.learner.LearnerConnectorPipeline(*self.spaces, connectors=pieces)(batch={}, **call)
        record.finish(batch, episodes, shared)
        if way == "overriding" and library is EPIBATCH:
            assert record.stages.keys() >= stages_of(pieces) != set()
        if self.ppo:
            record.values = module["default_policy"].compute_values(batch["default_policy"])
        return record

    def _build(self, chunk: BatchChunk) -> Any:
        changed: dict[str, Any] = {}
        if self.float_rewards:
            changed["rewards"] = [float(reward) for reward in chunk.columns["rewards"]]
        if self.swapped:
            changed["observations"] = list(chunk.columns["observations"])
            changed["observations"][chunk.lookback] = changed["observations"][-1]
        return chunk.build(RLLIB, **changed)


LAYOUTS, FEWEST = st.sampled_from(["", "", *STATES]), st.sampled_from([1, 1, 1, 0])
FRONTS = st.lists(st.sampled_from(sorted(LEARNER)), max_size=2, unique=True).map(
    lambda front: tuple(sorted(front, key="swapped_observations".__ne__))  # it comes first
)
PLACES = st.sampled_from(["BatchIndividualItems", "NumpyToTensor"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "max_seq_len": st.integers(1, 20),
    "front": FRONTS,
    "columns": st.lists(st.sampled_from(sorted(COLUMNS)), max_size=1).map(tuple),
    "batched": st.lists(st.tuples(st.sampled_from(sorted(BATCHED)), PLACES), max_size=1).map(tuple),
    "seed": st.integers(0, 1000),
}
DISCOUNTS = st.sampled_from([(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])


@st.composite
def learner_calls(draw: st.DrawFn, ppo: bool, *, alone: bool = False, **fixed: Any) -> LearnerCall:
    """Calls of learner pipelines.

    Args:
        draw: Hypothesis's.
        ppo: whether PPO's two pieces are there.
        alone: whether pieces are called without a pipeline, which gives chunks their keys and asks for steps.
        **fixed: fields that are not drawn.
    """
    layout, fewest = draw(LAYOUTS), draw(FEWEST)
    own_spaces = draw(spaces), draw(spaces)
    chunks = draw(chunk_lists(own_spaces, layout, fewest=fewest))
    drawn = {name: draw(own) for name, own in FIELDS.items() if name not in fixed}
    drawn["ppo"] = draw(DISCOUNTS) if ppo else None
    if ppo:  # its first piece comes before the users', so that RLlib cannot be given other observations
        drawn["front"] = tuple(name for name in drawn.get("front", ()) if name != "swapped_observations")
    return LearnerCall(chunks, layout, **{**drawn, **fixed})


# -- listed differences ----------------------------------------------------------------------------


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
    return Rows(np.array(at), counts, real, values, *map(column, ("rewards", "terminateds")))


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
    ours = gae_rows(situation.call, situation.ours)
    own = chunkwise(ours, situation.call.ppo)
    some = own[ours.real]
    return ours.fits(mismatch.ours, np.where(ours.real, (own - some.mean()) / max(1e-4, some.std()), 0))


@difference("bootstrap-targets", LearnerSituation)
def targets_of_bootstrap_rows(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib's bootstrap rows have targets as if the next chunk followed; here it is the row's own value."""
    if situation.call.ppo is None or mismatch.path[1:] != ("default_policy/value_targets",) or not same_form(mismatch):
        return False
    ours = gae_rows(situation.call, situation.ours)
    return ours.fits(mismatch.ours, np.where(ours.real, chunkwise(ours, situation.call.ppo), 0) + ours.values)


def as_without_them(call: LearnerCall, ours: Outcome) -> bool:
    """Whether ours gives what it does without the chunks that have no steps, and that is as it should be.

    RLlib's pieces, called alone, fail then or have a row for some columns of such a chunk.
    """
    kept = tuple(chunk for chunk in call.chunks if chunk.length)
    if not kept:
        return ours.kind != "" or all(is_empty(leaf) for leaf in ours.value.final.values())
    fewer = replace(call, chunks=kept)
    hold_learner(fewer, ("alone",))
    without = outcome(lambda: fewer.record(EPIBATCH, "alone"))
    if ours.error or without.error:
        return type(ours.error) is type(without.error)
    return same_flat(ours.value.final, without.value.final)


def is_empty(leaf: Any) -> bool:
    """Whether a leaf of a snapshot has no rows."""
    return leaf.startswith("empty ") if isinstance(leaf, str) else not len(leaf)


def hold_learner(call: LearnerCall, ways: tuple[str, ...] = WAYS) -> list[bool]:
    """Run a call in RLlib and in ways of ours; what differs must be listed. Whether each way was equal."""
    theirs = outcome(lambda: call.record(RLLIB, "alone" if "alone" in ways else "plain"))
    equal: list[bool] = []
    for way in ways:
        ours = outcome(lambda way=way: call.record(EPIBATCH, way))
        if way == "alone" and not all(chunk.length for chunk in call.chunks):
            assert listed("no-steps") and as_without_them(call, ours), f"no-steps is not listed for {call}"
            equal.append(False)
            continue
        situation = LearnerSituation(call, way, ours.value, theirs.value)
        equal.append(settle(theirs, ours, situation, record_mismatches))
    return equal
