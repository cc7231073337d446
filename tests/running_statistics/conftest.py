"""The environments of tests/env_runner, whose every value can be told from its place."""

from __future__ import annotations

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "env_runner_toys", Path(__file__).parents[1] / "env_runner" / "conftest.py"
)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
toys = module.toys
