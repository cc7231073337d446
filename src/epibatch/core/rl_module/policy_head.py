"""The output layers of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium as gym
import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.distributions.choosing import distribution_for, log_std_columns
from epibatch.core.distributions.masked import mask_logits
from epibatch.core.errors import SpaceError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import MLP, head_style, run

__all__ = ["PolicyHead", "masked"]


@final
class PolicyHead(nn.Module):
    """From an encoder's output to the inputs of the action distribution.

    For the float Boxes among the actions it clips the log standard deviations; with `free_log_std` they are
    a parameter.

    Args:
        body: layers to run before the head's own, for a policy that has its encoder to itself.
        size_in: number of inputs of the head.
        action_space: what `distribution_for` has a distribution for.
        config: the network's options.

    Raises:
        SpaceError: no default distribution fits the action space, or its actions have no entries.
    """

    def __init__(
        self, body: Sequence[nn.Module], size_in: int, action_space: gym.Space[Any] | None, config: DefaultModelConfig
    ) -> None:
        super().__init__()
        distribution = distribution_for(action_space, squash=config.squash_actions)
        size_out = 0 if action_space is None else int(distribution.required_input_dim(action_space))
        columns = [] if action_space is None else log_std_columns(action_space)
        if action_space is not None and not size_out:
            raise SpaceError(
                "action space of a default module",
                expected="actions with at least one entry",
                found=action_space,
                do="give the environment something to choose",
            )
        self._clip = float(config.log_std_clip_param)
        self._clips = bool(columns)
        self._is_log_std: torch.Tensor
        self.register_buffer("_is_log_std", _mask(columns, size_out), persistent=False)
        self.log_std: nn.Parameter | None = None
        if columns and config.free_log_std:
            self.log_std = nn.Parameter(torch.zeros(len(columns)))
            size_out -= len(columns)
            self._order: torch.Tensor
            self.register_buffer(
                "_order", torch.argsort(self._is_log_std.int(), stable=True).argsort(), persistent=False
            )
        head = head_style(config).layers(size_in, config.head_fcnet_hiddens, size_out, gain=0.01)
        self.net = MLP(*body, *head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give `[..., required_input_dim]` for features `[..., size_in]`."""
        out = run(self._modules["net"], x)  # type: ignore[arg-type]  # attribute access on modules is slow
        if not self._clips:
            return out
        if self.log_std is not None:
            out = torch.cat((out, self.log_std.expand(*out.shape[:-1], -1)), -1).index_select(-1, self._order)
        return torch.where(self._is_log_std, out.clamp(-self._clip, self._clip), out)


def masked(logits: torch.Tensor, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The distribution inputs, with illegal actions masked if the batch says which; the mask is recorded beside them.

    Args:
        logits: What a head gave.
        batch: The module's batch.
    """
    mask = batch.get(Columns.ACTION_MASK)
    if mask is None:
        return {Columns.ACTION_DIST_INPUTS: logits}
    return {Columns.ACTION_DIST_INPUTS: mask_logits(logits, mask), Columns.ACTION_MASK: mask}


def _mask(columns: Sequence[int], size: int) -> torch.Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(columns)] = True
    return mask
