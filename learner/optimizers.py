"""One module's optimiser: construction, gradient clipping, and its state as arrays under parameter names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from epibatch.core.errors import CheckpointError
from epibatch.core.restoring import check_like, restoring

from .settings import LearnerSettings

__all__ = ["ModuleOptimizer"]

_AVERAGES = ("exp_avg", "exp_avg_sq")


class ModuleOptimizer:
    """Steps the parameters of one module that require gradients.

    Adam runs fused, which on one CPU core takes under a third of the per-tensor loop's time; where the
    installed torch has no fused kernel for the device, torch's default is used.

    Args:
        parameters: name -> parameter, all requiring gradients.
        settings: learning rate and clipping.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: LearnerSettings) -> None:
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._settings = settings
        self._optimizer = _adam(self._parameters, settings.lr)

    def zero_grad(self) -> None:
        """Forget the gradients of the last minibatch."""
        for parameter in self._parameters:
            parameter.grad = None

    def clip(self) -> torch.Tensor:
        """Clip the gradients as the settings say and return their global norm before clipping."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not gradients:
            return torch.zeros((), device=self._parameters[0].device)
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
        total: torch.Tensor = torch.linalg.vector_norm(norms)
        bound = self._settings.grad_clip
        if bound is None:
            return total
        if self._settings.grad_clip_by == "value":
            for gradient in gradients:
                gradient.clamp_(-bound, bound)
        elif self._settings.grad_clip_by == "norm":
            for gradient, norm in zip(gradients, norms):
                gradient.mul_((bound / (norm + 1e-6)).clamp(max=1.0))
        elif float(total) > bound:
            scale = bound / (total + 1e-6)
            for gradient in gradients:
                gradient.mul_(scale)
        return total

    def step(self) -> None:
        """Apply the gradients."""
        self._optimizer.step()

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Copies of the optimiser's values: parameter name -> {value name: array or number}."""
        state: dict[str, dict[str, Any]] = {}
        for name, parameter in zip(self._names, self._parameters):
            values = self._optimizer.state.get(parameter, {})
            state[name] = {key: _to_array(value) for key, value in values.items()}
        return state

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what `get_state` returned.

        Every entry is compared with its parameter first: torch's fused kernels trust the sizes that they are given.

        Raises:
            CheckpointError: the state belongs to other parameters, or an entry has another shape or type, or numbers
                that Adam never has; nothing was changed.
        """
        with restoring("optimiser state", "optimizers"):
            values = self._values(state)
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": values, "param_groups": groups})

    def _values(self, state: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, torch.Tensor]]:
        if set(state) != set(self._names):
            raise _state_error(f"values for {sorted(self._names)}", f"values for {sorted(state)}")
        values: dict[int, dict[str, torch.Tensor]] = {}
        for index, (name, parameter) in enumerate(zip(self._names, self._parameters)):
            given = state[name]
            if isinstance(given, Mapping) and not given:  # no step was taken yet
                continue
            check_like(f"optimiser state of {name!r}", given, {"step": 0.0, **dict.fromkeys(_AVERAGES, parameter)})
            own = values[index] = {key: torch.from_numpy(np.array(value)) for key, value in given.items()}
            sound = torch.isfinite(own["exp_avg"]).all() and (own["exp_avg_sq"] >= 0).all()
            if not sound or not 0 <= float(own["step"]) < math.inf:
                expected = "a finite step from 0 and exp_avg, and exp_avg_sq from 0"
                raise _state_error(expected, f"NaN, infinite or negative numbers in those of {name!r}")
        return values


def _adam(parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.Adam:
    try:
        return torch.optim.Adam(parameters, lr=lr, fused=True)
    except RuntimeError:
        return torch.optim.Adam(parameters, lr=lr)


def _to_array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
    return value


def _state_error(expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        "optimiser state", expected=expected, found=found, do="restore into the module it was saved with"
    )
