"""Check that the wheel in a folder holds every package of pyproject.toml, its modules, and nothing else.

Usage: python .ci/check_wheel.py DIST_FOLDER
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parent.parent


def expected_files() -> set[str]:
    """Return the wheel path of every Python file and stub of every listed package."""
    setuptools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders: dict[str, str] = setuptools["package-dir"]
    files = {"epibatch/py.typed"}
    for package in setuptools["packages"]:
        root = max((name for name in folders if f"{package}.".startswith(f"{name}.")), key=len)
        folder = REPOSITORY / folders[root] / package[len(root) :].lstrip(".").replace(".", "/")
        files |= {f"{package.replace('.', '/')}/{path.name}" for path in folder.glob("*.py*")}
    return files


def main() -> int:
    """Compare the wheel with the tree; print every difference."""
    wheels = sorted(Path(sys.argv[1]).glob("*.whl"))
    if len(wheels) != 1:
        print(f"expected one wheel in {sys.argv[1]}, found {len(wheels)}")
        return 1
    with zipfile.ZipFile(wheels[0]) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = expected_files()
    for word, names in (("missing", expected - found), ("unexpected", found - expected)):
        for name in sorted(names):
            print(f"{wheels[0].name}: {word}: {name}")
    if found == expected:
        print(f"{wheels[0].name}: all {len(found)} files are there, and nothing else")
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main())
