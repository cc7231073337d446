"""The pipeline between recorded episodes and a loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeError

from .._engine.call import PipelineCall
from ..common.default_pieces import default_pieces
from ..connector_pipeline_v2 import ConnectorPipelineV2
from ..sequences.burn_in import BurnIn

__all__ = ["LearnerConnectorPipeline", "add_advantages", "default_pipeline"]


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """Makes a train batch from whole episodes or chunks.

    Raises:
        EpisodeError: no episodes, or one without steps.
    """

    training: ClassVar[bool | None] = True

    def check_episodes(self, call: PipelineCall) -> None:
        """Refuse a call without episodes, and chunks without steps."""
        if not len(call.episodes):
            raise EpisodeError(type(self).__name__, expected="at least one episode", found="none", do="sample first")
        if not call.groups:
            raise EpisodeError(
                type(self).__name__,
                expected="an episode in which an agent has made a step",
                found=f"{len(call.episodes)} episodes without any",
                do="leave them out, or sample more steps",
            )
        for group in call.groups.values():
            if not group.lengths.all():
                empty = int(np.argmin(group.lengths))
                lookback = group.reader.lookbacks[empty]
                hint = f"; if its {lookback} steps of lookback are meant as steps, pass len_lookback_buffer=0"
                raise EpisodeError(
                    f"{type(self).__name__}, {group.describe(empty)}",
                    expected="at least one step",
                    found="a zero-length chunk (an observation, but no step)",
                    do="leave it out: [episode for episode in episodes if len(episode)]" + hint * bool(lookback),
                )


def default_pipeline(
    input_observation_space: gym.Space[Any] | None = None,
    input_action_space: gym.Space[Any] | None = None,
    *,
    connectors: Sequence[Any] = (),
    advantages: bool = True,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    standardize_advantages: bool = True,
    burn_in: bool = False,
    device: Any = None,
    agent_to_module_mapping_fn: Callable[..., Any] | None = None,
    rl_module_specs: Mapping[Any, Any] | Collection[Any] | None = None,
    views: Mapping[str, Any] | None = None,
    views_per_module: Mapping[Any, Mapping[str, Any]] | None = None,
) -> LearnerConnectorPipeline:
    """Build the pipeline from episodes to a train batch, in the order that PPO uses.

    The order is: views, your pieces, AddOneTsToEpisodesAndTruncate (advantages), AddObservationsFromEpisodesToBatch,
    AddColumnsFromEpisodesToTrainBatch, AddTimeDimToBatchAndZeroPad, AddStatesFromEpisodesToBatch, AgentToModuleMapping
    (several agents), BatchIndividualItems, NumpyToTensor, BurnIn (`burn_in`), GeneralAdvantageEstimation (advantages).
    The pieces for time axes and states do nothing unless the module is recurrent.

    Args:
        input_observation_space: Space of the episodes' observations: one environment's, or what env-to-module pieces
            wrote back to the episodes; a Dict by agent for several agents.
        input_action_space: Space of the episodes' actions; likewise.
        connectors: Your pieces, in the forms that a pipeline takes. They come first.
        advantages: Whether the batch gets a bootstrap row per chunk, and the columns `advantages` and `value_targets`;
            needs a module with `compute_values`.
        gamma: Discount of the advantages, in [0, 1].
        lambda_: Weight of longer returns in the advantages, in [0, 1].
        standardize_advantages: Whether advantages have mean 0 and standard deviation 1 over the rows that carry loss.
        burn_in: Whether recurrent states are warmed up on the rows before each sequence; see `BurnIn`.
        device: Torch device of the tensors; default: the CPU.
        agent_to_module_mapping_fn: For several agents: the function `(agent_id, episode) -> module_id`.
        rl_module_specs: For several agents: module id -> RLModuleSpec, or a collection of module ids; default: the ids
            that the mapping function returns. Either of the two makes it a pipeline for several agents.
        views: Columns of other steps by name, such as a module's `view_requirements`.
        views_per_module: Module id -> views of its rows only.

    Raises:
        PieceError: `connectors` holds something that is no piece.
        PipelineError: your pieces cannot work in this order.
        ConfigError: gamma or lambda_ outside [0, 1], or an invalid view.

    Examples:
        >>> import numpy as np, torch
        >>> from epibatch.connectors.learner import default_pipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> class Critic(torch.nn.Linear):
        ...     def compute_values(self, batch, embeddings=None):
        ...         return self(batch["obs"]).squeeze(-1)
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(np.zeros(4, np.float32))
        >>> for step in range(3):
        ...     episode.add_env_step(np.ones(4, np.float32), 0, 1.0, truncated=step == 2)
        >>> batch = default_pipeline(gamma=0.9)(rl_module=Critic(4, 1), batch={}, episodes=[episode])
        >>> batch["advantages"].shape, batch["loss_mask"]  # the last row is there for its value only
        (torch.Size([4]), tensor([ True,  True,  True, False]))
    """
    pieces = default_pieces(
        connectors,
        True,
        device=device,
        views=views,
        views_per_module=views_per_module,
        rl_module_specs=rl_module_specs,
        agent_to_module_mapping_fn=agent_to_module_mapping_fn,
    )
    if burn_in:
        pieces.append(BurnIn())
    pipeline = LearnerConnectorPipeline(input_observation_space, input_action_space, connectors=pieces)
    if advantages:
        add_advantages(pipeline, gamma=gamma, lambda_=lambda_, standardize_advantages=standardize_advantages)
    return pipeline


def add_advantages(pipeline: LearnerConnectorPipeline, piece: Any = None, **settings: Any) -> None:
    """Add bootstrap rows before AddObservationsFromEpisodesToBatch, and advantages at the end.

    Args:
        pipeline: A learner pipeline with the default pieces.
        piece: The piece that adds advantages, such as VTrace; None: GeneralAdvantageEstimation.
        **settings: Arguments of GeneralAdvantageEstimation.
    """
    from .add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
    from .general_advantage_estimation import GeneralAdvantageEstimation

    pipeline.insert_before("AddObservationsFromEpisodesToBatch", AddOneTsToEpisodesAndTruncate())
    pipeline.append(GeneralAdvantageEstimation(**settings) if piece is None else piece)
