"""A logger for MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from .tracker_logger import TrackerLogger

_REFUSED = re.compile(r"[^\w\-./: ]")
"""Characters that names of MLflow do not have."""


class MLflowLogger(TrackerLogger):
    """Writes every number over environment steps into a run of MLflow, and the config as its parameters.

    `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME` and the library's other environment variables say where to. A
    resumed run goes on with the same run, whose parameters stay.

    Args:
        path: The run's folder; its name is that of the run.
        **options: Arguments of `mlflow.start_run`, such as `tags`.

    Raises:
        MissingExtraError: the extra `mlflow` is not installed.
    """

    name: ClassVar[str] = "mlflow"

    def begin(self, run_id: str | None, config: Mapping[str, Any]) -> str:
        """Begin a run, below another one that is active in this process."""
        name = None if run_id else self.path.name
        run = self.library.start_run(**{"run_id": run_id, "run_name": name, "nested": True, **self.options})
        self._run_id = str(run.info.run_id)
        if run_id is None:
            self.library.log_params(_settings(config))
        return self._run_id

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write one point of every curve."""
        named = {_REFUSED.sub("_", name): value for name, value in values.items()}
        self.library.log_metrics(named, step=step, run_id=self._run_id)

    def end(self) -> None:
        """End the run."""
        self.library.end_run()


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `section/setting`, and pipelines by their names."""
    flat: dict[str, Any] = {}
    for section, content in config.items():
        settings = {f"{section}/{name}": value for name, value in content.items()} if isinstance(content, dict) else {}
        flat.update(settings or {section: content})
    return flat
