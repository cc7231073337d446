"""What the default modules are built of: observation input, MLP, policy head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from epibatch.core.distributions import DiagGaussian, distribution_for
from epibatch.core.errors import ConfigError, RunnerError, SpaceError, explain, nearest
from epibatch.core.rl_module.default_model_config import DefaultModelConfig

__all__ = [
    "MLP",
    "LayerStyle",
    "ObservationInput",
    "PolicyHead",
    "encoder_style",
    "head_style",
    "init_parameters",
    "no_value_function",
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


@final
class ObservationInput:
    """Turns a batch of observations into the float vectors that an MLP takes.

    Args:
        space: a Box (other than one axis: flattened; other than float32: cast) or a Discrete (one-hot).

    Raises:
        SpaceError: any other space.

    Example:
        >>> ObservationInput(gym.spaces.Discrete(3))(torch.tensor([2, 0]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """

    def __init__(self, space: gym.Space[Any] | None) -> None:
        self._classes = 0
        self._start = 0
        self._shape: tuple[int, ...] = ()
        if isinstance(space, gym.spaces.Discrete):
            self._classes, self._start = int(space.n), int(space.start)
            self.size = self._classes
        elif isinstance(space, gym.spaces.Box):
            self._shape = tuple(space.shape)
            self.size = int(np.prod(self._shape))
        else:
            raise SpaceError(
                explain(
                    "observation space of a default module",
                    expected="a Box or a Discrete space",
                    found=space,
                    do="flatten them (gymnasium.wrappers.FlattenObservation), or write an RLModule of your own",
                )
            )
        self._is_vector = len(self._shape) == 1

    def __call__(self, obs: torch.Tensor) -> torch.Tensor:
        """Give `[..., size]` float32 for observations `[..., *space.shape]`."""
        if self._is_vector and obs.dtype is torch.float32 and obs.shape[-1] == self.size:
            return obs
        if self._classes:
            return F.one_hot(obs.long() - self._start, self._classes).float()
        lead = obs.dim() - len(self._shape)
        if lead < 0 or tuple(obs.shape[lead:]) != self._shape:
            raise SpaceError(
                explain(
                    "observations of a default module",
                    expected=f"shape [batch, ...] + {self._shape}, as the module's observation_space says",
                    found=f"shape {tuple(obs.shape)}",
                    do="build the module with the space that the env-to-module pipeline puts out",
                )
            )
        return obs.reshape(*obs.shape[:lead], self.size).float()


@final
class MLP(nn.Sequential):
    """An `nn.Sequential` whose plain Linear and Tanh or ReLU layers are computed without a call per layer.

    At a batch of one the calls cost as much as the arithmetic. Layers of other types, and layers with
    hooks, are called as usual.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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
    """How the layers of an MLP are made.

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
            if self.activation != "linear":
                layers.append(_ACTIVATIONS[self.activation]())
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
                explain(
                    "initializer in model_config",
                    expected="the name of a function in torch.nn.init",
                    found=repr(initializer),
                    do=nearest(name, known),
                )
            )
        fill = partial(getattr(nn.init, name), **options)
    elif initializer is not None:
        fill = partial(initializer, **options)
    with torch.no_grad():
        for parameter in parameters:
            fill(parameter)


@final
class PolicyHead(nn.Module):
    """From an encoder's output to the inputs of the action distribution.

    For Box actions it clips the log standard deviations; with `free_log_std` they are a parameter.

    Args:
        body: layers to run before the head's own, for a policy that has its encoder to itself.
        size_in: number of inputs of the head.
        action_space: Discrete, or a float Box with one axis.
        config: the network's options.

    Raises:
        SpaceError: no default distribution fits the action space.
    """

    def __init__(
        self, body: Sequence[nn.Module], size_in: int, action_space: gym.Space[Any] | None, config: DefaultModelConfig
    ) -> None:
        super().__init__()
        distribution = distribution_for(action_space)
        size_out = distribution.required_input_dim(action_space) if action_space is not None else 0
        self._is_gaussian = distribution is DiagGaussian
        self._clip = float(config.log_std_clip_param)
        self.log_std: nn.Parameter | None = None
        if self._is_gaussian and config.free_log_std:
            size_out //= 2
            self.log_std = nn.Parameter(torch.zeros(size_out))
        head = head_style(config).layers(size_in, config.head_fcnet_hiddens, size_out, gain=0.01)
        self.net = MLP(*body, *head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give `[..., required_input_dim]` for features `[..., size_in]`."""
        out: torch.Tensor = self.net(x)
        if not self._is_gaussian:
            return out
        if self.log_std is not None:
            mean, log_std = out, self.log_std.expand_as(out)
        else:
            mean, log_std = out.chunk(2, -1)
        return torch.cat((mean, log_std.clamp(-self._clip, self._clip)), -1)


def no_value_function(module: nn.Module) -> RunnerError:
    """The error for asking a module without a value function for values."""
    return RunnerError(
        explain(
            f"{type(module).__name__}.compute_values",
            expected="a module built for training",
            found="inference_only=True",
            do="build it with inference_only=False",
        )
    )
