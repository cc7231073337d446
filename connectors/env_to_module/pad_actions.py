"""Lets agents of different action spaces share a module."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError

from .._engine.agent_table import check_several
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch
from .padded_spaces import PaddingPiece, common_space

__all__ = ["PadActions"]

_MASK, _OBSERVATIONS = "action_mask", "observations"


class PadActions(PaddingPiece):
    """Gives agents with different action spaces one common space, and masks the actions that an agent does not have.

    Modules are built for the common space. For Discrete spaces it is the smallest one that has all their values. An
    observation then becomes `{"action_mask": ..., "observations": observation}`, with a 1 for each value that the agent
    has. If the observation is a Dict with an `action_mask` already, that mask is padded with zeros instead. The module
    has to apply the mask by setting the logits of masked actions very low. Boxes are padded to the largest length of
    each axis. Observations stay then, and entries that an agent does not have are ignored. If all spaces are equal,
    nothing is done.

    `CutPaddedActions` in the module-to-env pipeline is the inverse; it refuses masked actions. After
    pad_action_space_v0 of SuperSuit (Terry et al. 2020, "Multi-agent deep reinforcement learning with parameter
    sharing"), which makes them 0.

    Counterparts: TorchRL's `ActionMask`.

    Args:
        input_observation_space: Dict of the agents' observation spaces.
        input_action_space: Dict of the agents' action spaces: Discrete ones, or Boxes.
        agent_ids: The agents that are to have one space; others are left alone. Default: all.

    Raises:
        ConfigError: `agent_ids` is no list of agents that differ.
        SpaceError: no Dict of action spaces, or spaces that are neither all Discrete nor all Boxes of one number of
            axes.
        UnknownNameError: `agent_ids` names one without an action space.
        BatchLayoutError: episodes of one agent each.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> actions = gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(3))
        >>> episode = MultiAgentEpisode(action_space=actions)
        >>> episode.add_env_reset(observations={"a": 5, "b": 6})
        >>> piece = PadActions(None, actions, multi_agent=True)
        >>> batch = piece(batch={}, episodes=[episode])
        >>> episode.get_observations(-1)["a"]
        {'action_mask': array([1, 1, 0], dtype=int8), 'observations': np.int64(5)}
    """

    _known: _Common | None = None

    # -- spaces --------------------------------------------------------------------------------

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The common space of all agents that are padded."""
        common = self._common()
        return input_action_space if common is None else common.space

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """A Dict with the mask, if actions are masked."""
        common, space = self._common(), input_observation_space
        if common is None or not common.masked:
            return space
        mask = gym.spaces.MultiBinary(int(common.space.n))
        if isinstance(space, gym.spaces.Dict) and _MASK in space.spaces:
            return gym.spaces.Dict({**space.spaces, _MASK: mask})
        return gym.spaces.Dict({_MASK: mask, _OBSERVATIONS: space})

    def _common(self) -> _Common | None:
        """Return the agents' common space; None for an agent that is left alone."""
        if self.left_alone:
            return None
        template = self.agent_template
        if template._known is None or template._known.of is not template.input_action_space:
            template._known = template._made()
        common: _Common = template._known
        return common

    def _made(self) -> _Common:
        spaces = self.input_action_space
        if not isinstance(spaces, gym.spaces.Dict):
            raise self.no_spaces("action", spaces)
        meant = self.meant(spaces)
        common = common_space(meant, "PadActions, action spaces")
        differ = any(space != meant[0] for space in meant)
        if differ and not isinstance(common, (gym.spaces.Discrete, gym.spaces.Box)):
            raise SpaceError(
                "PadActions, action spaces",
                expected="Discrete spaces, or Boxes",
                found=str(next(space for space in meant if space != meant[0])),
                do="pass agent_ids= for the agents that have such spaces; give the others a module of their own",
            )
        return _Common(spaces, common, differ and isinstance(common, gym.spaces.Discrete))

    # -- observations --------------------------------------------------------------------------

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite the newest observations of the agents, agent by agent if only some are meant."""
        return self.run_agents(batch, call)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Rewrite the newest observations, if actions are masked."""
        check_several(self, group)
        common = self._common()
        return columns if common is None or not common.masked else super().run(columns, group)

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Put the masks beside the observations, or lengthen those that are there."""
        common: Any = self.action_space
        space: Any = self.input_action_space
        first, rows = int(space.start - common.start), len(group.episodes)
        real = slice(first, first + int(space.n))
        env_mask = observations.get(_MASK) if isinstance(observations, dict) else None
        if env_mask is None:
            mask = np.zeros((rows, int(common.n)), np.int8)
            mask[:, real] = 1
            return {_MASK: mask, _OBSERVATIONS: observations}
        if env_mask.shape[1:] != (int(space.n),):
            raise SpaceError(
                f"PadActions, {_MASK!r} of agent {self.agent_copy_for!r}",
                expected=f"one entry for each value of {space}",
                found=f"shape {env_mask.shape[1:]}",
                do="let the environment give a mask of that length",
            )
        mask = np.zeros((rows, int(common.n)), env_mask.dtype)
        mask[:, real] = env_mask
        return {**observations, _MASK: mask}


class _Common(NamedTuple):
    """The common action space of several agents.

    Args:
        of: The Dict of the agents' spaces.
        space: The common one.
        masked: Whether an agent's observations have to say which values are its own.
    """

    of: Any
    space: Any
    masked: bool
