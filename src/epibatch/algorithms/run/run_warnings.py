"""The warnings of a run, kept in its folder."""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from epibatch.core.files import open_to_append


class RunWarnings(logging.Handler):
    """Writes Python's warnings, and those in epibatch's log, to a file while it is active; they are shown as before.

    Args:
        path: The file, which the first warning makes; None: keep them until there is one.

    Attributes:
        path: as given.
        heads: the first line of each warning so far, and of what was found, without repetitions.
        kinds: the classes of Python's warnings so far.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(logging.WARNING)
        self.path = path
        self.heads: dict[str, None] = {}
        self.kinds: set[type[Warning]] = set()
        self._pending: list[str] = []
        self._shown: Any = None

    def __enter__(self) -> RunWarnings:
        self._shown = warnings.showwarning
        warnings.showwarning = self._show
        logging.getLogger("epibatch").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("epibatch").removeHandler(self)
        warnings.showwarning = self._shown

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of the log, and show it as Python does where no other handler is."""
        self._keep(record.name, record.getMessage())
        others = {*logging.getLogger("epibatch").handlers, *logging.root.handlers} - {self}
        if not others and logging.lastResort is not None:
            logging.lastResort.handle(record)

    def _show(self, message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        self.kinds.add(category)
        self._keep(category.__name__, str(message))
        self._shown(message, category, *args, **kwargs)

    def _keep(self, kind: str, text: str) -> None:
        found = text.partition("\n  found:")[2].strip().partition("\n")[0].partition(";")[0]
        self.heads[text.partition("\n")[0] + (f": {found}" if found else "")] = None
        self._pending.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {kind}: {text}\n")
        self.write()

    def add_from(self, other: RunWarnings) -> None:
        """Take over the warnings that another one kept while there was no file."""
        self.heads.update(other.heads)
        self._pending += other._pending
        self.write()

    def write(self) -> None:
        """Write what is kept, if there is a file. A warning that cannot be written is shown all the same."""
        if self.path is None or not self._pending:
            return
        try:
            with open_to_append(self.path) as file:
                file.write("".join(self._pending).encode(errors="replace"))
            self._pending = []
        except OSError:
            self.path, self._pending = None, []
