"""Damage to checkpoints, with sums that are right again or not."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace

import pytest


def rewrite_marker(folder, **changes):
    marker = json.loads((folder / "COMPLETE").read_text())
    (folder / "COMPLETE").write_text(json.dumps({**marker, **changes}))


def replace(folder, name, content):
    """Put other contents into a file and sign them, as an attacker would."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "COMPLETE").read_text())["files"]
    sums = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_marker(folder, files={**files, name: sums})


def flip_a_bit(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))


@pytest.fixture(scope="session")
def damaged():
    """Functions that damage a checkpoint."""
    return SimpleNamespace(rewrite_marker=rewrite_marker, replace=replace, flip_a_bit=flip_a_bit)
