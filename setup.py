"""Refuse an install from a checkout without its symbolic links, which would leave out four parts of the package."""

from pathlib import Path

from setuptools import setup

missing = [
    f"src/epibatch/{part}"
    for part in ("connectors", "env_runner", "episodes", "learner")
    if not Path(__file__).with_name("src").joinpath("epibatch", part, "__init__.py").is_file()
]
if missing:
    raise SystemExit(
        "epibatch, build from source\n"
        "  expected: symbolic links to the folders of the same names\n"
        f"  found: no package at {', '.join(missing)}\n"
        "  do: git config core.symlinks true (on Windows with developer mode on), then git checkout -- src/epibatch"
    )
setup()
