"""Random calls of learner pipelines, and what both libraries make of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from hypothesis import strategies as st

from batches.chunks import STATES, BatchChunk, build_all, built, chunk_lists, in_a_block
from batches.stages import Record, alone, check_overriding, overriding, snapshot_keys, watched
from batches.user_pieces import BATCHED, COLUMNS, LEARNER, Body, user_piece
from oracle.libraries import EPIBATCH, RLLIB, Library
from oracle.pieces import LEARNER as DEFAULTS
from oracle.pieces import PPO, pieces_of
from oracle.spaces import spaces

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
            inert = {"swapped_observations"} if self.swapped else set()
            return [user_piece(library, table[name], name in inert)(seed=self.seed) for name in names]

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
            pieces = overriding(pieces, record)
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
            check_overriding(pieces, record)
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
