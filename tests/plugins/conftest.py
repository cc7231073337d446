"""The plugin of docs/writing-a-plugin.md, built and installed into a folder of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from epibatch.core import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-plugin.md"


def block(language, number=0):
    """A code block of the page."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return blocks[number]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder that pip installed the plugin into, offline and with nothing else."""
    project, target = tmp_path_factory.mktemp("epibatch-clip-rewards"), tmp_path_factory.mktemp("site")
    (project / "pyproject.toml").write_text(block("toml"), encoding="utf-8")
    (project / "epibatch_clip_rewards.py").write_text(block("python"), encoding="utf-8")
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(target), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture
def installed(site, tmp_path, monkeypatch):
    """The plugin in this process; `add` puts further folders on the path. Afterwards all of it is forgotten."""

    def add(*folders):
        for folder in map(str, folders):
            added.append(folder)
            monkeypatch.syspath_prepend(folder)
        registry._offered.cache_clear()

    registered, added = dict(registry._registered), []
    add(site)
    monkeypatch.chdir(tmp_path)
    Path("clipped.yaml").write_text(block("yaml"), encoding="utf-8")
    yield SimpleNamespace(add=add, block=block, text=block("yaml"), site=site)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(tuple(added)):
            del sys.modules[name]
    registry._registered.clear()
    registry._registered.update(registered)
    registry._offered.cache_clear()


@pytest.fixture
def package(tmp_path_factory):
    """Makes a folder with an installed distribution: its metadata, its entry points, and modules."""

    def install(name, version, points, **modules):
        folder = tmp_path_factory.mktemp(name)
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[epibatch.connectors]\n{lines}")
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        return folder

    return install
