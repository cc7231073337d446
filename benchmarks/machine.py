"""What the figures were measured on."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("epibatch", "numpy", "torch", "gymnasium", "ray", "stable-baselines3")
REPOSITORY = Path(__file__).resolve().parents[1]


def processor() -> str:
    """The processor's name, as far as the system tells."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Version by package, of those that are installed."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured, with a plus sign if files were changed since; empty outside a clone."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip()
