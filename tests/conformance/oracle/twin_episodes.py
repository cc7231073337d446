"""The same episode in both libraries; ours as one that owns its columns, or as a view into a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from epibatch.episodes.vector_recorder import VectorRecorder
from oracle.columns import each, stack
from oracle.episodes import Chunk, chunks
from oracle.libraries import EPIBATCH, RLLIB
from oracle.spaces import rows

STORAGES = ("own", "block", "tail")


def recorded(chunk: Chunk, *, tail: bool = False) -> Any:
    """A chunk as a view into the block of a vector of environments that it was recorded in.

    Args:
        chunk: What happened, which `can_be_recorded`.
        tail: Record it as from environments that are reset in the same step: the last observation of an ended
            episode lies apart from the block.
    """
    autoreset = "same_step" if tail else "next_step"
    recorder = VectorRecorder(1, chunk.observation_space, chunk.action_space, autoreset=autoreset, capacity=8)
    columns, extras = chunk.columns, chunk.columns["extra_model_outputs"]
    before = chunk.t_started - chunk.lookback  # steps that the chunk has forgotten
    forgotten = rows(chunk.observation_space, np.random.default_rng(0), before)
    observations = [*forgotten, *columns["observations"]]
    recorder.reset(_one(observations[0]), _info(-before))
    total = chunk.lookback + chunk.length
    for i in range(-before, total):
        known = max(i, 0)
        ended = i == total - 1 and chunk.end != "running"
        outputs = {key: _one(values[known]) for key, values in extras.items()}
        action = _one(columns["actions"][known])
        flags = [np.array([ended and chunk.end == kind]) for kind in ("terminated", "truncated")]
        reward = np.array([columns["rewards"][known]])
        after = _one(observations[i + 1 + before])
        last = {"final_observations": after} if ended and tail else {}
        reset = _info(99) if ended and tail else None
        if i == total - chunk.length - 1 and chunk.t_started:
            recorder.step(action, reward, *flags, after, _info(i + 1), outputs)
            recorder.harvest(chunk.lookback)
        else:
            recorder.step(action, reward, *flags, after, _info(i + 1), outputs, reset_infos=reset, **last)
    episode = recorder.harvest(0)[0] if chunk.length else recorder.episodes[0]
    episode.id_ = chunk.id_
    return episode


def _one(row: Any) -> Any:
    """A row as the vector of one environment."""
    return each(lambda leaf: np.asarray(leaf)[None].copy(), row)


def _info(step: int) -> dict[str, Any]:
    return {"step": np.array([step]), "_step": np.array([True])}


def can_be_recorded(chunk: Chunk) -> bool:
    """Whether a vector of environments can have made it: it has steps, and one that ended has its last step."""
    return chunk.length > 0 or (chunk.lookback > 0 and chunk.end == "running")


@dataclass(frozen=True)
class Case:
    """One chunk, and the form in which each library holds it.

    Attributes:
        arrays: whether `to_numpy()` is called on RLlib's.
        storage: `own`, `block` or `tail` (see `recorded`).
    """

    chunk: Chunk
    arrays: bool
    storage: str

    def build(self, *, grows: bool = False) -> tuple[Any, Any]:
        """RLlib's episode and ours.

        Args:
            grows: something will be added to it, which one that is being recorded refuses.
        """
        theirs = self.chunk.build(RLLIB, numpy=self.arrays)
        running = grows and not self.chunk.length
        if self.storage == "own" or running or not can_be_recorded(self.chunk):
            return theirs, self.chunk.build(EPIBATCH)
        return theirs, recorded(self.chunk, tail=self.storage == "tail")


def cases(**keywords: Any) -> st.SearchStrategy[Case]:
    """Chunks in all forms of both libraries; keywords are those of `chunks`."""
    return st.builds(Case, chunks(**keywords), st.booleans(), st.sampled_from(STORAGES))


def rows_of(chunk: Chunk, name: str) -> list[Any]:
    """The rows of a column, by its name or by the key of an extra model output."""
    found = chunk.columns.get(name)
    return chunk.columns["extra_model_outputs"][name] if found is None else found


def buffer_of(episode: Any, name: str) -> Any:
    """An episode's buffer, by the name of its column or by the key of an extra model output."""
    if name in ("observations", "infos", "actions", "rewards"):
        return getattr(episode, name)
    return episode.extra_model_outputs[name]


def columns_of(chunk: Chunk) -> list[str]:
    """The names of its columns and the keys of its extra model outputs."""
    return ["observations", "infos", "actions", "rewards", *chunk.columns["extra_model_outputs"]]


def stacked(chunk_rows: list[Any], name: str) -> Any:
    """The rows as arrays; None if there are none or if they are infos."""
    return stack(chunk_rows) if chunk_rows and name != "infos" else None
