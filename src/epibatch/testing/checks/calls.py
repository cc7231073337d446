"""Checks that a piece runs, and has the same output for the same episodes in every form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epibatch.core.errors import EpisodeError
from epibatch.core.structs import flatten, map_struct
from epibatch.episodes.single_agent_episode import SingleAgentEpisode
from epibatch.testing.column_rows import column_rows
from epibatch.testing.comparing import difference, rows_of
from epibatch.testing.contract import RUNS, Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal, plain_neighbour, same_numbers
from epibatch.testing.stage import growing, growing_block

__all__ = [
    "empty_call",
    "episode_order",
    "hidden_state",
    "independent_pieces",
    "one_step_episodes",
    "plain_neighbours",
    "row_by_row",
    "runs",
    "same_seed",
    "vector_episodes",
]

_SEVERAL = "batches of several agents have rows of the agents of each module"
_DRAWS = "it draws random numbers"
_MEMORY = "what it has seen before may change it"
_ROWS = (*RUNS, "row_by_row")


@contract_check(after=RUNS[:2])
def runs(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It runs in its pipeline on one episode, on several, and on chunks that go on from others."""
    rehearsal.base()
    if rehearsal.acting:
        one = growing(rehearsal.recording.played()[:1])
        rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), one)
        return
    first, second = rehearsal.recording.episodes(), rehearsal.recording.episodes(1)
    for episodes in ([first[0]], second, [*rehearsal.recording.episodes(), *rehearsal.recording.episodes(1)]):
        rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), episodes)
    yield from ()


@contract_check(after=RUNS[:3])
def independent_pieces(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Two pieces have nothing to do with each other."""
    if rehearsal.draws:
        yield NotApplied("it draws random numbers")
        return
    with same_numbers():
        alone = rehearsal.outputs(rehearsal.pipeline(rehearsal.make()))
    one, other = rehearsal.make(), rehearsal.make()
    first, second = rehearsal.pipeline(one), rehearsal.pipeline(other)
    rehearsal.outputs(second, rehearsal.later())
    with same_numbers():
        unlike = difference(alone, rehearsal.outputs(first))
    if unlike:
        yield Fault(
            "a piece, after another of its class ran",
            "what it gives alone",
            unlike,
            "keep what it remembers in self, set in __init__, and not in the class, the module or a default argument; "
            "draw random numbers from a generator in self, which `seed` sets",
        )


@contract_check(after=RUNS[:4])
def same_seed(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A new piece with the same seed gives the same, bit for bit."""
    unlike = difference(rehearsal.base(), rehearsal.outputs(rehearsal.pipeline(rehearsal.make())))
    if unlike:
        yield Fault(
            "two new pieces, the same episodes and seed",
            "the same twice",
            unlike,
            "draw random numbers from a generator of its own, np.random.default_rng(seed), made in seed(self, seed)",
        )


@contract_check(after=RUNS[:5])
def hidden_state(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Without a state to save, it gives the same for the same episodes however often it ran."""
    if rehearsal.draws or rehearsal.has_state():
        yield NotApplied("it draws random numbers" if rehearsal.draws else "it has a state, which is saved")
        return
    pipeline = rehearsal.pipeline(rehearsal.make())
    rehearsal.outputs(pipeline, rehearsal.later())
    unlike = difference(rehearsal.base(), rehearsal.outputs(pipeline))
    if unlike:
        yield Fault(
            "the same episodes, after others",
            "what a new piece gives",
            unlike,
            "let get_state give, and set_state take, what it remembers",
        )


@contract_check(once=True)
def row_by_row(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A transform of columns makes each row of one row alone."""
    piece = rehearsal.make()
    if not getattr(piece, "transforms", ()):
        yield NotApplied("it is no transform of columns")
        return
    if rehearsal.draws or rehearsal.has_state():
        yield NotApplied(_DRAWS if rehearsal.draws else _MEMORY)
        return
    rehearsal.outputs(rehearsal.pipeline(piece))
    for path, number, rows in column_rows(rehearsal, piece):
        if rows is None:
            yield NotApplied(f"recorded episodes have no {path.column!r}")
            return
        own = map_struct(np.array, rows)
        among = piece.changed(path, map_struct(np.copy, own), piece.transform)
        count = len(flatten(own)[0][0])
        alone = [
            piece.changed(path, map_struct(lambda leaf, i=i: leaf[i : i + 1], own), piece.transform)
            for i in range(count)
        ]
        unlike = difference(among, map_struct(lambda *leaves: np.concatenate(leaves), *alone), near=True)
        if unlike:
            where = f"{rehearsal.name}.transform, column {str(path)!r} of episode {number}"
            do = "let a row follow from that row alone; write an EpisodeTransform, or a ColumnarPiece, of what does not"
            yield Fault(where, "what it makes of each row by itself", unlike, do)
            return


@contract_check()
def empty_call(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A call without episodes gives back the batch; one for training may be refused by name."""
    piece = rehearsal.make()
    if (
        rehearsal.several
        or rehearsal.side == "module_to_env"
        or piece.reads
        or "episodes" not in (piece.input_layouts or ("episodes",))
    ):
        yield NotApplied("it works on columns, which a call without episodes has not")
        return
    rehearsal.pipeline(piece)
    try:
        out = piece(rl_module=None, batch={}, episodes=[], explore=False, shared_data={}, metrics=None)
    except EpisodeError:
        if rehearsal.acting:
            raise
        return
    if not isinstance(out, dict):
        yield Fault(f"{rehearsal.name}.__call__", "the batch", f"{type(out).__name__} {out!r}", "return batch")


@contract_check(sides=("learner",), after=_ROWS)
def one_step_episodes(rehearsal: Rehearsal) -> Iterator[Finding]:
    """An episode of one step has the same rows alone as among longer ones."""
    if rehearsal.several or rehearsal.draws or rehearsal.has_state():
        yield NotApplied(_SEVERAL if rehearsal.several else _DRAWS if rehearsal.draws else _MEMORY)
        return
    among = rehearsal.recording.episodes()
    place = [len(episode) for episode in among].index(1)
    (batch,) = rehearsal.base()
    rows = rows_of(batch, rehearsal.counts(among))
    alone = [rehearsal.recording.episodes()[place]]
    (batch,) = rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), alone)
    own = rows_of(batch, rehearsal.counts(alone))
    if rows is None or own is None:
        yield NotApplied("rows of its batches are not those of one step after the other")
        return
    unlike = difference(rows[place], own[0], near=True)
    if unlike:
        do = "let an episode's rows follow from that episode alone"
        yield Fault("an episode of one step", "the rows it has among others", unlike, do)


@contract_check()
def plain_neighbours(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It gives the same between pieces that take plain dicts as between columnar ones."""
    pipeline = rehearsal.pipeline(rehearsal.make(), [plain_neighbour()], [plain_neighbour()])
    unlike = difference(rehearsal.base(), rehearsal.outputs(pipeline))
    if unlike:
        yield Fault(
            "between plain pieces",
            "what it gives between columnar ones",
            unlike,
            "let it go by what columns hold, and not by how they are handed over",
        )


@contract_check()
def vector_episodes(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It gives the same for a runner's episodes as for a list of the same ones."""
    if rehearsal.several:
        yield NotApplied(_SEVERAL)
        return
    recording = rehearsal.recording
    if rehearsal.acting:
        listed, block = rehearsal.base(), growing_block(recording.played())
    else:
        block = recording.block()
        copies = [SingleAgentEpisode.from_state(one.get_state()) for one in block]
        listed = rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), copies)
    unlike = difference(listed, rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), block))
    if unlike:
        yield Fault(
            "a runner's VectorEpisodes",
            "what it gives for a list of them",
            unlike,
            "gather columns with connectors.gather, which knows both, or override __call__ in place of run",
        )


@contract_check(after=_ROWS)
def episode_order(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Episodes in another order give the same rows in that order."""
    if rehearsal.several or rehearsal.draws or rehearsal.has_state():
        yield NotApplied(_SEVERAL if rehearsal.several else _DRAWS if rehearsal.draws else _MEMORY)
        return
    recording = rehearsal.recording
    if rehearsal.acting:
        streams = recording.played()
        order = list(range(len(streams)))[::-1]
        turned: Any = growing([streams[i] for i in order])
        counts = [1] * len(streams)
    else:
        episodes = recording.episodes()
        order = list(range(len(episodes)))[::-1]
        turned = [episodes[i] for i in order]
        counts = rehearsal.counts(episodes)
    for step, (one, other) in enumerate(
        zip(rehearsal.base(), rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), turned))
    ):
        rows, turned_rows = rows_of(one, counts), rows_of(other, [counts[i] for i in order])
        if rows is None or turned_rows is None:
            yield NotApplied("rows of its batches are not those of one episode after the other")
            return
        unlike = _unlike_rows(rows, turned_rows, order)
        if unlike:
            where = f"acting step {step}, episodes in turned order" if rehearsal.acting else "episodes in turned order"
            do = "let an episode's rows follow from that episode alone"
            yield Fault(where, "the same rows in that order", unlike, do)
            return


def _unlike_rows(rows: list[dict[str, Any]], turned: list[dict[str, Any]], order: list[int]) -> str:
    for place, i in enumerate(order):
        unlike = difference(rows[i], turned[place], near=True)
        if unlike:
            return f"episode {i} {unlike}"
    return ""
