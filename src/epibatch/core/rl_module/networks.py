"""Layers of the default modules: MLPs, convolutions over images, and the output layers of a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from epibatch.core.columns import Columns
from epibatch.core.distributions.choosing import distribution_for, log_std_columns
from epibatch.core.distributions.distribution import mask_logits
from epibatch.core.errors import ConfigError, RunnerError, SpaceError, nearest
from epibatch.core.rl_module.default_model_config import DefaultModelConfig

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
        in_place = False  # whether x is a tensor made here, which an activation may overwrite
        for layer in self._modules.values():
            if layer is None:
                continue
            kind = type(layer)
            if kind not in _DIRECT or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
                x, in_place = layer(x), False
            elif kind is nn.Linear:
                parameters = layer._parameters  # attribute access on modules is slow
                x, in_place = F.linear(x, parameters["weight"], parameters["bias"]), True  # type: ignore[arg-type]
            elif kind is nn.Tanh:
                x = x.tanh_() if in_place else x.tanh()
            else:
                x = x.relu_() if in_place else x.relu()
        return x


class NoisyLinear(nn.Linear):
    """A linear layer with learned noise on its weights and biases (Fortunato et al. 2018, arXiv:1706.10295).

    Every call draws noise of its own, factorised: one number for each input and each output.

    Args:
        size_in: Number of inputs.
        size_out: Number of outputs.
        sigma0: Scale of the noise at first, times 1 / sqrt(size_in).

    Attributes:
        has_noise: False: the mean weights are used.
    """

    has_noise = True

    def __init__(self, size_in: int, size_out: int, sigma0: float) -> None:
        super().__init__(size_in, size_out)
        scale = sigma0 / math.sqrt(size_in)
        self.weight_scale = nn.Parameter(torch.full((size_out, size_in), scale))
        self.bias_scale = nn.Parameter(torch.full((size_out,), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give `[..., size_out]` for `[..., size_in]`."""
        if not self.has_noise:
            return super().forward(x)
        draws = (torch.randn(size, device=x.device, dtype=x.dtype) for size in (self.in_features, self.out_features))
        inputs, outputs = (draw.sign() * draw.abs().sqrt() for draw in draws)
        weight = self.weight + self.weight_scale * outputs.outer(inputs)
        return F.linear(x, weight, self.bias + self.bias_scale * outputs)


def fc_layers(
    config: DefaultModelConfig,
    prefix: str,
    size_in: int,
    size_out: int | None = None,
    gain: float = 1.0,
    make: Callable[[int, int], nn.Linear] = nn.Linear,
) -> list[nn.Module]:
    """Fully connected layers: the hidden ones, and an output layer without activation if `size_out` is given.

    Args:
        config: The network's options.
        prefix: Which of them: "fcnet" for the encoder, "head_fcnet" for a head.
        size_in: Number of inputs.
        size_out: Number of outputs.
        gain: Gain of the output layer's orthogonal weights.
        make: Makes a layer of its numbers of inputs and outputs.
    """
    layers: list[nn.Module] = []
    for size in config[f"{prefix}_hiddens"]:
        layers.append(_initialized(make(size_in, size), config, prefix, _HIDDEN_GAIN))
        if config[f"{prefix}_use_layernorm"]:
            layers.append(nn.LayerNorm(size))
        layers += _activation(config[f"{prefix}_activation"])
        size_in = size
    if size_out is not None:
        layers.append(_initialized(make(size_in, size_out), config, prefix, gain))
    return layers


def _initialized(layer: nn.Linear, config: DefaultModelConfig, prefix: str, gain: float) -> nn.Linear:
    initialize(config, prefix, [layer.weight], [layer.bias], gain)
    return layer


def _activation(name: str) -> list[nn.Module]:
    """The layer of an activation; none for "linear"."""
    return [] if name == "linear" else [_ACTIVATIONS[name]()]


def initialize(
    config: DefaultModelConfig,
    prefix: str,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    gain: float = 1.0,
) -> None:
    """Fill parameters as the config's initializers say: by default orthogonal weights and zero biases.

    Args:
        config: The network's options.
        prefix: Which of them: "fcnet", "head_fcnet", "conv" or "lstm".
        weights: The tensors for the kernel initializer.
        biases: Those for the bias initializer.
        gain: Gain of orthogonal weights.

    Raises:
        ConfigError: there is no initializer of that name, or it does not take the keywords.
    """
    for kind, parameters in (("kernel", weights), ("bias", biases)):
        initializer = config[f"{prefix}_{kind}_initializer"]
        options = config[f"{prefix}_{kind}_initializer_kwargs"] or {}
        default = partial(nn.init.orthogonal_, gain=gain) if kind == "kernel" else nn.init.zeros_
        fill = default if initializer is None else partial(_initializer(initializer), **options)
        try:
            with torch.no_grad():
                for parameter in parameters:
                    fill(parameter)
        except TypeError as error:
            raise ConfigError(
                "initializer in model_config",
                expected=f"keywords that {initializer!r} takes",
                found=f"{options!r}: {error}",
                do="correct the initializer's ..._kwargs",
            ) from error


def _initializer(initializer: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(initializer, str):
        return initializer
    names = {name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
    name = initializer if initializer.endswith("_") else f"{initializer}_"
    if name not in names:
        raise ConfigError(
            "initializer in model_config",
            expected="the name of a function in torch.nn.init",
            found=repr(initializer),
            do=nearest(name, names),
        )
    function: Callable[..., Any] = getattr(nn.init, name)
    return function


def needs_training(module: nn.Module, name: str) -> RunnerError:
    """The error for asking a module that was built for acting only for what only training needs.

    Args:
        module: The module.
        name: The method or attribute.
    """
    return RunnerError(
        f"{type(module).__name__}.{name}",
        expected="a module built for training",
        found="inference_only=True",
        do="build it with inference_only=False",
    )


_LEAST_SIDE = 8
_LEAST_IMAGE = 16  # smaller ones may be maps with many features


def default_conv_filters(shape: Sequence[int]) -> list[list[int]]:
    """Convolutions for images of a size, as `[channels, kernel, stride]`; none for small ones.

    Images are halved (above 64 pixels first quartered) until no side is longer than 6, with 16 or 32 channels at
    first and twice as many after each step, up to 64. Images with a side under 8 are left to the MLP.

    Args:
        shape: Height, width, channels.

    Examples:
        >>> for side in (84, 64, 42, 10, 5):
        ...     print(side, default_conv_filters((side, side, 3)))
        84 [[32, 8, 4], [64, 4, 2], [64, 4, 2]]
        64 [[16, 4, 2], [32, 4, 2], [64, 4, 2], [64, 4, 2]]
        42 [[16, 4, 2], [32, 4, 2], [64, 4, 2]]
        10 [[16, 4, 2], [32, 4, 2]]
        5 []
    """
    if min(shape[:2]) < _LEAST_SIDE:
        return []
    side, channels, filters = max(shape[:2]), 16, []
    if side > 64:
        filters, side, channels = [[32, 8, 4]], -(-side // 4), 64
    while side > 6 or len(filters) < 2:
        filters.append([channels, 4, 2])
        side, channels = -(-side // 2), min(2 * channels, 64)
    return filters


def conv_size(shape: Sequence[int], filters: Sequence[Sequence[Any]]) -> int:
    """Return the number of features that convolutions make from an image.

    Examples:
        >>> conv_size((10, 10, 3), [[16, 4, 2], [32, 4, 2]])
        288
    """
    height, width, channels = shape
    for count, _, stride in filters:
        vertical, horizontal = _pair(stride)
        height, width, channels = -(-height // vertical), -(-width // horizontal), count
    return height * width * channels


@final
class CNN(nn.Module):
    """Convolutions from images to flat features; images of bytes are scaled to [0, 1].

    Each layer is padded with zeros so that its output has `ceil(side / stride)` rows and columns.

    Args:
        shape: Height, width, channels of one image, or with `conv_channels="first"` channels, height, width.
        filters: `[channels, kernel, stride]` of each layer; kernel and stride are numbers or (height, width).
        config: Activation and initializers, the `conv_` options.

    Raises:
        ConfigError: no filters.

    Examples:
        >>> cnn = CNN((10, 10, 3), [[16, 4, 2], [32, 4, 2]], DefaultModelConfig())
        >>> cnn(torch.zeros(5, 10, 10, 3)).shape, cnn.size
        (torch.Size([5, 288]), 288)
    """

    def __init__(self, shape: Sequence[int], filters: Sequence[Sequence[Any]], config: DefaultModelConfig) -> None:
        super().__init__()
        if not filters:
            raise ConfigError(
                "CNN", expected="at least one layer", found="none", do="set conv_filters to [[16, 4, 2]], say"
            )
        self.shape = tuple(shape)
        self._is_first = config.conv_channels == "first"
        self.sizes = sizes_of(self.shape, config)
        height, width, channels = self.sizes
        layers: list[nn.Module] = []
        for count, kernel, stride in filters:
            kernel, stride = _pair(kernel), _pair(stride)
            padding = [_padding(side, k, step) for side, k, step in zip((height, width), kernel, stride)]
            layers.append(nn.ZeroPad2d((*padding[1], *padding[0])))
            layer = nn.Conv2d(channels, count, kernel, stride)
            biases = [] if layer.bias is None else [layer.bias]
            initialize(config, "conv", [layer.weight], biases, _HIDDEN_GAIN)
            layers += [layer, *_activation(config.conv_activation)]
            height, width, channels = -(-height // stride[0]), -(-width // stride[1]), count
        self.size = conv_size(self.sizes, filters)
        self.layers = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give features `[..., size]` float32 of images `[..., height, width, channels]`, or with the channels first.

        Raises:
            SpaceError: images of another shape.
        """
        lead = with_shape(images, self.shape).shape[:-3]
        x = images.reshape(-1, *self.shape)
        x = x.float() if self._is_first else x.permute(0, 3, 1, 2).float()
        if images.dtype is torch.uint8:
            x = x / 255.0
        features: torch.Tensor = self.layers(x)
        return features.reshape(*lead, self.size)


def sizes_of(shape: Sequence[int], config: DefaultModelConfig) -> tuple[int, int, int]:
    """Height, width and channels of images of a shape.

    Raises:
        SpaceError: the channels seem to come first, and `conv_channels` does not say so.

    Examples:
        >>> sizes_of((3, 84, 60), DefaultModelConfig(conv_channels="first"))
        (84, 60, 3)
    """
    first, second, third = shape
    if config.conv_channels == "first":
        return second, third, first
    if config.conv_channels is None and first < min(second, third) and min(second, third) >= _LEAST_IMAGE:
        raise SpaceError(
            f"images of shape {tuple(shape)} for a default module",
            expected="the channels last, (height, width, channels)",
            found=f"{first} before {second} and {third}: the channels seem to come first, as to_chw_float puts them",
            do="leave to_chw_float out, as default modules move and scale images themselves; or say which it is, "
            'model_config={"conv_channels": "first"} or "last"',
        )
    return first, second, third


def with_shape(part: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Give `part`, a part of the observations, if its last axes are `shape`.

    Raises:
        SpaceError: they are not.
    """
    lead = part.dim() - len(shape)
    if lead < 0 or tuple(part.shape[lead:]) != shape:
        raise SpaceError(
            "observations of a default module",
            expected=f"shape [batch, ...] + {shape}, as the module's observation_space says",
            found=f"shape {tuple(part.shape)}",
            do="build the module with the space that the env-to-module pipeline puts out, and give the learner "
            "pipeline the pieces that change observations too",
        )
    return part


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after, an odd one after, for an output of ceil(side / stride)."""
    total = max(0, (-(-side // stride) - 1) * stride + kernel - side)
    return total // 2, total - total // 2


@final
class PolicyHead(nn.Module):
    """From an encoder's output to the inputs of the action distribution.

    For the float Boxes among the actions it clips the log standard deviations; with `free_log_std` they are
    a parameter.

    Args:
        body: Layers to run before the head's own, for a policy that has its encoder to itself.
        size_in: Number of inputs of the head.
        action_space: What `distribution_for` has a distribution for.
        config: The network's options.

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
        head = fc_layers(config, "head_fcnet", size_in, size_out, gain=0.01)
        self.net = MLP(*body, *head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give `[..., required_input_dim]` for features `[..., size_in]`."""
        out = run(self._modules["net"], x)  # type: ignore[arg-type]  # attribute access on modules is slow
        if not self._clips:
            return out
        if self.log_std is not None:
            out = torch.cat((out, self.log_std.expand(*out.shape[:-1], -1)), -1).index_select(-1, self._order)
        return torch.where(self._is_log_std, out.clamp(-self._clip, self._clip), out)


def masked_outputs(logits: torch.Tensor, batch: Mapping[str, Any]) -> dict[str, Any]:
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
