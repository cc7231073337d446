"""Turns nested observations into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, SpaceError, UnknownNameError, nearest
from epibatch.core.spaces import encoding_advice, get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, sorted_leaves, unflatten

from .._engine.agent_copies import no_space
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch, EpisodeColumn
from .._engine.gather import gather
from ..columnar_piece import ObservationRewriter

__all__ = ["FlattenObservations"]


class _Part(NamedTuple):
    """One leaf: its place among the leaves, where its entries go, and for choices their counts and starts."""

    leaf: int
    space: Any
    start: int
    stop: int
    counts: npt.NDArray[np.int64] | None
    firsts: npt.NDArray[np.int64] | None


class FlatRows:
    """Joins the leaves of observations, dict entries by sorted key.

    Discrete and MultiDiscrete leaves become one-hots, all others are flattened and cast.

    Args:
        space: Space of one observation.

    Attributes:
        space: the same.
        size: entries of a row.

    Raises:
        SpaceError: a leaf without a fixed number of entries.

    Examples:
        >>> rows = FlatRows(gym.spaces.Dict(b=gym.spaces.Discrete(2), a=gym.spaces.Box(-1, 1, (2, 1))))
        >>> rows({"b": np.array([1, 0]), "a": np.full((2, 2, 1), 0.5)})
        array([[0.5, 0.5, 0. , 1. ],
               [0.5, 0.5, 1. , 0. ]], dtype=float32)
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        leaves, self._form = flatten(get_base_struct_from_space(space))
        self._parts: list[_Part] = []
        self.size = 0
        for i in sorted_leaves(unflatten(self._form, range(len(leaves)))):
            counts, firsts = _choices(leaves[i])
            width = int(counts.sum()) if counts is not None else _entries(leaves[i], space)
            self._parts.append(_Part(i, leaves[i], self.size, self.size + width, counts, firsts))
            self.size += width

    def __call__(self, observations: Any) -> Any:
        """Return rows `[n, size]` of observations with leaves `[n, ...]`, arrays or tensors; a copy.

        Of tensors no values are checked.

        Raises:
            ColumnError: the nesting differs from that of the space.
            SpaceError: a value is not in its Discrete space, or a leaf has another shape.
        """
        leaves = flatten_like(self._form, observations)
        if leaves and hasattr(leaves[0], "detach"):
            return self._of_tensors(leaves)
        leaves = [np.asarray(leaf) for leaf in leaves]
        if self._form is None and self._parts[0].counts is None:
            return self._of_one(leaves[0])
        out = np.zeros((len(leaves[0]) if leaves else 0, self.size), np.float32)
        for part in self._parts:
            leaf = leaves[part.leaf]
            _check_shape(part, leaf)
            if part.counts is None:
                out[:, part.start : part.stop] = leaf.reshape(len(leaf), part.stop - part.start)
            else:
                _set_one_hot(out, part, leaf)
        return out

    def _of_tensors(self, leaves: Sequence[Any]) -> Any:
        import torch

        rows = []
        for part in self._parts:
            flat = leaves[part.leaf].reshape(leaves[part.leaf].shape[0], -1)
            if part.counts is None or part.firsts is None:
                rows.append(flat.float())
                continue
            for entry, (first, count) in enumerate(zip(part.firsts.tolist(), part.counts.tolist())):
                values = torch.arange(first, first + count, device=flat.device)
                rows.append((flat[:, entry, None] == values).float())
        return torch.cat(rows, 1)

    def _of_one(self, leaf: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The same of rows that are one array of numbers."""
        _check_shape(self._parts[0], leaf)
        return leaf.reshape(len(leaf), self.size).astype(np.float32)


def _check_shape(part: _Part, leaf: npt.NDArray[Any]) -> None:
    if leaf.shape[1:] != tuple(part.space.shape):
        raise _unfit(part.space, f"shape {leaf.shape[1:]} per row")


def _set_one_hot(out: npt.NDArray[np.float32], part: _Part, leaf: npt.NDArray[Any]) -> None:
    counts, firsts = part.counts, part.firsts
    if counts is None or firsts is None:
        return
    chosen = leaf.reshape(len(leaf), len(counts)).astype(np.int64) - firsts
    if leaf.dtype.kind not in "iub" or ((chosen < 0) | (chosen >= counts)).any():
        raise _unfit(part.space, f"values from {leaf.min()} to {leaf.max()} of type {leaf.dtype}")
    out[np.arange(len(leaf))[:, None], part.start + np.cumsum(counts) - counts + chosen] = 1.0


def _choices(leaf: Any) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]:
    """Return the number of values of each entry of a Discrete or MultiDiscrete leaf, and the first of them."""
    if isinstance(leaf, gym.spaces.Discrete):
        return np.array([leaf.n], np.int64), np.array([leaf.start], np.int64)
    if isinstance(leaf, gym.spaces.MultiDiscrete):
        firsts = np.broadcast_to(getattr(leaf, "start", 0), leaf.shape)
        return leaf.nvec.reshape(-1).astype(np.int64), firsts.reshape(-1).astype(np.int64)
    return None, None


def _entries(leaf: Any, space: Any) -> int:
    if isinstance(leaf, (gym.spaces.Box, gym.spaces.MultiBinary)):
        return int(np.prod(leaf.shape))
    raise SpaceError(
        f"flattening {space}",
        expected="Box, Discrete, MultiDiscrete and MultiBinary spaces, in Dicts and Tuples",
        found=f"{leaf}",
        do=f"{encoding_advice(leaf)}, or leave it out with keys_to_remove",
    )


def _unfit(space: Any, found: str) -> SpaceError:
    return SpaceError(
        "flattening observations",
        expected=f"values of {space}",
        found=found,
        do="correct the environment's observations, or its observation_space",
    )


class FlattenObservations(ObservationRewriter):
    """Joins all parts of an observation into one float32 vector.

    Dict entries go by sorted key; Discrete and MultiDiscrete parts become one-hots, Boxes and MultiBinary are
    flattened. For acting it writes the newest observations back into the episodes, so that the learner sees
    vectors too. As a learner piece it adds column `obs` and does not change the episodes; use it for episodes with
    observations that are not flat, such as those recorded elsewhere. The default
    networks take nested observations as they are.

    Counterparts: RLlib's `FlattenObservations`, TorchRL's `FlattenObservation`, `CatTensors`.

    Args:
        keys_to_remove: Entries of a Dict observation that are left out.
        agent_ids: With several agents, the agents to flatten; default: all.

    Raises:
        ConfigError: `keys_to_remove` is no list of keys, or `agent_ids` on the learner side.
        SpaceError: no observation space, a part that has no fixed number of entries, observations that do not
            match the space, or keys to remove from something other than a Dict.
        UnknownNameError: a key that the Dict does not have.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> space = gym.spaces.Dict(b=gym.spaces.Discrete(3), a=gym.spaces.Box(-1, 1, (2,)))
        >>> episode = SingleAgentEpisode(observations=[{"a": np.array([0.5, -1.0]), "b": 2}])
        >>> batch = FlattenObservations(space)(batch={}, episodes=[episode])
        >>> episode.get_observations(-1)
        array([ 0.5, -1. ,  0. ,  0. ,  1. ], dtype=float32)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    takes_tensors: ClassVar[bool] = True
    multi_agent: bool = False
    as_learner_connector: bool = False
    keys_to_remove: Sequence[Any] | None = None
    agent_ids: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        """Check the list of keys, and declare what the piece does."""
        if self.keys_to_remove is not None and not isinstance(self.keys_to_remove, (list, tuple)):
            raise ConfigError(
                "FlattenObservations.keys_to_remove",
                expected="a list of keys",
                found=repr(self.keys_to_remove),
                do=f"pass [{self.keys_to_remove!r}]",
            )
        self.keys_to_remove = list(self.keys_to_remove or ())
        self._declare()
        self._rows: tuple[Any, FlatRows] | None = None

    def take_side(self, training: bool) -> None:
        """See `ConnectorV2.take_side`."""
        super().take_side(training)
        self._declare()

    def _declare(self) -> None:
        """Declare what the piece does on its side."""
        if self.agent_ids is not None and self.as_learner_connector:
            raise ConfigError(
                "FlattenObservations.agent_ids",
                expected="the acting side, which writes vectors into the episodes",
                found="as_learner_connector=True",
                do="leave the learner's piece out: it finds the vectors there",
            )
        self.rewrites_observations = not self.as_learner_connector
        self.writes = self.removes = (Columns.OBS,) if self.as_learner_connector else ()  # type: ignore[misc]

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """A Box without bounds, with one entry per number of the vector."""
        if self._left_alone:
            return input_observation_space
        return gym.spaces.Box(-np.inf, np.inf, (FlatRows(self._kept(input_observation_space)).size,), np.float32)

    @property
    def _left_alone(self) -> bool:
        """True if this is the copy for an agent that is not among those to flatten."""
        return (
            self.agent_ids is not None and self.agent_copy_for is not None and self.agent_copy_for not in self.agent_ids
        )

    def _kept(self, space: Any) -> Any:
        """The space without the keys to remove."""
        if not self.keys_to_remove:
            return space
        if not isinstance(space, gym.spaces.Dict):
            raise SpaceError(
                f"FlattenObservations(keys_to_remove={self.keys_to_remove})",
                expected="a Dict observation space",
                found=space,
                do="leave keys_to_remove out",
            )
        for key in self.keys_to_remove:
            if key not in space.spaces:
                raise UnknownNameError(
                    "FlattenObservations.keys_to_remove",
                    expected="keys of the observation space",
                    found=repr(key),
                    do=nearest(str(key), map(str, space.spaces)),
                )
        return gym.spaces.Dict([(key, part) for key, part in space.spaces.items() if key not in self.keys_to_remove])

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite the newest observations of the agents, group by group, or agent by agent if only some are meant."""
        if self.agent_ids is None:
            return super().run_all(batch, call)
        return self.run_agents(batch, call)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Rewrite the newest observations, or in training add the column."""
        if not self.as_learner_connector:
            return columns if self._left_alone else super().run(columns, group)
        data = gather(group, Columns.OBS, plus_one=group.plus_one)
        columns[Columns.OBS] = EpisodeColumn(self.rewrite(data, group), group.counts)
        return columns

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Flatten rows of observations."""
        space = self.input_observation_space
        if space is None:
            raise no_space(self, "the observation space, which says what becomes a one-hot", "observation_space")
        if self._rows is None or self._rows[0] is not space:
            self._rows = space, FlatRows(self._kept(space))
        if self.keys_to_remove and isinstance(observations, dict):
            observations = {key: part for key, part in observations.items() if key not in self.keys_to_remove}
        return self._rows[1](observations)
