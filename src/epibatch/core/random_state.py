"""The process's random generators: seeding, saving and restoring all of them together."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from epibatch.core.errors import CheckpointError
from epibatch.core.restoring import check_like, check_torch_state, restoring


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
        state["cuda"] = [tensor.numpy().copy() for tensor in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to where `get_random_state` found them.

    Raises:
        CheckpointError: a part is none that its generator can have; all generators are where they were.
    """
    where, current = "state of the random generators", get_random_state()
    with restoring(where, "random"):
        legacy, python = state["numpy"], state["python"]
        check_like(f"{where}, 'numpy'", legacy, current["numpy"])
        check_like(f"{where}, 'python'", {**python, "next_gauss": None}, {**current["python"], "next_gauss": None})
        check_torch_state(f"{where}, 'torch'", state["torch"], current["torch"])
        words = [int(word) for word in python["words"]]
        gauss = [value for value in (legacy["gauss"], python["next_gauss"]) if value is not None]
        positions = (legacy["position"], words[-1])
        kinds = (legacy["name"], legacy["keys"].dtype, python["version"])
        if kinds != ("MT19937", np.uint32, 3) or not all(0 <= word < 2**32 for word in words):
            raise _invalid_state(where, "the words of Mersenne Twisters", f"others, of {kinds[0]!r}")
        if not all(0 <= position <= 624 for position in positions) or legacy["has_gauss"] not in (0, 1):
            raise _invalid_state(where, "positions from 0 to 624", str(positions))
        if not all(type(value) is float and math.isfinite(value) for value in gauss):
            raise _invalid_state(where, "finite numbers that were drawn in advance", "others")
        cuda = _cuda_states(where, state.get("cuda", ()))
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"], np.uint8)))
        np.random.set_state(("MT19937", legacy["keys"], positions[0], legacy["has_gauss"], legacy["gauss"]))
        random.setstate((3, tuple(words), python["next_gauss"]))
        for index, own_state in enumerate(cuda):
            torch.cuda.set_rng_state(own_state, index)


def _cuda_states(where: str, states: Any) -> list[torch.Tensor]:
    """The states of as many GPUs as are here and in the state."""
    current_states = torch.cuda.get_rng_state_all() if len(states) and torch.cuda.is_available() else []
    for index, (state, current) in enumerate(zip(states, current_states)):
        check_torch_state(f"{where}, 'cuda'[{index}]", state, current.numpy())
    return [torch.from_numpy(np.array(state, np.uint8)) for state, _ in zip(states, current_states)]


def _invalid_state(where: str, expected: str, found: str) -> CheckpointError:
    do = "restore a state that get_random_state gave"
    return CheckpointError(where, expected=expected, found=found, do=do)


@contextmanager
def random_state_apart(seed: int) -> Iterator[None]:
    """Seed the generators for what runs inside; afterwards they are where they were.

    Examples:
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
