"""The base class of loggers that write into an experiment tracker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from epibatch.core.files import read_file, replace_file
from epibatch.core.imports import import_extra

from ..config.config_io import read_document
from .results import numbers_in
from .run_folder import RunFolder

_LONGEST_ID = 1024


class TrackerLogger(ABC):
    """A logger that writes every number over environment steps into one run of an experiment tracker.

    The tracker's run begins with the first iteration and has the settings of the run's `config.yaml`. Its id is kept in
    the run's folder, so that a resumed run goes on with it. Where the tracker writes to, and under which project or
    experiment, follows from the environment variables of its library.

    Args:
        path: The run's folder.
        **options: Arguments for the call of the library that begins a run.

    Raises:
        MissingExtraError: the extra is not installed.
    """

    name: ClassVar[str]
    """Of the module, of the extra that installs it, and of the logger."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.options = options
        self.library: Any = import_extra(self.name, self.name, f"the logger {self.name!r}")
        self._begun = False

    @abstractmethod
    def begin(self, run_id: str | None, config: Mapping[str, Any]) -> str:
        """Begin a run, and return its id.

        Args:
            run_id: Of the run to go on with; None: a new one.
            config: The settings of the run's `config.yaml`; empty without one.
        """

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write one point of every curve.

        Args:
            values: Numbers by the names of their curves.
            step: Environment steps of the run.
        """

    @abstractmethod
    def end(self) -> None:
        """End the run."""

    def log(self, results: Mapping[str, Any]) -> None:
        """Write one point of every curve, and begin the tracker's run before the first ones.

        Raises:
            StorageError: the id cannot be written.
        """
        if not self._begun:
            id_path, config_path = self.path / f"{self.name}.id", RunFolder(self.path).config_path
            run_id = read_file(id_path, _LONGEST_ID).decode().strip() if id_path.exists() else None
            config = read_document(config_path).data if config_path.exists() else {}
            begun_id = self.begin(run_id, config)
            self._begun = True
            replace_file(id_path, begun_id.encode())
        self.write(numbers_in(results), results["num_env_steps_sampled_lifetime"])

    def close(self) -> None:
        """End the tracker's run, if one has begun."""
        if self._begun:
            self.end()
