"""Devices that tensors can live on."""

from __future__ import annotations

import re

__all__ = ["device_name", "missing_device"]

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


def device_name(device: object) -> str:
    """The name of a device that tensors with values can live on.

    Args:
        device: a `torch.device` or its name.

    Raises:
        ValueError: it names no device, or "meta", which has no tensor values.

    Example:
        >>> device_name("cuda:1")
        'cuda:1'
    """
    name = str(device)
    if name == "meta":
        raise ValueError("expected a device whose tensors have values; those on 'meta' have none")
    if not _DEVICE.fullmatch(name):
        raise ValueError("expected the name of a device: cpu, cuda, cuda:0, mps or xpu")
    return name


def missing_device(name: str) -> str | None:
    """Return the reason why a device cannot be used here; None if it can.

    Args:
        name: what `device_name` gave.
    """
    import torch

    try:
        torch.empty(1, device=name).fill_(0)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0]
    return None
