"""Check that the wheel in a folder holds every module, stub, page and template of the source tree, and nothing else.

Usage: python .ci/check_wheel.py DIST_FOLDER
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def expected_files(folder: Path, package: str = "epibatch") -> set[str]:
    """Return the wheel paths of the files of a package and of the packages in it, links included."""
    patterns = ("*.py*", "*.html", "*.template")
    files = {f"{package}/{path.name}" for pattern in patterns for path in folder.glob(pattern)} | {"epibatch/py.typed"}
    for inner in folder.iterdir():
        if (inner / "__init__.py").is_file():
            files |= expected_files(inner, f"{package}/{inner.name}")
    return files


def main() -> int:
    """Compare the wheel with the tree; print every difference."""
    wheels = sorted(Path(sys.argv[1]).glob("*.whl"))
    if len(wheels) != 1:
        print(f"expected one wheel in {sys.argv[1]}, found {len(wheels)}")
        return 1
    with zipfile.ZipFile(wheels[0]) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = expected_files(REPOSITORY / "src" / "epibatch")
    for word, names in (("missing", expected - found), ("unexpected", found - expected)):
        for name in sorted(names):
            print(f"{wheels[0].name}: {word}: {name}")
    if found == expected:
        print(f"{wheels[0].name}: all {len(found)} files are there, and nothing else")
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main())
