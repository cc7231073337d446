"""Several random chunks of one call, how they lie in a block, and networks without weights for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from epibatch.episodes import VectorEpisodes
from epibatch.episodes._storage.block import Block
from epibatch.episodes._storage.chunk import Chunk as BlockChunk
from oracle.compare import leaves
from oracle.episodes import ENDS, EXTRAS, REWARDS, Chunk
from oracle.libraries import EPIBATCH, Library
from oracle.modules import build_module, module_class

STATES: dict[str, Any] = {
    "": {},
    "h": {"h": (3,)},
    "h and c": {"h": (2,), "c": (2,)},
    "scalar": {"h": ()},
    "matrix": {"h": (2, 3)},
    "nested": {"one": {"h": (2,), "c": (1,)}, "two": (1, 2)},
}
"""Layouts of recurrent states: names, and the shape of each leaf."""

IDS = ("e", "f", "e_9", "g_h", "k", "m")
"""Ids that chunks draw from; RLlib treats those with an underscore in a way of its own."""


def states(layout: Any, make: Any) -> Any:
    """A structure like a layout, with `make(shape)` in place of each shape."""
    return {name: states(own, make) if isinstance(own, dict) else make(own) for name, own in layout.items()}


COUNTS = st.sampled_from([1, 1, 2, 2, 3, 3, 6])
LONGEST = st.sampled_from([2, 4, 4, 7, 7, 12, 60])
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "reward": st.sampled_from(REWARDS),
    "extras": st.sets(st.sampled_from(EXTRAS), max_size=3).map(lambda names: tuple(sorted(names))),
}
STARTED = st.sampled_from([0, 0, 0, 1, 2, 5])
LOOKBACKS = [st.integers(0, most) for most in range(4)]
SOME_IDS, ORDERS_OF_IDS = st.sampled_from(IDS), st.permutations(IDS)
ANY_END, ONE_IN_EIGHT, SEEDS = st.sampled_from((*ENDS, "both")), st.integers(0, 7), st.integers(0, 2**20)


@dataclass(frozen=True)
class BatchChunk(Chunk):
    """A chunk whose recurrent states have the layout of that name in `STATES`."""

    layout: str = ""
    objects: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        rng, total = np.random.default_rng((self.seed, 1)), self.lookback + self.length
        extras = self.columns["extra_model_outputs"]
        if self.layout:
            extras["state_out"] = [
                states(STATES[self.layout], lambda shape: rng.standard_normal(shape).astype(np.float32) + np.float32(0))
                for _ in range(total)
            ]
        if self.objects:
            extras["notes"] = [str(n) for n in rng.integers(0, 3, total)]


@st.composite
def chunk_lists(
    draw: st.DrawFn,
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    layout: str,
    *,
    fewest: int = 0,
    ongoing: bool = False,
    unique: bool = False,
    objects: bool = True,
) -> tuple[BatchChunk, ...]:
    """1 to 6 chunks with the same columns.

    Args:
        draw: Hypothesis's.
        spaces: of observations and actions.
        layout: of the recurrent states.
        fewest: steps of the shortest chunk.
        ongoing: whether all episodes are running.
        unique: whether no two chunks are of one episode.
        objects: whether there may be an output of strings.
    """
    count = draw(COUNTS)
    ids = draw(ORDERS_OF_IDS)[:count] if unique else [draw(SOME_IDS) for _ in range(count)]
    common = {
        **{name: draw(own) for name, own in COMMON.items()},
        "objects": objects and draw(ONE_IN_EIGHT) == 7,
        "layout": layout,
    }
    longest = draw(LONGEST)
    seed = draw(SEEDS)
    chunks = []
    for i, id_ in enumerate(ids):
        started = draw(STARTED)
        chunk = {
            "length": draw(st.integers(fewest, longest)),
            "t_started": started,
            "lookback": draw(LOOKBACKS[min(started, 3)]),
            "end": "running" if ongoing else draw(ANY_END),
        }
        chunks.append(BatchChunk(*spaces, id_=id_, seed=seed + i, **common, **chunk))
    return tuple(chunks)


def build_all(library: Any, chunks: Sequence[Chunk], *, numpy: bool = True) -> list[Any]:
    """Episodes of a library."""
    return [chunk.build(library, numpy=numpy) for chunk in chunks]


def in_a_block(chunks: Sequence[Chunk]) -> VectorEpisodes:
    """The chunks as views of one block: two to an environment, every other one with its last observation apart."""
    episodes = build_all(EPIBATCH, chunks)
    envs = (len(chunks) + 1) // 2
    totals = [chunk.lookback + chunk.length for chunk in chunks]
    lows = [0 if i < envs else totals[i - envs] + 1 for i in range(len(chunks))]
    rows = max(low + total for low, total in zip(lows, totals)) + 1
    block = Block(envs, rows, rows)
    places = [(low, i % envs, chunk.lookback, chunk.length) for i, (low, chunk) in enumerate(zip(lows, chunks))]
    for name in ("observations", "actions", "rewards"):
        buffers = [getattr(episode, name) for episode in episodes]
        _fill(getattr(block, name), buffers, places, rows, int(name == "observations"))
    for name in episodes[0].extra_model_outputs:
        block.extras[name] = block.new_column()
        _fill(block.extras[name], [episode.extra_model_outputs[name] for episode in episodes], places, rows, 0)
    out = []
    for i, (chunk, (low, env, lookback, length)) in enumerate(zip(chunks, places)):
        spaces = (chunk.observation_space, chunk.action_space)
        own = BlockChunk(block, env, low, low + lookback, spaces, chunk.id_, chunk.t_started)
        own.finish(low + lookback + length, *(chunk.end in (kind, "both") for kind in ENDS[1:]))
        for row, info in enumerate(chunk.columns["infos"]):
            block.own_infos[low + row, env] = info
        if i % 2 and chunk.end != "running":
            own.tail, own.tail_infos = episodes[i].observations.last(), chunk.columns["infos"][-1]
        out.append(own)
    return VectorEpisodes(block, out)


def _fill(column: Any, buffers: list[Any], places: list[Any], rows: int, more: int) -> None:
    """Write every chunk's rows, lookback included, to its place in a block's column."""
    known = next((buffer for buffer in buffers if buffer.len_incl_lookback()), None)
    if known is None:
        return
    column.form = known.form
    envs = 1 + max(env for _, env, _, _ in places)
    for buffer, (low, env, lookback, length) in zip(buffers, places):
        if not buffer.len_incl_lookback():
            continue
        leaves = buffer.rows(-lookback, length + more)
        if not column.leaves:
            column.leaves = [np.zeros((rows, envs, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for i, leaf in enumerate(leaves):
            column.leaves[i] = column.leaves[i].astype(np.result_type(leaf.dtype, column.leaves[i].dtype))
            column.leaves[i][low : low + lookback + length + more, env] = leaf


@cache
def _class(library: Library) -> Any:
    class Module(module_class(library)):  # type: ignore[misc]
        def get_initial_state(self) -> Any:
            return states(STATES[self.model_config["layout"]], lambda shape: np.full(shape, -1.5, np.float32))

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            rewards = batch["rewards"]
            parts = [x.double().reshape(*rewards.shape, -1).mean(-1) for x in leaves(batch["obs"])]
            return (sum(parts) * 0.01).float()

    return Module


def built(library: Library, spaces: Any, layout: str, max_seq_len: int = 20, *, multi: bool = False) -> Any:
    """A module; with `multi` inside a MultiRLModule as `default_policy`, as a Learner holds it.

    Args:
        library: whose.
        spaces: of observations and actions.
        layout: of its state, a name in `STATES`.
        max_seq_len: steps of a sequence.
        multi: whether it is one of several modules.
    """
    settings = {"layout": layout, "cls": _class(library)}
    return build_module(library, *spaces, state=int(layout != ""), max_seq_len=max_seq_len, multi=multi, **settings)
