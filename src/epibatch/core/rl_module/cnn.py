"""Convolutions over images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import activation_layers, init_parameters

__all__ = ["CNN", "conv_size", "default_conv_filters", "sizes_of", "with_shape"]

_LEAST_SIDE = 8
_LEAST_IMAGE = 16  # smaller ones may be maps with many features


def default_conv_filters(shape: Sequence[int]) -> list[list[int]]:
    """Convolutions for images of a size, as `[channels, kernel, stride]`; none for small ones.

    Images are halved (above 64 pixels first quartered) until no side is longer than 6, with 16 or 32 channels at
    first and twice as many after each step, up to 64. Images with a side under 8 are left to the MLP.

    Args:
        shape: height, width, channels.

    Example:
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

    Example:
        >>> conv_size((10, 10, 3), [[16, 4, 2], [32, 4, 2]])
        288
    """
    height, width, channels = shape
    for count, _, stride in filters:
        down, across = _pair(stride)
        height, width, channels = -(-height // down), -(-width // across), count
    return height * width * channels


@final
class CNN(nn.Module):
    """Convolutions from images to flat features; images of bytes are scaled to [0, 1].

    Each layer is padded with zeros so that its output has `ceil(side / stride)` rows and columns.

    Args:
        shape: height, width, channels of one image, or with `conv_channels="first"` channels, height, width.
        filters: `[channels, kernel, stride]` of each layer; kernel and stride are numbers or (height, width).
        config: activation and initializers, the `conv_` options.

    Raises:
        ConfigError: no filters.

    Example:
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
            layers.append(_convolution(channels, count, kernel, stride, config))
            layers += activation_layers(config.conv_activation)
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

    Example:
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


def _convolution(
    channels: int, count: int, kernel: tuple[int, int], stride: tuple[int, int], config: DefaultModelConfig
) -> nn.Conv2d:
    layer = nn.Conv2d(channels, count, kernel, stride)
    init_parameters(
        [layer.weight],
        config.conv_kernel_initializer,
        config.conv_kernel_initializer_kwargs or {},
        default=lambda weight: nn.init.orthogonal_(weight, math.sqrt(2.0)),
    )
    if layer.bias is not None:
        init_parameters(
            [layer.bias],
            config.conv_bias_initializer,
            config.conv_bias_initializer_kwargs or {},
            default=nn.init.zeros_,
        )
    return layer


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after, an odd one after, for an output of ceil(side / stride)."""
    total = max(0, (-(-side // stride) - 1) * stride + kernel - side)
    return total // 2, total - total // 2
