"""Where things are: the repository, its packages, its modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sources import MODULES, PACKAGES, PYPROJECT, REPOSITORY, Source, package_sources


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, table in (("package_name", PACKAGES), ("module_name", MODULES)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, sorted(table))


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    return PYPROJECT


@pytest.fixture(scope="session")
def packages() -> dict[str, Path]:
    """Listed package name -> its real folder."""
    return PACKAGES


@pytest.fixture(scope="session")
def modules() -> dict[str, Path]:
    """Module name -> its real file, for every module of every listed package."""
    return MODULES


@pytest.fixture(scope="session")
def sources() -> dict[str, Source]:
    """Module name -> its parsed file."""
    return package_sources()
