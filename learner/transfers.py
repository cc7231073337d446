"""Minibatches on their way from the host to a learner's device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from epibatch.core.structs import flatten, map_struct

__all__ = ["sent_ahead", "to_device"]


def to_device(minibatch: Any, device: torch.device | None) -> Any:
    """Return a struct with its tensors on a device, from page-locked memory to a GPU; None: the same struct."""
    return minibatch if device is None else map_struct(partial(_sent, device=device), minibatch)


def sent_ahead(
    minibatches: Iterator[dict[str, Any]], device: torch.device | None, stays: str
) -> Iterator[dict[str, Any]]:
    """Yield minibatches on a device; to a GPU, the next one is on its way while this one is learned.

    Args:
        minibatches: Column -> tensor. The order of their rows was drawn before, so that taking one early draws nothing.
        device: The device; None: minibatches stay where they are.
        stays: A column that is left where it is.
    """
    if device is None or device.type != "cuda":
        yield from minibatches if device is None else (_moved(minibatch, device, stays) for minibatch in minibatches)
        return
    stream, ready = torch.cuda.Stream(device), None  # type: ignore[no-untyped-call]  # torch's class has no types
    for minibatch in minibatches:
        if not any(map(_is_on_host, flatten({**minibatch, stays: None})[0])):  # then none of the batch's columns is
            yield _moved(minibatch, device, stays)
            continue
        with torch.cuda.stream(stream):  # minibatches are cut on the current stream, before
            sent = _moved(minibatch, device, stays)
            arrived = stream.record_event()
        if ready is not None:
            yield _awaited(*ready, device)
        ready = (minibatch, sent, arrived)
    if ready is not None:
        yield _awaited(*ready, device)


def _awaited(minibatch: Mapping[str, Any], sent: dict[str, Any], arrived: Any, device: torch.device) -> dict[str, Any]:
    """Let the current stream wait for a minibatch, and keep memory that it reads until it is done."""
    current = torch.cuda.current_stream(device)
    current.wait_event(arrived)
    for before, after in zip(flatten(minibatch)[0], flatten(sent)[0]):
        if after is not before:  # its memory is of the other stream
            after.record_stream(current)
    return sent


def _moved(minibatch: dict[str, Any], device: torch.device, stays: str) -> dict[str, Any]:
    return {name: column if name == stays else to_device(column, device) for name, column in minibatch.items()}


def _sent(leaf: Any, device: torch.device) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.device == device:
        return leaf
    if device.type == "cuda" and _is_on_host(leaf):
        leaf = leaf.pin_memory()
    return leaf.to(device, non_blocking=True)


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
