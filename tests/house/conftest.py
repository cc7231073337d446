"""Where things are: the repository, its packages, its modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PYPROJECT["tool"]["setuptools"]


def folder_of(package: str) -> Path:
    """The real folder of a listed package, found through the package-dir mapping."""
    roots: dict[str, str] = SETUPTOOLS["package-dir"]
    root = max((name for name in roots if f"{package}.".startswith(f"{name}.")), key=len)
    return REPOSITORY.joinpath(roots[root], *package[len(root) :].split(".")[1:])


PACKAGES = {package: folder_of(package) for package in SETUPTOOLS["packages"]}
MODULES = {
    package if path.stem == "__init__" else f"{package}.{path.stem}": path
    for package, folder in PACKAGES.items()
    for path in sorted(folder.glob("*.py"))
}


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
