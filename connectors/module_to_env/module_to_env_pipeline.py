"""The pipeline between a module and an environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError

from .._engine.call import PipelineCall
from .._engine.checks import check_connectors
from .._engine.plan import Plan, built_piece, place
from ..connector_pipeline_v2 import ConnectorPipelineV2
from ..connector_v2 import ConnectorV2
from .listify_data_for_vector_env import ListifyDataForVectorEnv
from .normalize_and_clip_actions import NormalizeAndClipActions

__all__ = ["ModuleToEnvPipeline", "default_pipeline", "transforms_actions_for_env"]

_OR = "\n            or "


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """Makes actions for an environment from a module's output.

    The environment gets the column `actions_for_env`. If no piece makes one, it gets `actions`.

    Raises:
        PipelineError: `ConnectorPipelineV2` refuses the pieces; a piece transforms `actions`, which are stored with
            their log-probabilities; or a piece transforms `actions_for_env` before the piece that makes them.
    """

    start_layout: ClassVar[str] = "tensors"
    start_columns: ClassVar[tuple[str, ...] | None] = None
    training: ClassVar[bool | None] = False
    _encoding: tuple[Plan, frozenset[Any], frozenset[Any]] | None = None

    def _check_pieces(self, pieces: tuple[ConnectorV2, ...]) -> None:
        has_column = False
        for position, piece in enumerate(pieces):
            columns = _transformed(piece)
            where = place(type(self).__name__, position, piece)
            if Columns.ACTIONS in columns:
                raise PipelineError(
                    where,
                    expected="actions as the module gave them, since they are stored beside their log-probabilities",
                    found=f"{piece!r}, which transforms 'actions'",
                    do="put it into the env-to-module pipeline, .env_runners(env_to_module_connector=...), with "
                    f"an inverse{_OR}to change only what the environment gets, transform 'actions_for_env'",
                )
            if Columns.ACTIONS_FOR_ENV not in columns:
                has_column = has_column or _may_make(piece)
            elif not has_column:
                raise PipelineError(
                    where,
                    expected="column 'actions_for_env', in the environment's units, made by a piece before it",
                    found=f"{piece!r} before the piece that makes it",
                    do="put it after NormalizeAndClipActions: "
                    "pipeline.insert_after('normalize_and_clip_actions', piece)",
                )

    def check_episodes(self, call: PipelineCall) -> None:
        """Tell the call what pieces do with actions here; a nested pipeline may be called by itself too."""
        plan = self._plan or self.plan()
        if self._encoding is None or self._encoding[0] is not plan:
            self._encoding = plan, *_encoding(plan.connectors)
        _, call.leaving, call.sharing = self._encoding

    def finished(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the environment's actions where they are the module's."""
        if self._encoding and self._encoding[1] and Columns.ACTIONS in batch:
            batch.setdefault(Columns.ACTIONS_FOR_ENV, batch[Columns.ACTIONS])
        return batch


def _encoding(pieces: Sequence[ConnectorV2]) -> tuple[frozenset[Any], frozenset[Any]]:
    """Return `leaving` and `sharing` of a PipelineCall.

    Actions that are neither scaled nor clipped are taken at the end, if a later piece may change them.
    """
    leaving, sharing = set(), set()
    for position, piece in enumerate(pieces):
        if not isinstance(piece, NormalizeAndClipActions):
            continue
        later = pieces[position + 1 :]
        if all(type(other) is ListifyDataForVectorEnv for other in later):
            sharing.add(piece)
        encodes = piece.normalize_actions or piece.clip_actions or any(map(transforms_actions_for_env, later))
        if not encodes and any(map(_may_change_actions, later)):
            leaving.add(piece)
    return frozenset(leaving), frozenset(sharing)


def default_pipeline(
    input_observation_space: gym.Space[Any] | None = None,
    input_action_space: gym.Space[Any] | None = None,
    *,
    connectors: Sequence[Any] = (),
    normalize_actions: bool = True,
    clip_actions: bool = False,
    agent_to_module_mapping_fn: Callable[..., Any] | None = None,
    rl_module_specs: Mapping[Any, Any] | Collection[Any] | None = None,
) -> ModuleToEnvPipeline:
    """Build the pipeline from a module's output to actions, in the order that an Algorithm uses.

    The order is: your pieces for the module's tensors, such as EpsilonGreedy, GetActions, TensorToNumpy,
    UnBatchToIndividualItems, ModuleToAgentUnmapping (several agents), RemoveSingleTsTimeRankFromBatch, your other
    pieces, NormalizeAndClipActions, your transforms of `actions_for_env`, ListifyDataForVectorEnv.

    Args:
        input_observation_space: Space of one environment's observations; a Dict by agent for several agents.
        input_action_space: Space of one environment's actions; likewise.
        connectors: Your pieces, in the forms that a pipeline takes.
        normalize_actions: Whether Box actions of the module are in [-1, 1], and stretched to the bounds of the space
            for the environment.
        clip_actions: Whether Box actions are clipped to the bounds of the space for the environment.
        agent_to_module_mapping_fn: For several agents: give it as to the env-to-module pipeline. The agents of the
            rows are known from there, so this pipeline does not call it.
        rl_module_specs: For several agents: likewise.

    Raises:
        PieceError: `connectors` holds something that is no piece.
        PipelineError: your pieces cannot work in this order.

    Examples:
        >>> import gymnasium as gym, numpy as np, torch
        >>> from epibatch.connectors.module_to_env import default_pipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> speed = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
        >>> pipeline = default_pipeline(None, speed)
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(np.zeros(3, np.float32))
        >>> outputs = {"actions": torch.tensor([[0.5]])}  # or `action_dist_inputs`, to draw from
        >>> columns = pipeline(rl_module=torch.nn.Linear(3, 1), batch=outputs, episodes=[episode], shared_data={})
        >>> columns["actions"][0].item(), columns["actions_for_env"][0].item()
        (0.5, 1.0)
    """
    from ..common.tensor_to_numpy import TensorToNumpy
    from .get_actions import GetActions
    from .module_to_agent_unmapping import ModuleToAgentUnmapping
    from .remove_single_ts_time_rank_from_batch import RemoveSingleTsTimeRankFromBatch
    from .unbatch_to_individual_items import UnBatchToIndividualItems

    check_connectors("default_pipeline", connectors)
    user = [built_piece("default_pipeline", position, item) for position, item in enumerate(connectors)]
    of_tensors = [piece for piece in user if piece.input_layouts == ("tensors",)]
    user = [piece for piece in user if piece not in of_tensors]
    several = agent_to_module_mapping_fn is not None or rl_module_specs is not None
    pieces = [
        *of_tensors,
        GetActions(),
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        *([ModuleToAgentUnmapping()] if several else []),
        RemoveSingleTsTimeRankFromBatch(),
        *(piece for piece in user if not transforms_actions_for_env(piece)),
        NormalizeAndClipActions(normalize_actions=normalize_actions, clip_actions=clip_actions),
        *(piece for piece in user if transforms_actions_for_env(piece)),
        ListifyDataForVectorEnv(),
    ]
    return ModuleToEnvPipeline(input_observation_space, input_action_space, connectors=pieces)


def transforms_actions_for_env(piece: Any) -> bool:
    """True if a piece transforms `actions_for_env`, so that it comes after the piece that makes them."""
    return Columns.ACTIONS_FOR_ENV in _transformed(piece)


def _transformed(piece: Any) -> tuple[str, ...]:
    from ..authoring.column_transform import ColumnTransform

    return piece.writes if isinstance(piece, ColumnTransform) else ()


def _may_change_actions(piece: Any) -> bool:
    """True if a piece changes `actions`, or does not declare what it changes."""
    return Columns.ACTIONS in piece.writes or piece.reads is None


def _may_make(piece: Any) -> bool:
    """True if a piece makes the environment's actions, or does not say what it makes."""
    return piece.reads is None or Columns.ACTIONS_FOR_ENV in piece.writes
