"""What a training run shows while it runs: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from epibatch.core import DEFAULT_MODULE_ID

if TYPE_CHECKING:
    from .settings import StopSettings

__all__ = ["Progress", "summary"]

_LOSSES = {"policy_loss": "policy", "vf_loss": "value", "entropy": "entropy"}


def summary(results: Mapping[str, Any]) -> str:
    """One line about one iteration: steps per second, mean return, losses.

    Example:
        >>> summary({"env_runners": {"episode_return_mean": 21.5, "num_env_steps_sampled": 400}, "time_this_iter_s": 2})
        '200 steps/s | return 21.5'
    """
    runner = results.get("env_runners", {})
    parts = []
    steps, seconds = runner.get("num_env_steps_sampled"), results.get("time_this_iter_s")
    if steps is not None and seconds:
        parts.append(f"{steps / seconds:,.0f} steps/s")
    mean = runner.get("episode_return_mean")
    parts.append("no episode done yet" if mean is None or mean != mean else f"return {mean:.1f}")
    measured = results.get("evaluation", {}).get("env_runners", {}).get("episode_return_mean")
    if measured is not None and measured == measured:
        parts.append(f"evaluation {measured:.1f}")
    for module_id, module in results.get("learners", {}).items():
        losses = [f"{label} {module[name]:.3g}" for name, label in _LOSSES.items() if name in _names(module)]
        if losses:
            parts.append(("" if module_id == DEFAULT_MODULE_ID else f"{module_id} ") + "loss " + ", ".join(losses))
    return " | ".join(parts)


def _names(module: Any) -> Mapping[str, Any]:
    """A module's metrics; none of what pieces logged beside them."""
    return module if isinstance(module, Mapping) else {}


class Progress:
    """Shows iterations as they end; use it as a context manager.

    Args:
        rules: the run's stop rules; the first limit among steps and iterations is the bar's length.
        title: in front of the bar.
        console: where to; standard output by default.
    """

    def __init__(self, rules: StopSettings, title: str, console: Console | None = None) -> None:
        self._console = console or Console()
        self._title = title
        self._counts_steps = rules.num_env_steps_sampled_lifetime is not None or rules.training_iteration is None
        self._total = rules.num_env_steps_sampled_lifetime if self._counts_steps else rules.training_iteration
        self._live: RichProgress | None = None
        if self._console.is_terminal:
            self._live = RichProgress(
                TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True, min_width=len(title))),
                BarColumn(bar_width=12),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(self._total)) + 1)),
                TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
                TextColumn("{task.fields[summary]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
                console=self._console,
                expand=True,
            )
            self._task = self._live.add_task(title, total=self._total, summary="starting")

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, results: Mapping[str, Any]) -> None:
        """Show one iteration's results."""
        count = results["num_env_steps_sampled_lifetime" if self._counts_steps else "training_iteration"]
        if self._live is not None:
            self._live.update(self._task, completed=count, summary=summary(results))
            return
        of = "" if self._total is None else f"/{self._total:,}"
        unit = "steps" if self._counts_steps else "iterations"
        self.say(f"{self._title} | {count:,}{of} {unit} | {summary(results)}")

    def say(self, line: str) -> None:
        """Print a line beside the bar."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
