"""Random actions now and then, for modules that give a value to each action."""

from __future__ import annotations

from typing import Any, ClassVar

from epibatch.core import NUM_ENV_STEPS
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.schedules import Schedule, value_at

from .._engine.chunks import ChunkGroup
from ..columnar_piece import Piece


class EpsilonGreedy(Piece):
    """Makes the values of actions the distribution that takes the best one, and with probability epsilon any.

    It stands before GetActions, and changes `action_dist_inputs` while exploring: from values to logits, so that
    `action_logp` is right. All actions are equally likely in the random part, but those with a value of minus infinity,
    or the lowest number of its type, are illegal and never taken. Without `explore` the best action is taken anyhow.
    (Watkins 1989.)

    Args:
        epsilon: The probability, or a schedule of it by environment steps that were sampled: `[[0, 1.0], [10_000,
            0.05]]`, linear between two points.

    Raises:
        ConfigError: a probability outside [0, 1].

    Examples:
        >>> import torch
        >>> values = torch.tensor([[1.0, 3.0, -torch.inf, 2.0]])
        >>> piece = EpsilonGreedy(epsilon=0.3)
        >>> batch = piece(batch={"action_dist_inputs": values}, episodes=[], explore=True)
        >>> batch["action_dist_inputs"].exp().round(decimals=4).tolist()
        [[0.10000000149011612, 0.800000011920929, 0.0, 0.10000000149011612]]
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    writes: ClassVar[tuple[str, ...]] = (Columns.ACTION_DIST_INPUTS,)
    epsilon: Schedule = 0.05

    def __post_init__(self) -> None:
        """Check the probabilities."""
        points = [self.epsilon] if isinstance(self.epsilon, (int, float)) else [value for _, value in self.epsilon]
        if not points or not all(0 <= point <= 1 for point in points):
            raise ConfigError(
                "EpsilonGreedy, epsilon",
                expected="a probability from 0 to 1, or points [[step, probability], ...]",
                found=repr(self.epsilon),
                do="write epsilon=[[0, 1.0], [10_000, 0.05]], say",
            )

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Change the column, if actions are to explore."""
        if not group.explore or Columns.ACTION_DIST_INPUTS not in columns:
            return columns
        import torch

        values = columns[Columns.ACTION_DIST_INPUTS]
        epsilon = value_at(self.epsilon, group.shared_data.get(NUM_ENV_STEPS, 0))
        legal = values > torch.finfo(values.dtype).min
        probabilities = epsilon * legal / legal.sum(-1, keepdim=True)
        best = torch.zeros_like(values).scatter_(-1, values.argmax(-1, keepdim=True), 1.0 - epsilon)
        columns[Columns.ACTION_DIST_INPUTS] = (probabilities + best).log()
        return columns
