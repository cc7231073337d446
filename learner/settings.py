"""The learner's own settings: optimiser, gradient clipping and minibatches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from epibatch.core.errors import ConfigError, nearest

from .minibatches import check_minibatch_settings

__all__ = ["LearnerSettings"]

_OPTIMIZERS = ("adam",)
_CLIP_BY = ("global_norm", "norm", "value")


@dataclass(frozen=True)
class LearnerSettings:
    """How a learner steps through a batch, checked when it is set.

    Args:
        lr: learning rate, > 0.
        optimizer: "adam" (Kingma and Ba 2015, arXiv:1412.6980).
        grad_clip: bound of the gradients, > 0, or None for none.
        grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each
            parameter's gradient by its own, "value" clips every entry.
        num_epochs: passes through each batch.
        minibatch_size: timesteps per minibatch, None for the whole batch.
        shuffle: "epoch", "once" or None, see `Minibatches`.
        remainder: "keep", "drop" or "spread", see `Minibatches`.
        seed: seed of the learner's own random generator, None for a random one.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    lr: float = 5e-5
    optimizer: str = "adam"
    grad_clip: float | None = None
    grad_clip_by: str = "global_norm"
    num_epochs: int = 1
    minibatch_size: int | None = None
    shuffle: str | None = "epoch"
    remainder: str = "keep"
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_positive("lr", self.lr)
        if self.grad_clip is not None:
            _check_positive("grad_clip", self.grad_clip)
        for name, known in (("optimizer", _OPTIMIZERS), ("grad_clip_by", _CLIP_BY)):
            value = getattr(self, name)
            if value not in known:
                hint = nearest(str(value), known)
                raise ConfigError(name, expected=f"one of {known}", found=repr(value), do=hint)
        check_minibatch_settings(
            size=self.minibatch_size, epochs=self.num_epochs, shuffle=self.shuffle, remainder=self.remainder
        )
        good_seed = self.seed is None or (isinstance(self.seed, int) and not isinstance(self.seed, bool))
        if not good_seed or (self.seed is not None and self.seed < 0):
            raise ConfigError("seed", expected="an integer >= 0 or None", found=repr(self.seed), do="set one")


def _check_positive(name: str, value: float) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= 0:
        raise ConfigError(name, expected="a finite number > 0", found=repr(value), do=f"set {name} > 0")
