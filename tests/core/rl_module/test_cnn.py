"""Convolutions over images, channels last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import CNN, conv_size, default_conv_filters, sizes_of


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


def test_channels_first_give_what_channels_last_give():
    torch.manual_seed(0)
    last = CNN((9, 11, 3), [[4, 3, 2]], DefaultModelConfig())
    first = CNN((3, 9, 11), [[4, 3, 2]], DefaultModelConfig(conv_channels="first"))
    first.load_state_dict(last.state_dict())
    for images in (torch.rand(2, 5, 9, 11, 3), torch.randint(0, 256, (4, 9, 11, 3), dtype=torch.uint8)):
        torch.testing.assert_close(first(images.movedim(-1, -3)), last(images))
    assert (first.size, first.sizes) == (last.size, (9, 11, 3))


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 16, 20), (12, 84, 84), (4, 210, 160)])
def test_channels_that_seem_to_come_first_are_asked_about(shape):
    with pytest.raises(SpaceError, match="to_chw_float") as caught:
        sizes_of(shape, DefaultModelConfig())
    assert 'model_config={"conv_channels": "first"} or "last"' in str(caught.value)
    assert sizes_of(shape, DefaultModelConfig(conv_channels="first")) == (*shape[1:], shape[0])
    assert sizes_of(shape, DefaultModelConfig(conv_channels="last")) == shape


@pytest.mark.parametrize("shape", [(64, 64, 3), (210, 160, 3), (5, 9, 26), (8, 8, 111), (10, 10, 4), (19, 19, 17)])
def test_images_and_maps_of_features_are_taken_as_they_are(shape):
    assert sizes_of(shape, DefaultModelConfig()) == shape


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
