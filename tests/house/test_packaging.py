"""Every folder is a package, the links lead to the parts, the version is one."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys

import pytest
from ruamel.yaml import YAML

import epibatch

PARTS = ["connectors", "env_runner", "episodes", "learner"]


def test_every_folder_of_modules_is_a_package(repository, packages):
    folders = {path.parent for top in [*PARTS, "src/epibatch"] for path in (repository / top).rglob("*.py")}
    assert sorted({folder.resolve() for folder in folders}) == sorted(packages.values()), "an __init__.py is missing"


@pytest.mark.parametrize("part", PARTS)
def test_links_lead_to_their_parts(part, repository):
    link = repository / "src" / "epibatch" / part
    assert link.resolve() == (repository / part).resolve()
    assert link.is_symlink() and not link.readlink().is_absolute()


def test_a_checkout_without_links_says_what_to_do(repository, tmp_path):
    (tmp_path / "src" / "epibatch").mkdir(parents=True)
    shutil.copy(repository / "setup.py", tmp_path)
    (tmp_path / "src" / "epibatch" / "connectors").write_text(
        "../../connectors"
    )  # as Git writes a link that it cannot make
    answer = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert "src/epibatch/connectors" in answer.stderr and "git config core.symlinks true" in answer.stderr


def other_checkout(repository, folder):
    """Make a folder that looks like a clone of the repository, with its four folders and src."""
    for path in [*PARTS, "src/epibatch"]:
        (folder / path).mkdir(parents=True)
        (folder / path / "__init__.py").write_text("raise ImportError('code of the other checkout')\n")
    for part in PARTS:
        (folder / "src" / "epibatch" / part).symlink_to(f"../../{part}")


PLACES = ["beside an empty folder", "in the clone", "in the clone's parent", "in a package of its own"]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_script_imports_alike_from_every_folder(place, tmp_path, repository):
    clone = tmp_path / "epibatch"
    if place == "beside an empty folder":
        clone.mkdir()
    else:
        other_checkout(repository, clone)
    folder = {"in the clone": clone, "in a package of its own": tmp_path / "scripts"}.get(place, tmp_path)
    folder.mkdir(exist_ok=True)
    script = folder / "my_script.py"
    script.write_text(
        "import importlib, os\n"
        "from epibatch import Policy\n"
        f"for name in ['epibatch', *('epibatch.' + part for part in ({', '.join(map(repr, PARTS))}, 'core'))]:\n"
        "    print(os.path.realpath(importlib.import_module(name).__file__))\n"
    )
    answer = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    expected = [
        os.path.realpath(importlib.import_module(f"epibatch{name}").__file__)
        for name in ["", *(f".{part}" for part in [*PARTS, "core"])]
    ]
    assert answer.stdout.split("\n")[:-1] == expected
    assert all(path.startswith(f"{repository}{os.sep}") for path in expected)


def test_one_version(repository, pyproject):
    version = pyproject["project"]["version"]
    assert epibatch.__version__ == version
    citation = (repository / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE)
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE)


def test_a_tag_publishes_what_dist_check_has_checked(repository):
    text = (repository / ".github/workflows/release.yml").read_text(encoding="utf-8")
    workflow = YAML(typ="safe").load(text)
    assert workflow["on"] == {"push": {"tags": ["v*"]}} and "://" not in text
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    commands = [step["run"] for step in build["steps"] if "run" in step]
    assert commands == ["make dist-check", 'test -f "dist/epibatch-${GITHUB_REF_NAME#v}-py3-none-any.whl"']
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}


def test_torch_is_pinned_and_no_pin_is_a_link(repository):
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r'[\w.-]+==[\w.]+(; python_version >= "3\.\d+")?', pin)] == []


def test_every_requirement_is_pinned(repository, pyproject):
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines}
    wanted = pyproject["project"]["dependencies"] + pyproject["project"]["optional-dependencies"]["dev"]
    names = {re.match(r"[\w.-]+", requirement).group().lower() for requirement in wanted}
    assert names - pinned == set()
