"""Checking a learner's state, and restoring each module's part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from epibatch.core.errors import CheckpointError, add_context
from epibatch.core.restoring import check_like
from epibatch.core.state_codec import state_parts
from epibatch.core.structs import map_struct

if TYPE_CHECKING:
    from .module_trainer import ModuleTrainer

__all__ = ["check_state", "copies", "take_over"]

_PARTS = ("module", "optimizers", "coefficients", "generators", "num_updates", "num_gradient_steps")
_PER_MODULE = ("module", "coefficients", "generators")


def check_state(state: Any, module_ids: Sequence[str]) -> None:
    """Check that a state has all its parts, and has exactly these modules.

    Raises:
        CheckpointError: it is no state, lacks a part, or modules are missing in it or in the learner.
    """
    state_parts("Learner.set_state", state)
    missing = [name for name in _PARTS if name not in state]
    if missing:
        raise _error(f"parts {', '.join(_PARTS)}", f"no {', '.join(missing)}")
    for part in _PER_MODULE:
        own = state_parts(f"learner state, {part!r}", state[part])
        strange = [key for key in own if key not in module_ids]
        lacking = [key for key in module_ids if key not in own]
        if strange:
            names = ", ".join(map(repr, strange))
            do = f"add {names} first with add_module, or restore the state before it was added"
            raise _error(f"{part!r} of modules {_names(module_ids)}", f"that of {names} too", do)
        if lacking:
            names = ", ".join(map(repr, lacking))
            do = f"remove {names} first with remove_module, or give it a state too"
            raise _error(f"{part!r} of modules {_names(module_ids)}", f"none of {names}", do)
    for module_id in state_parts("learner state, 'optimizers'", state["optimizers"]):
        if module_id not in module_ids:
            raise _error(f"modules {_names(module_ids)}", f"an optimiser of {module_id!r}")


def take_over(module_id: str, trainer: ModuleTrainer, state: Mapping[str, Any]) -> None:
    """Restore a module's trainer from its part of a learner's state.

    Raises:
        CheckpointError: the part does not fit.
    """
    coefficients = state["coefficients"][module_id]
    check_like(f"learner state, coefficients of {module_id!r}", coefficients, trainer.coefficients)
    if not all(map(math.isfinite, coefficients.values())):
        raise _error(f"finite coefficients of {module_id!r}", str(coefficients))
    trainer.coefficients = dict(coefficients)
    trainer.set_order(state["generators"][module_id])
    trainer.optimizer = None
    if module_id in state["optimizers"]:
        optimizer = trainer.prepare()
        if optimizer is None:
            raise _error(f"no optimiser of {module_id!r}, which has nothing to train", f"an optimiser of {module_id!r}")
        try:
            optimizer.set_state(state["optimizers"][module_id])
        except CheckpointError as error:
            add_context(error, f"in module {module_id!r}:")
            raise


def copies(state: Any) -> Any:
    """Return copies of the arrays of a state, tensors as arrays."""
    return map_struct(_copy, state)


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().numpy().copy()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _names(module_ids: Sequence[str]) -> str:
    return ", ".join(map(repr, module_ids)) or "none"


def _error(expected: str, found: str, do: str = "restore a state that Learner.get_state gave") -> CheckpointError:
    return CheckpointError("learner state", expected=expected, found=found, do=do)
