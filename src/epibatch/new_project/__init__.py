"""The folder that `epibatch new` makes: a config, an environment, a piece and a test."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from epibatch.core.errors import ConfigError
from epibatch.core.files import storing

__all__ = ["make_project"]

_ENDING = ".template"


def make_project(folder: Path) -> list[str]:
    """Write the files of a new project, and return their names.

    Args:
        folder: New or empty.

    Raises:
        ConfigError: there are files in the folder.
        StorageError: it cannot be made or written.
    """
    where, do = f"epibatch new {folder}", "choose another name"
    templates = {file.name.removesuffix(_ENDING): file for file in files(__name__).iterdir() if _ENDING in file.name}
    with storing(where, do):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            found = "files in it, which are never overwritten"
            raise ConfigError(where, expected="a new or an empty folder", found=found, do=do)
        for name, template in templates.items():
            (folder / name).write_bytes(template.read_bytes())
    return sorted(templates)
