"""No tracked text file names a folder of somebody's machine or a private package registry."""

from __future__ import annotations

import re
import subprocess

import pytest

SLASH = "/"
FOLDERS = ["home", "root", "work", "opt", "mnt", "Users", "workspace", "private"]
LEAKS = {
    "a folder of somebody's machine": re.compile(rf"(?<![\w.~$}})*/-]){SLASH}(?:{'|'.join(FOLDERS)}){SLASH}\w"),
    "a drive of somebody's machine": re.compile(r"\b[A-Z]:\\+Users\\"),
    "a local address": re.compile("file:" + SLASH * 2 + r"|\blocalhost:\d|\b127\.0\.0\.1:\d"),
    "a package registry": re.compile(r"--(?:extra-)?index-" + r"url\b|--find-" + r"links\b|https?:\S+/sim" + r"ple\b"),
}
SKIPPED = {".git", ".venv", "build", "dist", "runs", "__pycache__"}


def tracked_files(repository):
    """The files git tracks or would track; without git, every file outside build folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=repository, capture_output=True, check=True).stdout.decode()
        paths = [repository / name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in repository.rglob("*") if not SKIPPED & set(path.relative_to(repository).parts)]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def leaks_in(text):
    """What a text gives away, as (line, what)."""
    found = {what: pattern for what, pattern in LEAKS.items() if pattern.search(text)}
    for number, line in enumerate(text.splitlines() if found else (), 1):
        yield from ((number, what) for what, pattern in found.items() if pattern.search(line))


def test_files_give_nothing_away(repository):
    found = []
    paths = tracked_files(repository)
    for path in paths:
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        found += [f"{path.relative_to(repository)}:{line}: {what}" for line, what in leaks_in(text)]
        if str(repository) in text:
            found.append(f"{path.relative_to(repository)}: the path of this checkout")
    assert len(paths) > 50
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("see " + SLASH + "home/somebody/notes", 1),
        ("C:" + "\\Users\\somebody", 1),
        ("pip install --index-" + "url x", 1),
        ("https:" + SLASH * 2 + "example.org/pypi/sim" + "ple", 1),
        ("file:" + SLASH * 2 + SLASH + "wheels", 1),
        ("https://example.org/home/page, runs/demo, $ROOT/works/x, a simple URL", 0),
        ("#!/usr/bin/env bash", 0),
    ],
)
def test_leaks_are_seen(text, count):
    assert len(list(leaks_in(text))) == count
