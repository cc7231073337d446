"""The process's random generators: seeding, saving and restoring all of them together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["get_random_state", "random_state_apart", "seed_everything", "set_random_state"]


def seed_everything(seed: int) -> None:
    """Seed torch's, NumPy's and Python's global generators."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def get_random_state() -> dict[str, Any]:
    """The state of torch's, NumPy's and Python's global generators, as arrays and numbers."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    version, words, next_gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy().copy(),
        "numpy": {
            "name": name,
            "keys": np.array(keys, dtype=np.uint32),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
        "python": {"version": version, "words": np.array(words, dtype=np.int64), "next_gauss": next_gauss},
    }
    if torch.cuda.is_available():
        state["cuda"] = [each.numpy().copy() for each in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to where `get_random_state` found them."""
    torch.set_rng_state(torch.from_numpy(np.array(state["torch"], dtype=np.uint8)))
    legacy = state["numpy"]
    np.random.set_state((str(legacy["name"]), legacy["keys"], legacy["position"], legacy["has_gauss"], legacy["gauss"]))
    python = state["python"]
    random.setstate((int(python["version"]), tuple(int(word) for word in python["words"]), python["next_gauss"]))
    for index, device_state in enumerate(state.get("cuda", ())):
        if index < torch.cuda.device_count():
            torch.cuda.set_rng_state(torch.from_numpy(np.array(device_state, dtype=np.uint8)), index)


@contextmanager
def random_state_apart(seed: int) -> Iterator[None]:
    """Seed the generators for what runs inside; afterwards they are where they were.

    Example:
        >>> seed_everything(0)
        >>> with random_state_apart(7):
        ...     inside = random.random()
        >>> outside = random.random()
        >>> seed_everything(0)
        >>> random.random() == outside != inside
        True
    """
    before = get_random_state()
    try:
        seed_everything(seed)
        yield
    finally:
        set_random_state(before)
