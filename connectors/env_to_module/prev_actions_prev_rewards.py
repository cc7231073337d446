"""Shows the module its last actions and rewards."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.spaces import flatten_inputs_to_1d_tensor, get_base_struct_from_space, space_of_struct
from epibatch.core.structs import map_struct

from ...episodes.rows import Windows
from .._engine.chunks import ChunkGroup
from .._engine.windows import window
from ..columnar_piece import ObservationRewriter, Piece
from ..common.flatten_observations import FlatRows
from ..tensor_step import TensorStep

__all__ = ["PrevActionsPrevRewards", "StepHistory", "StepsBefore"]

Vectors = npt.NDArray[np.float32]


class StepHistory:
    """The last actions or rewards before an observation, oldest first, zeros before the episode's start.

    An action is one float32 vector: its leaves side by side, dicts sorted by key, Discrete and
    MultiDiscrete ones as one-hot vectors, the others as they are. A reward is a vector of length 1.

    Args:
        name: `actions` or `rewards`.
        count: How many.
        action_space: Space of one action, if it is about actions.
        owner: Name of the piece, for messages.

    Attributes:
        space: The Box of `count` vectors side by side.

    Raises:
        SpaceError: actions without a fixed number of entries.
    """

    __slots__ = ("_action_space", "_count", "_name", "_owner", "_size", "_struct", "space")

    def __init__(self, name: str, count: int, action_space: gym.Space[Any] | None, owner: str) -> None:
        self._name, self._count, self._owner, self._struct = name, count, owner, None
        self._action_space = action_space
        if name == Columns.ACTIONS:
            self._struct = get_base_struct_from_space(action_space)
            bounds = map_struct(lambda leaf: _bounds(leaf, owner), self._struct)
            low, high = flatten_inputs_to_1d_tensor(bounds).reshape(-1, 2).T
        else:
            low, high = np.array([[-np.inf], [np.inf]], np.float32)
        self._size = len(low)
        self.space = gym.spaces.Box(np.tile(low, count), np.tile(high, count), dtype=np.float32)

    def before(self, group: ChunkGroup, *, newest: bool) -> Vectors:
        """Return the rows before each observation of the batch: float32, shape [rows, count * size].

        Args:
            group: The chunks.
            newest: True if the batch has the newest observation of each chunk, False if it has all.

        Raises:
            LookbackError: a chunk starts in the middle of an episode and keeps too little lookback.
        """
        shifts = range(-self._count, 0)
        rows, batch = window(group, self._name, shifts, self._owner, newest=newest)
        positions = Windows(rows, batch, shifts).positions()
        vectors = np.zeros((1, self._size), np.float32)
        if rows.counts.any():
            rows.check()
            vectors = self._vectors(rows.joined())
        out = np.take(vectors, positions, axis=0, mode="clip")
        out[positions < 0] = 0
        return out.reshape(len(out), -1)

    def of_tensors(self, step: TensorStep) -> Any:
        """Return the same for a step in tensors."""
        rows, known = step.window(self._name, self._count, self._action_space)
        if self._struct is None:
            return rows.float()
        flat = map_struct(lambda leaf: leaf.flatten(0, 1), rows)
        vectors = FlatRows(space_of_struct(self._struct))(flat).unflatten(0, (-1, self._count))
        return (vectors * known[..., None]).flatten(1)

    def _vectors(self, rows: Any) -> Vectors:
        vectors: Vectors = flatten_inputs_to_1d_tensor(rows, self._struct)
        if vectors.shape[1:] != (self._size,):
            raise ColumnError(
                f"{self._owner}, column {self._name!r}",
                expected=f"{self._size} entries per step",
                found=f"shape {vectors.shape[1:]}",
                do="show rewards that are vectors with a view or a piece of your own, and set n_prev_rewards=0",
            )
        return vectors


class StepsBefore(Piece):
    """Settings, spaces and keys that the acting side and the learner's share.

    Args:
        input_observation_space: Space of one observation, of any kind.
        n_prev_actions: How many actions to show; 0 leaves the key out.
        n_prev_rewards: How many rewards to show; 0 leaves the key out.
    """

    ORIG_OBS_KEY: ClassVar[str] = "_orig_obs"
    PREV_ACTIONS_KEY: ClassVar[str] = "prev_n_actions"
    PREV_REWARDS_KEY: ClassVar[str] = "prev_n_rewards"
    n_prev_actions: Annotated[int, Ge(0)] = 1
    n_prev_rewards: Annotated[int, Ge(0)] = 1

    def __post_init__(self) -> None:
        """Ask for as much history."""
        self.lookback = max(self.n_prev_actions, self.n_prev_rewards)
        self._shown: list[tuple[Any, dict[str, StepHistory]]] = []

    def shown(self, action_space: gym.Space[Any] | None) -> dict[str, StepHistory]:
        """Return the histories to show beside the observation, by key."""
        for space, cached in self._shown:
            if space is action_space:
                return cached
        settings = (
            (self.PREV_ACTIONS_KEY, Columns.ACTIONS, self.n_prev_actions),
            (self.PREV_REWARDS_KEY, Columns.REWARDS, self.n_prev_rewards),
        )
        owner = type(self).__name__
        histories = {key: StepHistory(name, count, action_space, owner) for key, name, count in settings if count}
        self._shown.append((action_space, histories))
        return histories

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The Dict of the observation and what is shown beside it."""
        history_spaces = {key: part.space for key, part in self.shown(input_action_space).items()}
        return gym.spaces.Dict({self.ORIG_OBS_KEY: input_observation_space, **history_spaces})


class PrevActionsPrevRewards(StepsBefore, ObservationRewriter):
    """Makes of each newest observation a dict of it and the actions and rewards before it.

    `_orig_obs` is the observation, `prev_n_actions` a vector of the last `n_prev_actions` actions
    (float32, oldest first), `prev_n_rewards` one of the last `n_prev_rewards` rewards (float32). An
    action's leaves stand side by side, dicts sorted by key; Discrete and MultiDiscrete ones are
    one-hot, the others as the module gave them. Before an episode's start there are zeros.

    The dict is written back into the episodes, where the learner finds it: this needs no learner piece.
    Chunks carry as many earlier steps as are shown.

    Counterparts: RLlib's `PrevActionsPrevRewards`.

    Args:
        input_observation_space: Space of one observation, of any kind.
        input_action_space: Space of one action: Box, Discrete, MultiDiscrete, MultiBinary, or a
            Dict or Tuple of these.
        n_prev_actions: How many actions to show; 0 leaves the key out.
        n_prev_rewards: How many rewards to show; 0 leaves the key out.

    Raises:
        ConfigError: a number that is no int of at least 0.
        SpaceError: no action space, or one with parts of another kind.
        LookbackError: a chunk starts in the middle of an episode and keeps too little lookback.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> piece = PrevActionsPrevRewards(gym.spaces.Discrete(9), gym.spaces.Discrete(3), n_prev_rewards=2)
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(5)
        >>> episode.add_env_step(6, action=1, reward=0.5)
        >>> batch = piece(batch={}, episodes=[episode])
        >>> {key: value.tolist() for key, value in episode.get_observations(-1).items()}
        {'_orig_obs': 6, 'prev_n_actions': [0.0, 1.0, 0.0], 'prev_n_rewards': [0.0, 0.5]}
    """

    multi_agent: bool = False

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Put the observations into a dict with what came before them."""
        out = {self.ORIG_OBS_KEY: observations}
        for key, part in self.shown(self.input_action_space).items():
            out[key] = part.before(group, newest=True)
        return out

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Put the newest observations into a dict with what came before them."""
        shown = {key: part.of_tensors(step) for key, part in self.shown(self.input_action_space).items()}
        step.obs = {self.ORIG_OBS_KEY: step.obs, **shown}
        return columns


def _bounds(leaf: Any, owner: str) -> Vectors:
    """Lower and upper bound of an action leaf's entries as they are stored: float32, shape [1, entries * 2]."""
    if isinstance(leaf, gym.spaces.Box):  # what is stored is the module's action, which has no bounds
        return np.tile(np.array([-np.inf, np.inf], np.float32), (1, math.prod(leaf.shape)))
    size = 0
    if isinstance(leaf, gym.spaces.Discrete):
        size = int(leaf.n)
    elif isinstance(leaf, gym.spaces.MultiDiscrete):
        size = int(leaf.nvec.sum())
    elif isinstance(leaf, gym.spaces.MultiBinary):
        size = math.prod(leaf.shape)
    if size:
        return np.tile(np.array([0, 1], np.float32), (1, size))
    raise SpaceError(
        owner,
        expected="actions of Box, Discrete, MultiDiscrete and MultiBinary parts",
        found="no action space" if leaf is None else repr(leaf),
        do="pass the action space to the pipeline" if leaf is None else "leave the piece out",
    )
