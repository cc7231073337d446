"""Devices, random generators and evaluation mode of the running process; torch is used only where it is loaded."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


_NOTHING = nullcontext()


def without_gradients() -> AbstractContextManager[Any]:
    """Return a context without gradients, which costs next to nothing inside of another one."""
    import torch

    return torch.no_grad() if torch.is_grad_enabled() else _NOTHING


def device_name(device: object) -> str:
    """The name of a device that tensors with values can live on.

    Args:
        device: A `torch.device` or its name.

    Raises:
        ValueError: it names no device, or "meta", which has no tensor values.

    Examples:
        >>> device_name("cuda:1")
        'cuda:1'
    """
    name = str(device)
    if name == "meta":
        raise ValueError("expected a device whose tensors have values; those on 'meta' have none")
    if not _DEVICE.fullmatch(name):
        raise ValueError("expected the name of a device: cpu, cuda, cuda:0, mps or xpu")
    return name


def device_error(name: str) -> str | None:
    """Return the reason why a device cannot be used here; None if it can.

    Args:
        name: What `device_name` gave.
    """
    import torch

    try:
        torch.empty(1, device=name).fill_(0)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0]
    return None


def usable_device(device: torch.device | str, where: str) -> torch.device:
    """Return a device on which tensors can be made here.

    Args:
        device: A `torch.device` or its name.
        where: What it was given to, for the message.

    Raises:
        ConfigError: torch has no such device, or it cannot be used here.
    """
    import torch

    fault = device_error(str(device))
    if fault is not None:
        do = "choose another one; cpu can be used everywhere"
        found = f"{str(device)!r}: {fault}"
        raise ConfigError(f"{where}, device", expected="a device that can be used here", found=found, do=do)
    return torch.empty(0, device=device).device


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Put the random states of Python, of NumPy and, if it is loaded, of torch back at the end.

    Examples:
        >>> random.seed(0)
        >>> with preserve_random_state():
        ...     inside = random.random()
        >>> random.random() == inside
        True
    """
    torch, states = sys.modules.get("torch"), (random.getstate(), np.random.get_state())
    try:
        if torch is None:
            yield
        else:
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            with torch.random.fork_rng(devices=devices):
                yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def evaluation_mode(module: Any) -> Iterator[None]:
    """Run a block with a module in evaluation mode: dropout is off, batch norm applies what it knows.

    Afterwards the parts that were in training mode are so again. Parts that you put into evaluation mode yourself
    stay there. If the module itself is in evaluation mode, or has no modes, nothing is changed.

    Args:
        module: A torch module, or any other one.
    """
    if not getattr(module, "training", False) or not hasattr(module, "modules"):
        yield
        return
    parts = [part for part in module.modules() if part.training]
    _set_training(parts, False)
    try:
        yield
    finally:
        _set_training(parts, True)


def _set_training(parts: list[Any], training: bool) -> None:
    for part in parts:
        if "training" in part.__dict__:  # past torch's __setattr__, which takes ten times as long
            part.__dict__["training"] = training
        else:
            part.training = training
