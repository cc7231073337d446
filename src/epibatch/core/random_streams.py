"""Independent random streams that derive from one seed."""

from __future__ import annotations

import hashlib

import numpy as np

from epibatch.core.errors import ConfigError


def random_stream(source: int | np.random.SeedSequence | None, *path: str | int) -> np.random.SeedSequence:
    """Return one of the independent streams of a seed.

    Two streams have nothing in common if their seeds or paths differ, even if these are neighbouring numbers
    (`numpy.random.SeedSequence` and its `spawn_key`).

    Args:
        source: A seed of at least 0, or another stream. None: a random seed.
        path: What the stream is for: names, and numbers of at least 0.

    Raises:
        ConfigError: a number below 0, or no whole number.

    Examples:
        >>> random_stream(7, "runner", 1).generate_state(2)
        array([3334956859, 2437877780], dtype=uint32)
        >>> seed_of(random_stream(7, "runner", 2)) == seed_of(random_stream(random_stream(7, "runner"), 2))
        True
    """
    key = (_number_of(part) if isinstance(part, str) else part for part in path)
    try:
        parent = source if isinstance(source, np.random.SeedSequence) else np.random.SeedSequence(source)
        return np.random.SeedSequence(parent.entropy, spawn_key=(*parent.spawn_key, *key))
    except (TypeError, ValueError) as error:
        found = f"{source!r} for {path!r}: {error}"
        raise ConfigError("seed", expected="whole numbers of at least 0", found=found, do="correct the seed") from error


def runner_stream(seed: int, worker_index: int) -> np.random.SeedSequence:
    """Return the stream of a runner, from which its environments and pipelines get theirs.

    Args:
        seed: The config's.
        worker_index: The runner's number.
    """
    return random_stream(seed, "runner", worker_index)


def seed_of(stream: np.random.SeedSequence, bits: int = 31) -> int:
    """Return a stream as a single seed.

    Args:
        stream: The stream.
        bits: The seed is below `2**bits`, at most 2**64. Some environments take 31 bits.
    """
    return int(stream.generate_state(1, np.uint64)[0]) >> (64 - bits)


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
