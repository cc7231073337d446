"""RLModules made of torch modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from epibatch.core.errors import CheckpointError
from epibatch.core.restoring import converted_numbers, restoring
from epibatch.core.rl_module.rl_module import RLModule
from epibatch.core.state_codec import state_parts
from epibatch.core.tensors import convert_to_numpy

__all__ = ["TorchRLModule"]

# One for all calls: it is entered only where gradients are on, so that what it puts back is always that.
_NO_GRAD = torch.no_grad()


class TorchRLModule(nn.Module, RLModule):
    """An RLModule that is a `torch.nn.Module`: assign layers in `setup`, compute in `_forward`.

    Acting (`forward_inference`, `forward_exploration`) computes no gradients. The methods do not switch between
    `train()` and `eval()`: their callers do. Runners, policies and the learner pipeline run the module in evaluation
    mode, and the learner's gradient steps in the mode that you gave it (training mode, unless you call `eval()`).

    Args:
        **kwargs: the keywords of `RLModule`.

    Example:
        >>> class Linear(TorchRLModule):
        ...     def setup(self):
        ...         self.layer = nn.Linear(4, 2)
        ...     def _forward(self, batch, **kwargs):
        ...         return {"action_dist_inputs": self.layer(batch["obs"])}
        >>> Linear().forward_exploration({"obs": torch.zeros(3, 4)})["action_dist_inputs"].shape
        torch.Size([3, 2])
    """

    framework: str | None = "torch"

    def __init__(self, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        RLModule.__init__(self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry; torch's own method, which comes first, knows nothing of RLModule's."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_dist_cls": None}

    def forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """What calling the module gives: the same as `forward_train`."""
        return self.forward_train(batch, **kwargs)

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if torch.is_grad_enabled():
            with _NO_GRAD:
                return self._forward_inference(batch, **kwargs)
        return self._forward_inference(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if torch.is_grad_enabled():
            with _NO_GRAD:
                return self._forward_exploration(batch, **kwargs)
        return self._forward_exploration(batch, **kwargs)

    @property
    def device(self) -> torch.device:
        """Where the module's parameters are; the CPU for a module without any."""
        parameter = next(self.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need, such as the value head."""
        return []

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Copies of all parameters and buffers, by name.

        Args:
            components: accepted for all checkpointable classes; a module has no parts to choose from.
            not_components: likewise.
            inference_only: leave out the attributes in `get_non_inference_attributes`.
        """
        tensors = self.state_dict()
        return {
            name: np.array(convert_to_numpy(tensor))
            for name, tensor in tensors.items()
            if not (inference_only and self._is_for_training(name))
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Copy parameters and buffers in, by name.

        A module built with `inference_only=True` passes over what only training needs.

        Args:
            state: what `get_state` gave; arrays or tensors.

        Raises:
            CheckpointError: names are missing or unknown, shapes differ, or values are no numbers of the kind that
                they are for, such as 0.5 for a counter; nothing was changed.
        """
        where = f"{type(self).__name__}.set_state"
        state_parts(where, state)
        own = self.state_dict()
        if self.inference_only:
            state = {name: value for name, value in state.items() if name in own or not self._is_for_training(name)}
            own = {name: tensor for name, tensor in own.items() if name in state or not self._is_for_training(name)}
        problems = [f"{name} is missing" for name in own if name not in state]
        problems += [f"{name} is unknown" for name in state if name not in own]
        with restoring(where, "weights"):
            problems += [
                f"{name} has shape {tuple(np.shape(state[name]))}, not {tuple(own[name].shape)}"
                for name in own
                if name in state and tuple(np.shape(state[name])) != tuple(own[name].shape)
            ]
        if problems:
            raise CheckpointError(
                where,
                expected="the state of a module of the same class, spaces and model_config",
                found="; ".join(problems),
                do="build the module as it was built when the state was taken",
            )
        with restoring(where, "weights"), torch.no_grad():
            values = {name: converted_numbers(f"{where}, {name!r}", state[name], own[name]) for name in own}
            for name, tensor in own.items():
                tensor.copy_(values[name])

    def _is_for_training(self, name: str) -> bool:
        return any(name == part or name.startswith(f"{part}.") for part in self.get_non_inference_attributes())
