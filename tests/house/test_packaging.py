"""The package list is what lies on disk, the links lead to the parts, the version is one."""

from __future__ import annotations

import re
import subprocess

import pytest

import epibatch

PARTS = ["connectors", "env_runner", "episodes", "learner"]


def names_on_disk(root, prefix):
    """Names of all packages below a folder, links not followed."""
    names = set()
    for path in root.rglob("*.py"):
        folder = path.parent
        if not any(parent.is_symlink() for parent in [folder, *folder.parents]):
            names.add(".".join([prefix, *folder.relative_to(root).parts]))
    return names


def links_are_kept(repository):
    answer = subprocess.run(
        ["git", "config", "--get", "core.symlinks"], cwd=repository, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip().lower() != "false"


def test_every_package_on_disk_is_listed(repository, pyproject, packages):
    found = set()
    for name, folder in pyproject["tool"]["setuptools"]["package-dir"].items():
        found |= names_on_disk(repository / folder, name)
    assert sorted(packages) == sorted(found), "mend `packages` in pyproject.toml: only listed packages are in the wheel"


def test_every_package_has_an_init(package_name, packages):
    assert (packages[package_name] / "__init__.py").is_file()


def test_the_list_is_sorted_and_has_no_doubles(pyproject):
    listed = pyproject["tool"]["setuptools"]["packages"]
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("part", PARTS)
def test_links_lead_to_their_parts(part, repository):
    link = repository / "src" / "epibatch" / part
    if not link.is_symlink() and not links_are_kept(repository):
        pytest.skip("this clone has core.symlinks=false; type checking needs `git config core.symlinks true`")
    assert link.is_symlink(), "the link is gone: `git config core.symlinks true`, then check the file out again"
    assert link.resolve() == (repository / part).resolve()
    assert not link.readlink().is_absolute()


def test_parts_are_mapped(pyproject):
    folders = {f"epibatch.{part}": part for part in PARTS} | {"epibatch": "src/epibatch"}
    assert pyproject["tool"]["setuptools"]["package-dir"] == folders


def test_one_version(repository, pyproject):
    version = pyproject["project"]["version"]
    assert epibatch.__version__ == version
    citation = (repository / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE)
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE)


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
