"""Settings for every test."""

from __future__ import annotations

import gc
import os
import random
import re
import subprocess
import zlib

import numpy as np
import pytest
import torch
from hypothesis import settings

_RANDBITS = np.random.bit_generator.randbits  # where default_rng() gets its seed
if hasattr(os, "register_at_fork"):  # processes that tests fork differ
    os.register_at_fork(after_in_child=lambda: setattr(np.random.bit_generator, "randbits", _RANDBITS))

os.fsync = os.fstat  # nobody cuts the power in a test, and waiting for disks takes minutes

CASES, SEED = os.environ.get("EPIBATCH_CASES"), os.environ.get("EPIBATCH_TEST_SEED", "")

settings.register_profile(
    "epibatch", max_examples=int(CASES or 40), derandomize=not CASES, deadline=None, print_blob=True
)
settings.load_profile("epibatch")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage once instead of again and again, and never again among the tests, which stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()


def _shown(state):
    if hasattr(state, "arrays"):
        return list(map(_shown, state.arrays()))
    if isinstance(state, dict):
        return {name: _shown(part) for name, part in state.items() if name != "bounds"}  # where they are cut
    return list(map(_shown, state)) if isinstance(state, list) else state


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Give each test the same random numbers in every run, those of `default_rng()` and of torch included.

    Other numbers with each `EPIBATCH_TEST_SEED`, to find tests that only pass with some. Tests that share what a
    fixture drew, or what was drawn at import, get it from whichever ran first.
    """
    seed = zlib.crc32(f"{item.nodeid} {SEED}".encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # on the CPU alone, without a look for devices
    np.random.bit_generator.randbits = random.Random(seed).getrandbits


@pytest.fixture
def shown():
    """`shown(state)`: a state with the arrays themselves in place of those that are made when they are needed."""
    return _shown


@pytest.fixture
def read_video():
    """Reads a video with ffmpeg itself: frames per second, and uint8 frames of shape [frames, height, width, 3]."""

    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()

    def read(path):
        command = [ffmpeg, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
        done = subprocess.run(command, capture_output=True, check=True)
        width, height, fps = re.search(r"Video: .* (\d+)x(\d+)[ ,].* ([\d.]+) fps", done.stderr.decode()).groups()
        return float(fps), np.frombuffer(done.stdout, np.uint8).reshape(-1, int(height), int(width), 3)

    return read
