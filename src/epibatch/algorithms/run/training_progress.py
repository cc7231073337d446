"""Progress display of a training run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from epibatch.core import ALL_MODULES, DEFAULT_MODULE_ID

from .results import LIMITS, RETURN_MEAN, flat_metrics

if TYPE_CHECKING:
    from ..config.settings import StopSettings

_LOSSES = {"policy_loss": "policy", "vf_loss": "value", "entropy": "entropy"}
_WIDTH = 80
"""Columns that a line has at most; what matters least is left out."""


def summary(results: Mapping[str, Any], width: int = _WIDTH) -> str:
    """One line about one iteration: return and processes; then, as far as it fits, what evaluation measured, steps per
    second, what waited for what, and losses.

    Args:
        results: What `Algorithm.train` returned.
        width: Columns of the line.

    Examples:
        >>> summary({"env_runners": {"episode_return_mean": 21.5, "num_env_steps_sampled": 400}, "time_this_iter_s": 2})
        'return 21.5 | 200 steps/s'
        >>> queue = {"num_batches": 2, "num_env_steps_dropped": 0, "age_of_rows_mean": 1.5}
        >>> summary({"waiting": {"env_runners_s": 0.2, "learner_s": 3.14}, "queue": queue}, width=120)
        'no episode done yet | waited: runners 0.2 s, learner 3.1 s | queue 2, rows 1.5 updates old'
    """
    runner, learners = results.get("env_runners", {}), results.get("learners", {})
    mean = runner.get("episode_return_mean")
    steps, seconds = runner.get("num_env_steps_sampled"), results.get("time_this_iter_s")
    parts = ["no episode done yet" if mean is None or mean != mean else f"return {mean:.1f}"]
    rows = learners.get(ALL_MODULES, {}).get("num_rows")
    if (mean is None or mean != mean) and steps == 0 and seconds and rows:  # of recorded episodes alone
        parts = [f"learned {rows / seconds:,.0f} rows/s"]
    processes = _processes(results.get("fault_tolerance", {}))
    parts += processes
    for key, measured in flat_metrics(results.get("evaluation", {})).items():
        if key.endswith(RETURN_MEAN) and measured is not None:
            parts.append(" ".join(["evaluation", *key.split("/")[:-2], f"{measured:.1f}"]))
    if steps and seconds:
        parts.append(f"{steps / seconds:,.0f} steps/s")
    parts += _waits(results)
    for module_id, module in learners.items():
        losses = [f"{label} {module[name]:.3g}" for name, label in _LOSSES.items() if name in _names(module)]
        if losses:
            parts.append(("" if module_id == DEFAULT_MODULE_ID else f"{module_id} ") + "loss " + ", ".join(losses))
    line, *others = parts
    for part in others:
        if part not in processes and len(line) + len(part) + 3 > width:
            break
        line = f"{line} | {part}"
    return line


def _processes(faults: Mapping[str, Any]) -> list[str]:
    """Return the number of healthy processes that sample, and of restarts."""
    runners, parts = faults.get("num_env_runners"), []
    if runners is not None:
        parts.append(f"runners {faults['num_healthy_env_runners']}/{runners}")
    restarts = faults.get("num_env_runner_restarts", 0) + faults.get("num_learner_restarts", 0)
    if restarts:
        parts.append(f"{restarts} restart{'' if restarts == 1 else 's'}")
    return [", ".join(parts)] if parts else []


def _waits(results: Mapping[str, Any]) -> list[str]:
    """Return the seconds in which runners and learner waited for each other, and the state of the queue between."""
    parts, waits, queue = [], results.get("waiting"), results.get("queue")
    if waits:
        parts.append(f"waited: runners {waits['env_runners_s']:.1f} s, learner {waits['learner_s']:.1f} s")
    if queue and waits:
        dropped = f", {queue['num_env_steps_dropped']:,} steps dropped" if queue["num_env_steps_dropped"] else ""
        parts.append(f"queue {queue['num_batches']}, rows {queue['age_of_rows_mean']:.1f} updates old{dropped}")
    return parts


def _names(module: Any) -> Mapping[str, Any]:
    """A module's metrics; none of what pieces logged beside them."""
    return module if isinstance(module, Mapping) else {}


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


class _Output(Console):
    """Standard output, whose reader may go while the run goes on."""

    def on_broken_pipe(self) -> None:
        """Print no more, rather than end the process."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # later prints, and what its buffer holds
        os.close(nowhere)
        with contextlib.suppress(OSError):
            print("standard output was closed; training goes on, and the run folder has its metrics", file=sys.stderr)


class Progress:
    """Shows iterations as they end; use it as a context manager.

    Args:
        rules: The run's stop rules; the first limit among steps and iterations is the bar's length.
        title: Text before the bar.
        console: Where to; standard output by default.
    """

    def __init__(self, rules: StopSettings, title: str, console: Console | None = None) -> None:
        self._console = console or _Output()
        self._title = title
        self._counts_steps = rules.num_env_steps_sampled_lifetime is not None or rules.training_iteration is None
        self._total = rules.num_env_steps_sampled_lifetime if self._counts_steps else rules.training_iteration
        self._limits = {name: limit for name in LIMITS if (limit := getattr(rules, name)) is not None}
        self._start: tuple[float, Mapping[str, float]] | None = None
        self._live: RichProgress | None = None
        if self._console.is_terminal:
            self._live = RichProgress(
                TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True, min_width=len(title))),
                BarColumn(bar_width=12),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(self._total)) + 1)),
                TextColumn("{task.fields[times]}", table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[summary]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
                console=self._console,
                expand=True,
            )
            self._task = self._live.add_task(title, total=self._total, summary="starting", times="")

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
        """Show one iteration's results, the time since the first of this run, and about how long it will go on."""
        count = results["num_env_steps_sampled_lifetime" if self._counts_steps else "training_iteration"]
        times, left = self._times(results)
        shortest = len(summary(results, 0))
        if self._live is not None:
            columns = (self._title, " " * 12, f"{self._total}/{self._total}", times, left)
            fits = len(" ".join(columns)) + shortest < self._console.width
            self._live.update(
                self._task, completed=count, times=times + (left if fits else ""), summary=summary(results)
            )
            return
        of = "" if self._total is None else f"/{self._total:,}"
        unit = "steps" if self._counts_steps else "iterations"
        head, tail = f" | {count:,}{of} {unit} | ", f" | {times}{left}"
        if len(self._title[:8] + head + tail) + shortest > _WIDTH:
            tail = f" | {times}"
        room = _WIDTH - len(head) - len(tail)
        title = self._title[: max(8, room - shortest)]
        self.say(title + head + summary(results, room - len(title)) + tail)

    def _times(self, results: Mapping[str, Any]) -> tuple[str, str]:
        """The time since this run went on, and what is left until the first limit at the speed since then."""
        now, counts = time.monotonic(), {name: results[name] for name in self._limits if name in results}
        took = results.get("time_this_iter_s", 0.0)
        if self._start is None:
            steps = {"num_env_steps_sampled_lifetime": results.get("env_runners", {}).get("num_env_steps_sampled", 0)}
            begun = {"training_iteration": 1, "time_total_s": took, **steps}
            self._start = now - took, {name: count - begun[name] for name, count in counts.items()}
        elapsed, before = now - self._start[0], self._start[1]
        left = [
            (self._limits[name] - count) * elapsed / (count - before[name])
            for name, count in counts.items()
            if count > before.get(name, count)
        ]
        return _clock(elapsed), f", {_clock(max(0.0, min(left)))} left" if left else ""

    def say(self, line: str) -> None:
        """Print a line beside the bar; nothing where the reader or the terminal is gone."""
        try:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self._console.on_broken_pipe()
