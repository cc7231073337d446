"""Logits of which some choices are illegal."""

from __future__ import annotations

import torch

from epibatch.core.errors import ColumnError

__all__ = ["mask_logits"]


def mask_logits(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits with the lowest number of their type where a choice is illegal.

    A `Categorical` or `MultiCategorical` of them is the distribution over the legal choices: illegal ones have
    probability 0 and are neither drawn nor the most likely, `logp` of legal ones, `entropy` and `kl` are those of the
    smaller distribution, and no gradient reaches the logits of illegal ones. Unlike -inf the number can be stored,
    compared and averaged. After Huang & Ontañón (2022), "A closer look at invalid action masking in policy gradient
    algorithms".

    Rows without a single True are left as they are: padding of sequences, and observations with which episodes ended.
    The piece `ActionMask` refuses such rows where an action has to follow.

    Args:
        logits: Float tensor [..., n].
        mask: Legal choices: bool, or 0 and 1, [..., n]; the choices of several entries are concatenated.

    Raises:
        ColumnError: a mask of another shape.

    Example:
        >>> from epibatch.core.distributions import TorchCategorical
        >>> masked = mask_logits(torch.zeros(1, 3), torch.tensor([[True, False, True]]))
        >>> TorchCategorical.from_logits(masked).probs
        tensor([[0.5000, 0.0000, 0.5000]])
    """
    if mask.shape != logits.shape:
        raise ColumnError(
            "action_mask",
            expected=f"one entry for each logit, shape {list(logits.shape)}",
            found=f"shape {list(mask.shape)}",
            do="mask all choices of the action space the module is built for: "
            "put ActionMask after the pieces that change it",
        )
    legal = mask if mask.dtype is torch.bool else mask != 0
    kept = legal | ~legal.any(-1, keepdim=True)
    return torch.where(kept, logits, torch.finfo(logits.dtype).min)
