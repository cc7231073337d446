"""Layers of the default modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from epibatch.core.errors import ConfigError, RunnerError, nearest
from epibatch.core.rl_module.default_model_config import DefaultModelConfig

__all__ = [
    "MLP",
    "LayerStyle",
    "activation_layers",
    "encoder_style",
    "head_style",
    "init_parameters",
    "no_value_function",
    "run",
]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}
_DIRECT = frozenset((nn.Linear, nn.Tanh, nn.ReLU))
_HIDDEN_GAIN = math.sqrt(2.0)


def run(module: nn.Module, x: Any) -> torch.Tensor:
    """Return `module(x)`, without the overhead of the call if there are no hooks.

    At a batch of one that cost is a tenth of a small network's. Hooks of the module, and those of all modules, are run.
    """
    own = module.__dict__
    hooked = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    hooked = hooked or _has_any_global_hook()  # type: ignore[no-untyped-call]
    out: torch.Tensor = module(x) if hooked or module._compiled_call_impl is not None else module.forward(x)
    return out


@final
class MLP(nn.Sequential):
    """An `nn.Sequential` that computes plain Linear and Tanh or ReLU layers without a call per layer.

    At a batch of one the calls cost as much as the arithmetic. Layers of other types, and layers with
    hooks, are called as usual, and all of them where there are hooks of all modules.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _has_any_global_hook():  # type: ignore[no-untyped-call]
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        owned = False  # whether x is a tensor made here, which an activation may overwrite
        for layer in self._modules.values():
            if layer is None:
                continue
            kind = type(layer)
            if kind not in _DIRECT or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
                x, owned = layer(x), False
            elif kind is nn.Linear:
                parameters = layer._parameters  # attribute access on modules is slow
                x, owned = F.linear(x, parameters["weight"], parameters["bias"]), True  # type: ignore[arg-type]
            elif kind is nn.Tanh:
                x = x.tanh_() if owned else x.tanh()
            else:
                x = x.relu_() if owned else x.relu()
        return x


@dataclass(frozen=True)
class LayerStyle:
    """Style of the layers of an MLP.

    Args:
        activation: name of the activation after hidden layers.
        layernorm: whether hidden layers are normalised before it.
        kernel: initializer of weights and its keywords; None is orthogonal.
        bias: initializer of biases and its keywords; None is zeros.
    """

    activation: str
    layernorm: bool
    kernel: tuple[str | Callable[..., Any] | None, Mapping[str, Any]]
    bias: tuple[str | Callable[..., Any] | None, Mapping[str, Any]]

    def layers(
        self, size_in: int, hiddens: Sequence[int], size_out: int | None = None, gain: float = 1.0
    ) -> list[nn.Module]:
        """Hidden layers, and an output layer without activation if `size_out` is given.

        Args:
            size_in: number of inputs.
            hiddens: sizes of the hidden layers.
            size_out: number of outputs.
            gain: gain of the output layer's orthogonal weights.
        """
        layers: list[nn.Module] = []
        for size in hiddens:
            layers.append(self._linear(size_in, size, _HIDDEN_GAIN))
            if self.layernorm:
                layers.append(nn.LayerNorm(size))
            layers += activation_layers(self.activation)
            size_in = size
        if size_out is not None:
            layers.append(self._linear(size_in, size_out, gain))
        return layers

    def _linear(self, size_in: int, size_out: int, gain: float) -> nn.Linear:
        layer = nn.Linear(size_in, size_out)
        init_parameters([layer.weight], *self.kernel, default=lambda w: nn.init.orthogonal_(w, gain))
        init_parameters([layer.bias], *self.bias, default=nn.init.zeros_)
        return layer


def encoder_style(config: DefaultModelConfig) -> LayerStyle:
    """The layers of the encoder, as the `fcnet_` options say."""
    return LayerStyle(
        config.fcnet_activation,
        config.fcnet_use_layernorm,
        (config.fcnet_kernel_initializer, config.fcnet_kernel_initializer_kwargs or {}),
        (config.fcnet_bias_initializer, config.fcnet_bias_initializer_kwargs or {}),
    )


def head_style(config: DefaultModelConfig) -> LayerStyle:
    """The layers of the heads, as the `head_fcnet_` options say."""
    return LayerStyle(
        config.head_fcnet_activation,
        config.head_fcnet_use_layernorm,
        (config.head_fcnet_kernel_initializer, config.head_fcnet_kernel_initializer_kwargs or {}),
        (config.head_fcnet_bias_initializer, config.head_fcnet_bias_initializer_kwargs or {}),
    )


def activation_layers(name: str) -> list[nn.Module]:
    """The layer of an activation; none for "linear"."""
    return [] if name == "linear" else [_ACTIVATIONS[name]()]


def init_parameters(
    parameters: Sequence[torch.Tensor],
    initializer: str | Callable[..., Any] | None,
    options: Mapping[str, Any],
    *,
    default: Callable[[torch.Tensor], Any],
) -> None:
    """Fill parameters in place.

    Args:
        parameters: the tensors to fill.
        initializer: name of a function in `torch.nn.init`, a callable, or None for `default`.
        options: keywords for a named or given initializer.
        default: what fills a tensor when there is no initializer.

    Raises:
        ConfigError: there is no function of that name.
    """
    fill = default
    if isinstance(initializer, str):
        known = {name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
        name = initializer if initializer.endswith("_") else f"{initializer}_"
        if name not in known:
            raise ConfigError(
                "initializer in model_config",
                expected="the name of a function in torch.nn.init",
                found=repr(initializer),
                do=nearest(name, known),
            )
        fill = partial(getattr(nn.init, name), **options)
    elif initializer is not None:
        fill = partial(initializer, **options)
    try:
        with torch.no_grad():
            for parameter in parameters:
                fill(parameter)
    except TypeError as error:
        raise ConfigError(
            "initializer in model_config",
            expected=f"keywords that {initializer!r} takes",
            found=f"{dict(options)!r}: {error}",
            do="correct the initializer's ..._kwargs",
        ) from error


def no_value_function(module: nn.Module) -> RunnerError:
    """The error for asking a module without a value function for values."""
    return RunnerError(
        f"{type(module).__name__}.compute_values",
        expected="a module built for training",
        found="inference_only=True",
        do="build it with inference_only=False",
    )
