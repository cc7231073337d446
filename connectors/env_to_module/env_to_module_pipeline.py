"""The pipeline between an environment and a module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.errors import PipelineError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten

from ..common.default_pieces import default_pieces
from ..connector_pipeline_v2 import ConnectorPipelineV2
from .prev_actions_prev_rewards import PrevActionsPrevRewards

__all__ = ["EnvToModulePipeline", "default_pipeline"]


class EnvToModulePipeline(ConnectorPipelineV2):
    """Makes a module's input from the newest observations of running episodes.

    Raises:
        PipelineError: what `ConnectorPipelineV2` refuses; or PrevActionsPrevRewards before a piece that gives the
            module other choices, which are what episodes hold.
    """

    training: ClassVar[bool | None] = False

    def _wire_spaces(self) -> None:
        super()._wire_spaces()
        history_pieces = [piece for piece in self.connectors if isinstance(piece, PrevActionsPrevRewards)]
        actions = self.episode_action_space if history_pieces else None
        for piece in history_pieces:
            space = piece.input_action_space
            if piece.n_prev_actions and None not in (space, actions) and _choices(space) != _choices(actions):
                raise PipelineError(
                    f"{type(self).__name__}, {type(piece).__name__}",
                    expected=f"the actions that the module chooses and episodes hold, {actions}",
                    found=f"{space}, which a later piece changes",
                    do=f"move the piece that changes actions before {type(piece).__name__}",
                )


def _choices(space: Any) -> list[Any]:
    """Return a key of the form in which actions of a space are shown: kind, shape and choices of each part."""
    leaves = flatten(get_base_struct_from_space(space))[0]
    choices = [getattr(leaf, "nvec", getattr(leaf, "n", None)) for leaf in leaves]
    return [(type(leaf), leaf.shape, np.array(count).tolist()) for leaf, count in zip(leaves, choices)]


def default_pipeline(
    input_observation_space: gym.Space[Any] | None = None,
    input_action_space: gym.Space[Any] | None = None,
    *,
    connectors: Sequence[Any] = (),
    device: Any = None,
    agent_to_module_mapping_fn: Callable[..., Any] | None = None,
    rl_module_specs: Mapping[Any, Any] | Collection[Any] | None = None,
    views: Mapping[str, Any] | None = None,
    views_per_module: Mapping[Any, Mapping[str, Any]] | None = None,
) -> EnvToModulePipeline:
    """Build the pipeline from the newest observations to a module's input, in the order that an Algorithm uses.

    The order is: your pieces, views, AddObservationsFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad,
    AddStatesFromEpisodesToBatch, AgentToModuleMapping (several agents), BatchIndividualItems, NumpyToTensor. The
    pieces for time axes and states do nothing unless the module is recurrent.

    Args:
        input_observation_space: Space of one environment's observations; a Dict by agent for several agents.
        input_action_space: Space of one environment's actions; likewise.
        connectors: Your pieces, in the forms that a pipeline takes. They come first.
        device: Torch device of the tensors; default: the CPU.
        agent_to_module_mapping_fn: For several agents: the function `(agent_id, episode) -> module_id`.
        rl_module_specs: For several agents: module id -> RLModuleSpec, or a collection of module ids; default: the ids
            that the mapping function returns. Either of the two makes it a pipeline for several agents.
        views: Columns of other steps by name, such as a module's `view_requirements`.
        views_per_module: Module id -> views of its rows only.

    Raises:
        PieceError: `connectors` holds something that is no piece.
        PipelineError: your pieces cannot work in this order.
        ConfigError: an invalid view.

    Examples:
        >>> import gymnasium as gym, torch
        >>> from epibatch.connectors.env_to_module import FlattenObservations, default_pipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> env = gym.make("FrozenLake-v1")
        >>> pipeline = default_pipeline(env.observation_space, env.action_space, connectors=[FlattenObservations()])
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(*env.reset(seed=0))
        >>> batch = pipeline(rl_module=torch.nn.Linear(16, 4), batch={}, episodes=[episode], shared_data={})
        >>> batch["obs"].shape
        torch.Size([1, 16])
    """
    pieces = default_pieces(
        connectors,
        False,
        device=device,
        views=views,
        views_per_module=views_per_module,
        rl_module_specs=rl_module_specs,
        agent_to_module_mapping_fn=agent_to_module_mapping_fn,
    )
    return EnvToModulePipeline(input_observation_space, input_action_space, connectors=pieces)
