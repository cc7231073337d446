"""A config's acting pipelines on tensors: pieces that can work on them, on the device of the environment."""

from __future__ import annotations

from typing import Any

import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module.module_facts import initial_state, state_layout
from epibatch.core.structs import flatten, map_struct

from ...connectors import ChunkGroup
from ...connectors._engine.call import PipelineCall
from ...connectors.authoring.column_transform import ColumnTransform
from ...connectors.columnar_piece import ObservationRewriter, is_columnar
from ...connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from ...connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from ...connectors.common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from ...connectors.common.batch_individual_items import BatchIndividualItems
from ...connectors.common.numpy_to_tensor import NumpyToTensor
from ...connectors.common.tensor_to_numpy import TensorToNumpy
from ...connectors.module_to_env.get_actions import GetActions
from ...connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from ...connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from ...connectors.module_to_env.remove_single_ts_time_rank_from_batch import RemoveSingleTsTimeRankFromBatch
from ...connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems
from .acting_modules import forward

LAYOUT_PIECES = (
    *(AddObservationsFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad, AddStatesFromEpisodesToBatch),
    *(BatchIndividualItems, NumpyToTensor, TensorToNumpy, UnBatchToIndividualItems, RemoveSingleTsTimeRankFromBatch),
    ListifyDataForVectorEnv,
)
"""Pieces that do with episodes and arrays what this class does with tensors."""


class TensorActing:
    """The pieces of both acting pipelines, called with tensors `[N, ...]` instead of episodes.

    Args:
        env_to_module: The pipeline before the module.
        module_to_env: The pipeline after it.

    Raises:
        ConfigError: a piece cannot work on tensors.
    """

    def __init__(self, env_to_module: Any, module_to_env: Any) -> None:
        self._before = [piece for piece in env_to_module.pieces() if type(piece) not in LAYOUT_PIECES]
        self._after = [piece for piece in module_to_env.pieces() if type(piece) not in LAYOUT_PIECES]
        for piece in self._before:
            if not (_takes_tensors(piece) and (_only(piece, Columns.OBS) or isinstance(piece, ObservationRewriter))):
                raise _cannot(piece, "a transform of 'obs'")
        for piece in self._after:
            if type(piece) is GetActions:
                piece.on_device = True
            elif type(piece) is not NormalizeAndClipActions and not (
                _takes_tensors(piece) and _only(piece, Columns.ACTIONS_FOR_ENV)
            ):
                raise _cannot(piece, "a transform of 'actions_for_env'")

    def observe(self, module: Any, obs: Any) -> Any:
        """Return observations as the module gets them; running statistics count them."""
        if not self._before:
            return obs
        group = group_of_tensors(module, None)
        for piece in self._before:
            if isinstance(piece, ObservationRewriter):
                obs = piece.rewrite(obs, group)
            else:
                obs = piece.run({Columns.OBS: obs}, group)[Columns.OBS]
        return obs

    def act(self, module: Any, batch: dict[str, Any], *, explore: bool, t: int) -> tuple[dict[str, Any], Any]:
        """Return the module's outputs with `actions`, without a time axis, and the actions for the environment.

        Args:
            module: The module.
            batch: What `batch_of` gave.
            explore: Whether actions explore.
            t: The steps taken so far, for the module.

        Raises:
            ColumnError: no actions, or outputs of another width than the action distribution takes.
        """
        group = group_of_tensors(module, explore)
        device = flatten(batch[Columns.OBS])[0][0].device
        columns = to_tensors(dict(forward(module, batch, explore=explore, t=t)), device)
        for piece in self._after:
            if isinstance(piece, GetActions):
                columns = piece.run(columns, group)
                columns = without_time_axis(columns) if Columns.STATE_IN in batch else columns
            elif isinstance(piece, NormalizeAndClipActions):
                if piece.input_action_space is not None and Columns.ACTIONS_FOR_ENV not in columns:
                    encode = piece.encoders(group).of_space(piece.input_action_space)
                    columns[Columns.ACTIONS_FOR_ENV] = encode(_actions_of(columns))
            else:
                columns = piece.run(columns, group)
        actions = _actions_of(columns)
        for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
        stored = {id(leaf) for leaf in flatten(actions)[0]}
        return columns, map_struct(lambda leaf: leaf.clone() if id(leaf) in stored else leaf, for_env)


def batch_of(obs: Any, state: Any) -> dict[str, Any]:
    """Return a module's input of one step: observations `[N, ...]`; with a state, `[N, 1, ...]`."""
    if state is None:
        return {Columns.OBS: obs}
    return {Columns.OBS: map_struct(lambda leaf: leaf.unsqueeze(1), obs), Columns.STATE_IN: state}


def without_time_axis(columns: dict[str, Any]) -> dict[str, Any]:
    """Return a recurrent module's outputs `[N, 1, ...]` as `[N, ...]`; its state has no such axis.

    Raises:
        ColumnError: there is no state, or an output without the axis.
    """
    if Columns.STATE_OUT not in columns:
        raise ColumnError(
            "outputs of a recurrent module",
            expected=f"a column {Columns.STATE_OUT!r}, nested like get_initial_state()",
            found=f"columns {sorted(columns)}",
            do="return the new state as Columns.STATE_OUT from the module's _forward",
        )

    def squeezed(leaf: Any) -> Any:
        if leaf.ndim < 2 or leaf.shape[1] != 1:
            raise ColumnError(
                "outputs of a recurrent module",
                expected="shape [N, 1, ...], with the time axis of the observations",
                found=f"shape {list(leaf.shape)}",
                do="keep the time axis in the outputs (state_out alone has none)",
            )
        return leaf[:, 0]

    return {
        name: column if name == Columns.STATE_OUT else map_struct(squeezed, column) for name, column in columns.items()
    }


class InitialStates:
    """The states that episodes begin with, as tensors; for as long as the module's weights stay.

    Args:
        module: A recurrent module.
        device: Where they are.
    """

    def __init__(self, module: Any, device: Any) -> None:
        self._module, self._device, self._random = module, device, state_layout(module).random
        self._first = self._drawn()

    def _drawn(self) -> Any:
        return map_struct(torch.Tensor.detach, to_tensors(initial_state(self._module), self._device))

    def rows(self, count: int) -> Any:
        """Return `[count, ...]`; a module that draws its initial states draws one for each row."""
        if self._random:
            return map_struct(lambda *leaves: torch.stack(leaves), *(self._drawn() for _ in range(count)))
        return map_struct(lambda leaf: leaf.expand(count, *leaf.shape).clone(), self._first)

    def begun(self, states: Any, ended: torch.Tensor) -> Any:
        """Return states with the initial ones where an episode ended: bool `[N]`."""
        if not self._random:
            return map_struct(lambda leaf, new: _where(ended, new, leaf), states, self._first)
        rows = ended.nonzero().flatten()
        if not len(rows):
            return states
        return map_struct(lambda leaf, new: leaf.index_copy(0, rows, new), states, self.rows(len(rows)))


def _where(rows: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new.to(old.dtype), old)


def to_tensors(struct: Any, device: Any) -> Any:
    """Return arrays and tensors as tensors on a device, float64 as float32; those that are so stay the same objects."""

    def converted(leaf: Any) -> torch.Tensor:
        tensor = leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf)
        return tensor.to(device, torch.float32 if tensor.dtype is torch.float64 else tensor.dtype)

    return map_struct(converted, struct)


def group_of_tensors(module: Any, explore: bool | None) -> ChunkGroup:
    """Return the group of a call without episodes, whose columns are batched rows."""
    call = PipelineCall(rl_module=module, episodes=[], explore=explore, training=False)
    (group,) = call.groups.values()
    call.groups = {}
    group.ragged = True  # no time axis where pieces run
    return group


def _actions_of(columns: dict[str, Any]) -> Any:
    if Columns.ACTIONS not in columns:
        raise ColumnError(
            "outputs of the module",
            expected=f"{Columns.ACTION_DIST_INPUTS!r} or {Columns.ACTIONS!r}",
            found=str(sorted(map(str, columns))),
            do="return one of them from the module's _forward",
        )
    return columns[Columns.ACTIONS]


def _takes_tensors(piece: Any) -> bool:
    return is_columnar(piece) and bool(getattr(piece, "takes_tensors", False))


def _only(piece: Any, column: str) -> bool:
    return isinstance(piece, ColumnTransform) and {path.column for path in piece.paths} == {column}


_DECLARE = "declare takes_tensors: ClassVar[bool] = True in {} if its code works on tensors; or "


def _cannot(piece: Any, what: str) -> ConfigError:
    name = type(piece).__name__
    found = f"{name}, which does not say that it does" if not getattr(piece, "takes_tensors", False) else repr(piece)
    own = "" if type(piece).__module__.startswith("epibatch.") else _DECLARE.format(name)
    return ConfigError(
        f"TensorEnvRunner, piece {name}",
        expected=f"pieces that work on tensors: MeanStdFilter, FlattenObservations, {what} with takes_tensors = True",
        found=found,
        do=f"{own}sample with SingleAgentEnvRunner, which converts the environment's tensors to arrays",
    )
