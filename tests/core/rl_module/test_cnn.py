"""Convolutions over images, channels last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module.cnn import CNN, conv_size, default_conv_filters
from epibatch.core.rl_module.default_model_config import DefaultModelConfig


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 8, (3, 5)])
@pytest.mark.parametrize("stride", [1, 2, 3, (2, 1)])
@pytest.mark.parametrize("size", [(7, 9), (10, 10), (4, 5)])
def test_sizes_are_those_of_same_padding(size, stride, kernel):
    shape = (*size, 2)
    cnn = CNN(shape, [[3, kernel, stride], [2, kernel, stride]], DefaultModelConfig())
    down, across = (stride, stride) if isinstance(stride, int) else stride
    rows, columns = size
    for _ in range(2):
        rows, columns = -(-rows // down), -(-columns // across)
    assert cnn.size == rows * columns * 2 == conv_size(shape, [[3, kernel, stride], [2, kernel, stride]])
    assert cnn(torch.zeros(2, *shape)).shape == (2, cnn.size)


def test_it_computes_convolutions_of_channels_last_images():
    cnn = CNN((6, 8, 3), [[4, 3, 1]], DefaultModelConfig(conv_activation="tanh"))
    images = torch.rand(5, 6, 8, 3)
    layer = cnn.layers[1]
    expected = F.conv2d(images.permute(0, 3, 1, 2), layer.weight, layer.bias, padding=1).tanh()
    torch.testing.assert_close(cnn(images), expected.flatten(1))


def test_bytes_are_scaled_and_other_types_are_not():
    cnn = CNN((8, 8, 1), [[2, 4, 2]], DefaultModelConfig())
    images = torch.randint(0, 256, (3, 8, 8, 1), dtype=torch.uint8)
    torch.testing.assert_close(cnn(images), cnn(images.float() / 255.0))
    torch.testing.assert_close(cnn(images.int()), cnn(images.float()))


def test_leading_axes_are_kept():
    cnn = CNN((8, 8, 2), [[2, 4, 2]], DefaultModelConfig())
    images = torch.rand(3, 5, 8, 8, 2)
    out = cnn(images)
    assert out.shape == (3, 5, cnn.size)
    torch.testing.assert_close(out[1, 2], cnn(images[1, 2]))
    assert cnn(torch.zeros(0, 8, 8, 2)).shape == (0, cnn.size)


@pytest.mark.parametrize("height", [*range(8, 40), 42, 64, 65, 84, 96, 128, 210, 512])
def test_default_filters_leave_little_of_images_of_every_size(height):
    for width in {height, max(8, height // 2), height + 17}:
        filters = default_conv_filters((height, width, 3))
        assert len(filters) >= 2
        assert 2 <= conv_size((height, width, 3), filters) / filters[-1][0] <= 36


def test_options_of_the_config():
    config = DefaultModelConfig(
        conv_activation="linear",
        conv_kernel_initializer="constant_",
        conv_kernel_initializer_kwargs={"val": 0.5},
        conv_bias_initializer="ones_",
    )
    cnn = CNN((8, 8, 1), [[2, 2, 2]], config)
    assert cnn(torch.ones(1, 8, 8, 1)).unique().tolist() == [3.0]
    torch.manual_seed(0)
    weight = CNN((8, 8, 1), [[4, 2, 2]], DefaultModelConfig()).layers[1].weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(4), rtol=0, atol=1e-5)


def test_wrong_uses_are_named():
    with pytest.raises(ConfigError, match="at least one layer"):
        CNN((8, 8, 1), [], DefaultModelConfig())
    with pytest.raises(SpaceError, match=r"\(8, 8, 1\)"):
        CNN((8, 8, 1), [[2, 2, 2]], DefaultModelConfig())(torch.zeros(1, 1, 8, 8))
