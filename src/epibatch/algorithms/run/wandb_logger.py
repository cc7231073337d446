"""A logger for Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from .tracker_logger import TrackerLogger


class WandbLogger(TrackerLogger):
    """Writes every number over environment steps into a run of Weights & Biases.

    `WANDB_PROJECT`, `WANDB_MODE=offline` and the library's other environment variables say where to. Its files are in
    the run's folder. A resumed run goes on with the same run, which keeps the points that it has.

    Args:
        path: The run's folder; its name is that of the run.
        **options: Arguments of `wandb.init`, such as `project`, in place of those.

    Raises:
        MissingExtraError: the extra `wandb` is not installed.
    """

    name: ClassVar[str] = "wandb"

    def begin(self, run_id: str | None, config: Mapping[str, Any]) -> str:
        """Begin a run of its own, also beside another one of this process."""
        options = {
            "dir": str(self.path),
            "name": os.environ.get("WANDB_NAME", self.path.name),
            "config": config,
            "id": run_id,
            "resume": "allow",
            "reinit": "create_new",
        }
        self._run = self.library.init(**{**options, **self.options})
        return str(self._run.id)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write one point of every curve."""
        self._run.log(values, step=step)

    def end(self) -> None:
        """Send what is left, and end the run."""
        self._run.finish()
