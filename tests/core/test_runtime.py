"""Devices that tensors can live on."""

from __future__ import annotations

import pytest
import torch

from epibatch.core.runtime import device_error, device_name


@pytest.mark.parametrize(
    "device", ["cpu", "cuda", "cuda:3", "mps", "xpu:0", torch.device("cpu"), torch.device("cuda", 1)]
)
def test_names(device):
    assert device_name(device) == str(device)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("meta", "have none"),
        ("gpu", "cpu, cuda"),
        ("cuda:", "cpu, cuda"),
        ("cuda:x", "cpu, cuda"),
        (None, "cpu"),
        (0, "cpu"),
    ],
)
def test_what_is_no_device(device, words):
    with pytest.raises(ValueError, match=words):
        device_name(device)


def test_the_cpu_is_everywhere():
    assert device_error("cpu") is None


def test_a_device_that_is_not_there_is_missing():
    assert device_error(f"cuda:{torch.cuda.device_count()}")
