"""Checks that a piece runs, and has the same output for the same episodes in every form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epibatch.connectors.columnar_piece import Piece
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from epibatch.core.columns import Columns
from epibatch.core.errors import EpisodeError
from epibatch.core.structs import flatten, map_struct
from epibatch.episodes.single_agent_episode import SingleAgentEpisode
from epibatch.testing.comparing import rows_of
from epibatch.testing.contract import RUNS, ContractFault, NotApplied, contract_check, require_equal
from epibatch.testing.harness import PieceHarness, same_random_numbers
from epibatch.testing.recorded_episodes import MultiAgentRecording, growing_block, growing_episodes

_SEVERAL = "batches of several agents have rows of the agents of each module"
_DRAWS = "it draws random numbers"
_MEMORY = "what it has seen before may change it"
_NOT_BY_EPISODE = "rows of its batches are not those of one episode after the other"
_ROWS = (*RUNS, "row_by_row")
_AGENTS = ("left", "right")


@contract_check(after=RUNS[:2])
def runs(harness: PieceHarness) -> None:
    """It runs in its pipeline on one episode, on several, and on chunks that go on from others."""
    harness.base()
    recording = harness.recording
    if harness.acting:
        harness.outputs(episodes=growing_episodes(recording.for_acting()[:1]))
        return
    first, second = recording.episodes(), recording.episodes(1)
    for episodes in ([first[0]], second, [*recording.episodes(), *recording.episodes(1)]):
        harness.outputs(episodes=episodes)


@contract_check(after=RUNS[:3])
def independent_pieces(harness: PieceHarness) -> None:
    """Two pieces have nothing to do with each other."""
    if harness.draws:
        raise NotApplied(_DRAWS)
    with same_random_numbers():
        alone = harness.outputs()
    first, second = harness.pipeline(), harness.pipeline()
    harness.outputs(second, harness.later())
    with same_random_numbers():
        require_equal(
            alone,
            harness.outputs(first),
            "a piece, after another of its class ran",
            "what it gives alone",
            "keep what it remembers in self, set in __init__, and not in the class, the module or a default argument; "
            "draw random numbers from a generator in self, which `seed` sets",
        )


@contract_check(after=RUNS[:4])
def same_seed(harness: PieceHarness) -> None:
    """A new piece with the same seed gives the same, bit for bit."""
    require_equal(
        harness.base(),
        harness.outputs(),
        "two new pieces, the same episodes and seed",
        "the same twice",
        "draw random numbers from a generator of its own, np.random.default_rng(seed), made in seed(self, seed)",
    )


@contract_check(after=RUNS[:5])
def hidden_state(harness: PieceHarness) -> None:
    """Without a state to save, it gives the same for the same episodes however often it ran."""
    if harness.draws or harness.has_state():
        raise NotApplied(_DRAWS if harness.draws else "it has a state, which is saved")
    pipeline = harness.pipeline()
    harness.outputs(pipeline, harness.later())
    require_equal(
        harness.base(),
        harness.outputs(pipeline),
        "the same episodes, after others",
        "what a new piece gives",
        "let get_state give, and set_state take, what it remembers",
    )


@contract_check(once=True)
def row_by_row(harness: PieceHarness) -> None:
    """A transform of columns makes each row of one row alone."""
    piece = harness.make()
    if not getattr(piece, "transforms", ()):
        raise NotApplied("it is no transform of columns")
    if harness.draws or harness.has_state():
        raise NotApplied(_DRAWS if harness.draws else _MEMORY)
    harness.outputs(harness.pipeline(piece))
    for path, number, rows in recorded_rows(harness, piece):
        arrays = map_struct(np.array, rows)
        count = len(flatten(arrays)[0][0])
        alone = [
            piece.changed(path, map_struct(lambda leaf, i=i: leaf[i : i + 1], arrays), piece.transform)
            for i in range(count)
        ]
        require_equal(
            map_struct(lambda *leaves: np.concatenate(leaves), *alone),
            piece.changed(path, map_struct(np.copy, arrays), piece.transform),
            f"{harness.name}.transform, column {str(path)!r} of episode {number}",
            "what it makes of each row by itself",
            "let a row follow from that row alone; write an EpisodeTransform, or a Piece, of what does not",
            near=True,
        )


def recorded_rows(harness: PieceHarness, piece: Any) -> Iterator[tuple[Any, int, Any]]:
    """Yield the rows of each address that a `ColumnTransform` changes, in each episode of the first recorded call.

    Args:
        harness: Has the recorded episodes.
        piece: The transform.

    Yields:
        The address, the episode's number and its rows.

    Raises:
        NotApplied: Recorded episodes have no such column.
    """
    for path in piece.paths:
        for number, episode in enumerate(harness.recording.episodes()):
            table = {Columns.OBS: episode.observations, Columns.NEXT_OBS: episode.observations}
            table |= {Columns.ACTIONS: episode.actions, Columns.REWARDS: episode.rewards, **episode.extra_model_outputs}
            if path.column not in table:
                raise NotApplied(f"recorded episodes have no {path.column!r}")
            yield path, number, table[path.column].data


@contract_check()
def empty_call(harness: PieceHarness) -> None:
    """A call without episodes gives back the batch; one for training may be refused by name."""
    piece = harness.make()
    reads_columns = piece.reads or "episodes" not in (piece.input_layouts or ("episodes",))
    if harness.multi_agent or harness.side == "module_to_env" or reads_columns:
        raise NotApplied("it works on columns, which a call without episodes has not")
    harness.pipeline(piece)
    try:
        out = piece(rl_module=None, batch={}, episodes=[], explore=False, shared_data={}, metrics=None)
    except EpisodeError:
        if harness.acting:
            raise
        return
    if not isinstance(out, dict):
        raise ContractFault(f"{harness.name}.__call__", "the batch", f"{type(out).__name__} {out!r}", "return batch")


@contract_check(sides=("learner",), after=_ROWS)
def one_step_episodes(harness: PieceHarness) -> None:
    """An episode of one step has the same rows alone as among longer ones."""
    _require_rows_by_episode(harness)
    among = harness.recording.episodes()
    place = [len(episode) for episode in among].index(1)
    alone = [harness.recording.episodes()[place]]
    (batch,), (single_batch,) = harness.base(), harness.outputs(episodes=alone)
    rows, single_rows = rows_of(batch, harness.counts(among)), rows_of(single_batch, harness.counts(alone))
    if rows is None or single_rows is None:
        raise NotApplied("rows of its batches are not those of one step after the other")
    do = "let an episode's rows follow from that episode alone"
    require_equal(rows[place], single_rows[0], "an episode of one step", "the rows it has among others", do, near=True)


def _require_rows_by_episode(harness: PieceHarness) -> None:
    if harness.multi_agent or harness.draws or harness.has_state():
        raise NotApplied(_SEVERAL if harness.multi_agent else _DRAWS if harness.draws else _MEMORY)


@contract_check()
def plain_neighbours(harness: PieceHarness) -> None:
    """It gives the same between pieces that take plain dicts as between columnar ones."""
    pipeline = harness.pipeline(before=[plain_neighbour()], after=[plain_neighbour()])
    require_equal(
        harness.base(),
        harness.outputs(pipeline),
        "between plain pieces",
        "what it gives between columnar ones",
        "let it go by what columns hold, and not by how they are handed over",
    )


def plain_neighbour() -> Any:
    """Return a piece that does nothing and declares nothing, so that its neighbours get plain dicts."""

    class Plain(ConnectorV2):
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            return batch

    return Plain()


@contract_check()
def vector_episodes(harness: PieceHarness) -> None:
    """It gives the same for a runner's episodes as for a list of the same ones."""
    if harness.multi_agent:
        raise NotApplied(_SEVERAL)
    if harness.acting:
        listed, block = harness.base(), growing_block(harness.recording.for_acting(), harness.spaces)
    else:
        block = harness.recording.block()
        copies = [SingleAgentEpisode.from_state(episode.get_state()) for episode in block]
        listed = harness.outputs(episodes=copies)
    require_equal(
        listed,
        harness.outputs(episodes=block),
        "a runner's VectorEpisodes",
        "what it gives for a list of them",
        "gather columns with connectors.gather, which knows both, or override __call__ in place of run",
    )


@contract_check(after=_ROWS)
def episode_order(harness: PieceHarness) -> None:
    """Episodes in another order give the same rows in that order."""
    _require_rows_by_episode(harness)
    if harness.acting:
        steps = harness.recording.for_acting()
        counts = [1] * len(steps)
        turned: Any = growing_episodes(steps[::-1])
    else:
        episodes = harness.recording.episodes()
        counts, turned = harness.counts(episodes), episodes[::-1]
    for step, (batch, turned_batch) in enumerate(zip(harness.base(), harness.outputs(episodes=turned))):
        rows, turned_rows = rows_of(batch, counts), rows_of(turned_batch, counts[::-1])
        if rows is None or turned_rows is None:
            raise NotApplied(_NOT_BY_EPISODE)
        where = f"acting step {step}, episodes in turned order" if harness.acting else "episodes in turned order"
        do = "let an episode's rows follow from that episode alone"
        require_equal(rows, turned_rows[::-1], where, "the same rows in that order", do, near=True, prefix="episode ")


@contract_check(after=_ROWS)
def several_agents(harness: PieceHarness) -> None:
    """An agent among several has the rows that it has alone."""
    if not isinstance(harness.piece, (Piece, SingleAgentObservationPreprocessor)):
        raise NotApplied("it is a plain piece, which may be written for one agent")
    if harness.draws:
        raise NotApplied(_DRAWS)
    if harness.multi_agent:
        raise NotApplied("it is tried on several agents in every check")
    if harness.with_module:
        raise NotApplied("it works on a module's tensors, which are those of one module at a time")
    recording = MultiAgentRecording(dict.fromkeys(_AGENTS, harness.recording), lambda agent_id, episode: agent_id)

    def shown() -> Any:
        return growing_episodes(recording.for_acting()) if harness.acting else iter([recording.episodes()])

    pipeline = harness.pipeline_of_agents(_AGENTS, recording.mapping)
    together = [harness.call(pipeline, episodes) for episodes in shown()]
    for number, agent in enumerate(_AGENTS):
        alone = harness.pipeline()
        for step, (batch, episodes) in enumerate(zip(together, shown())):
            require_equal(
                harness.call(alone, [episode.agent_episodes[agent] for episode in episodes]),
                batch.get(agent),
                "an agent among several",
                "the rows it has alone",
                "go through single_agent_episode_iterator (in training with agents_that_stepped_only=False), and keep "
                "apart what belongs to different agents",
                near=True,
                prefix=f"agent {number}, call {step}: ",
            )
