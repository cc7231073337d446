"""One training run from the command line: start or resume, watch, stop, save."""

from __future__ import annotations

import math
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from epibatch.core.checkpoints import arrays_size, load_state
from epibatch.core.errors import (
    CheckpointError,
    ConfigError,
    EpibatchError,
    EpibatchWarning,
    FirstUpdateError,
    FirstUpdateWarning,
    LoggerError,
    MissingExtraError,
    StorageError,
    add_context,
    nearest,
)

from ..algorithm import Algorithm
from ..algorithm_config import AlgorithmConfig
from ..config.config_io import changed_document, read_document, to_yaml_text
from ..loggers import Logger, Loggers, make_logger
from ..registry import config_class
from .error_reports import error_report
from .results import RETURN_MEAN, Verdict, flat_metrics, judge
from .run_folder import RunFolder
from .run_warnings import RunWarnings
from .saved_checkpoints import CHECKPOINTS
from .training_progress import Progress

if TYPE_CHECKING:
    from ..config.settings import StopSettings

STARTUP_ERRORS = (EpibatchError, gym.error.Error, ImportError, OSError)
"""What a wrong config, environment or folder raises before training begins."""

GOAL_MISSED = 1
FAILED = 3
"""Exit code of a run that an error ended."""

_MOST_WARNINGS = 3
"""Warnings that the last lines of a run name."""
_DRAWING_SHARE = 50
"""Drawings of the curve that would fit between two of them, at least."""
_FIRST_SAVE_S = 10.0
"""Seconds until the first checkpoint of a run, if the config saves by time and less often."""
_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # none on Windows
if _HANGUP is not None:
    _SIGNALS[_HANGUP] = "SIGHUP"


class TrainingRun:
    """Trains an algorithm into a run folder until a stop rule, a number of iterations, a signal or an error ends it.

    However it ends, the state that was reached is saved, so that the run can go on. In between it is saved as the
    config's `checkpointing` section says, so that a killed run loses little.

    Args:
        algorithm: The algorithm.
        folder: Where the run is written.
        name: The run's title.
        loggers: Further loggers of the results, in addition to those of the config; see `Logger`.

    Raises:
        MissingExtraError: a logger of the config needs an extra that is not installed.
    """

    def __init__(self, algorithm: Algorithm, folder: RunFolder, name: str, *, loggers: Sequence[Logger] = ()) -> None:
        self.algorithm = algorithm
        self.folder = folder
        self.name = name
        names = [logger for logger in algorithm.config.loggers if logger != "jsonl"]
        self.loggers = Loggers([make_logger(logger, folder.path) for logger in ("jsonl", *names, *loggers)])
        settings = algorithm.config
        waited: dict[str, Any] = {f"stop.results {key}": key for key in settings.stop_rules.results}
        waited["checkpointing.checkpoint_score_attribute"] = settings.checkpoint_score_attribute
        waited["reporting.curve"] = settings.curve
        self._pending_results = {setting: key for setting, key in waited.items() if key is not None}
        if algorithm.episode_log is not None:
            algorithm.episode_log.base = folder.path
        self.warnings = RunWarnings(folder.warnings_path)
        self._signal: int | None = None
        self._saved_at = time.monotonic()
        self._saved_iteration: int | None = None
        self._best: float | None = None
        self._drawn_at, self._drawing_s = time.monotonic(), 0.0

    @classmethod
    def start(
        cls, config_path: Path, run: Path | None = None, *, changes: Sequence[str] = (), allow_imports: bool = False
    ) -> TrainingRun:
        """Begin a run from a config file.

        Args:
            config_path: The file.
            run: The run's folder, new or empty; by default a new one under `runs`.
            changes: Settings in place of the file's, such as `training.lr=1e-3`.
            allow_imports: Whether the config may name pieces and environments by import path.

        Raises:
            ConfigError: the file is missing or wrong, or the run folder is not empty.
        """
        config = _read_config(Path(config_path), changes, allow_imports)
        text = to_yaml_text(config.to_dict())
        with RunWarnings() as before:
            algorithm = _build(config, Path(config_path))
        with ExitStack() as opened:
            opened.callback(algorithm.stop)
            folder = RunFolder.create(run or _default_folder(config_path))
            folder.lock(new=True)
            opened.callback(folder.unlock)
            folder.write_config(text)
            session = cls(algorithm, folder, config_path.stem if run is None else folder.path.resolve().name)
            session.warnings.add_from(before)
            opened.pop_all()  # it comes to its beginning
        return session

    @classmethod
    def resume(cls, run: Path, *, changes: Sequence[str] = (), allow_imports: bool = False) -> TrainingRun:
        """Go on with a run, with the config in its folder; one that was never saved starts from the beginning.

        Args:
            run: The run's folder, whose newest checkpoint is restored; or one of its checkpoints.
            changes: Settings in place of its config's, such as `stop.training_iteration=20`; they are written there.
            allow_imports: Whether the config may name pieces and environments by import path.

        Raises:
            CheckpointError: the folder holds no run or a link, or all its checkpoints, or the given one, are damaged.
            StorageError: another process is using the folder.
        """
        from epibatch.core.rl_module.module_data import weight_limit

        path = Path(run)
        is_named = path.parent.name == CHECKPOINTS and not RunFolder(path).config_path.is_file()
        folder = RunFolder.open_existing(path.parent.parent if is_named else path)
        if not folder.config_path.is_file():
            raise CheckpointError(
                f"run folder {folder.path}",
                expected="config.yaml, from which the run is built",
                found="none: the run was made in Python, and its config has a class or a function, which no file holds",
                do=f"go on in Python: config.build_algo(), then restore_from_path({str(run)!r}); or give the config "
                "import paths, module:name, and begin another run",
            )
        folder.lock()
        with ExitStack() as opened, RunWarnings() as before:
            opened.callback(folder.unlock)
            config = _read_config(folder.config_path, changes, allow_imports)
            is_saved = bool(folder.checkpoints.iterations()) or folder.checkpoints.best.exists()
            saved = path if is_named else folder.checkpoints.newest() if is_saved else None
            limit = nullcontext() if saved is None else weight_limit(arrays_size(load_state(saved)))
            with limit:
                algorithm = _build(config, folder.config_path)
            opened.callback(algorithm.stop)
            session = cls(algorithm, folder, folder.path.resolve().name)
            session._restore(saved, "later" if is_named else "damaged")
            if changes:
                folder.write_config(to_yaml_text(config.to_dict()))
            session._best = session._best_saved()
            session.loggers.resume(folder.rows_until(algorithm.training_iteration))
            session.warnings.add_from(before)
            opened.pop_all()
        return session

    def _restore(self, saved: Path | None, ending: str) -> None:
        """Restore a checkpoint, if there is one; later ones get an ending."""
        if saved is not None:
            self.algorithm.restore_from_path(saved)
            print(f"going on after iteration {self.algorithm.training_iteration}, from {saved}")
        else:
            print(
                f"{self.folder.path} has no checkpoint: the run starts again from the beginning, with its config.yaml"
            )
        for later in self.folder.checkpoints.discard_later(self.algorithm.training_iteration, ending):
            print(f"a later checkpoint is now {later}")

    def run(self, iterations: int | None = None) -> int:
        """Train until something ends the run, save, draw, and say how it went.

        Args:
            iterations: Stop after this many, or None.

        Returns:
            The process's exit code: 0, `GOAL_MISSED`, `FAILED`, or 128 + the number of the signal.
        """
        rules = self.algorithm.config.stop_rules
        window = self.algorithm.config.metrics_num_episodes_for_smoothing
        before = self.folder.last_results()
        verdict = judge(rules, before, window) if before else None
        if verdict is not None:
            return self._nothing_to_do(verdict)
        if not self.folder.config_path.exists():  # made in Python
            with suppress(ConfigError):  # a config with code in it cannot be written
                self.folder.write_config(to_yaml_text(self.algorithm.config.to_dict()))
        with self.warnings, Progress(rules, self.name) as progress, self._interruptible(progress):
            try:
                results, verdict = self._train(progress, iterations)
                self._save()
                curve = self._draw()
                self.loggers.close()  # one that cannot write its last rows fails the run
            except KeyboardInterrupt:
                return self._stopped_unsaved()
            except Exception as error:
                return self._failed(error)
        self._stop()
        self._report(verdict, results, curve, iterations)
        if self._signal is not None:
            return 128 + self._signal
        return _exit_code(verdict)

    def _train(self, progress: Progress, iterations: int | None) -> tuple[dict[str, Any], Verdict | None]:
        """Iterate until a rule, the number of iterations or a signal says stop."""
        rules = self.algorithm.config.stop_rules
        window = self.algorithm.config.metrics_num_episodes_for_smoothing
        verdict: Verdict | None = None
        results: dict[str, Any] = {}
        done = 0
        while verdict is None and self._signal is None and (iterations is None or done < iterations):
            results = self.algorithm.train()
            done += 1
            if FirstUpdateWarning in self.warnings.kinds:
                self.warnings.kinds.discard(FirstUpdateWarning)  # one page, also if it cannot be made
                progress.say(self._inspect())
            self.loggers.log(results)
            progress.show(results)
            verdict = judge(rules, results, window)
            self._name_missing(results, progress)
            self._save_if_best(results)
            self._save_if_due()
        return results, verdict

    def _save_if_due(self) -> None:
        """Save and draw while the run goes on; unless `end_episodes` is set, the run is the same as without saving."""
        config = self.algorithm.config
        every, seconds = config.checkpoint_frequency, config.checkpoint_interval_s
        if seconds is not None and self._saved_iteration is None:
            seconds = min(seconds, _FIRST_SAVE_S) if seconds < math.inf else seconds
        late = seconds is not None and time.monotonic() - self._saved_at >= seconds
        if late or (every and self.algorithm.training_iteration % every == 0):
            self._save()
            if time.monotonic() - self._drawn_at >= _DRAWING_SHARE * self._drawing_s:
                self._draw()

    def _save(self) -> None:
        """Write the checkpoint of this iteration, if it is not there yet, and let the oldest ones go."""
        iteration = self.algorithm.training_iteration
        if self._saved_iteration != iteration:
            self.algorithm.save_to_path(self._checkpoint_path, end_episodes=self.algorithm.config.end_episodes)
            self._saved_at, self._saved_iteration = time.monotonic(), iteration
            self.folder.checkpoints.prune(self.algorithm.config.num_to_keep)

    def _save_if_best(self, results: Mapping[str, Any]) -> None:
        """Write the checkpoint `best` if no iteration of the run had a better score."""
        score = self._score(flat_metrics(results))
        if score is not None and (self._best is None or score > self._best):
            self.algorithm.save_to_path(self.folder.checkpoints.best, end_episodes=False)
            self.folder.checkpoints.write_best_score(score)
            self._best = score

    def _score(self, row: Mapping[str, Any]) -> float | None:
        """An iteration's score, the higher the better; None where it has none."""
        config = self.algorithm.config
        value = row.get(config.checkpoint_score_attribute or "")
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        return value if config.checkpoint_score_order == "max" else -value

    def _best_saved(self) -> float | None:
        """Return the score of the best checkpoint of a resumed run."""
        checkpoints = self.folder.checkpoints
        has_score = self.algorithm.config.checkpoint_score_attribute is not None
        return checkpoints.best_score() if has_score and checkpoints.best.exists() else None

    def _name_missing(self, results: Mapping[str, Any], progress: Progress) -> None:
        """Say which results the config waits for in vain, as soon as there should be results of their kind."""
        values = flat_metrics(results)
        later = [] if "evaluation" in results else ["evaluation/"]
        later += [] if values.get("env_runners/num_episodes_lifetime") else ["env_runners/"]
        for setting, key in [pair for pair in self._pending_results.items() if not pair[1].startswith(tuple(later))]:
            del self._pending_results[setting]
            if key not in values:
                close = nearest(key, values).partition("Known: ")[0]
                progress.say(f"no result {key!r} yet, which {setting} waits for; {close}metrics.csv has all")

    def _draw(self) -> str:
        """Draw the learning curve; returns its path, or what to install."""
        start, config = time.monotonic(), self.algorithm.config
        goal = _goal(config.stop_rules, config.curve)
        try:
            path = self.folder.draw_learning_curve(
                self.name, goal, config.metrics_num_episodes_for_smoothing, key=config.curve
            )
        except MissingExtraError as error:
            self._drawn_at = math.inf
            return f"not drawn; {error.do}"
        self._drawn_at = time.monotonic()
        self._drawing_s = self._drawn_at - start
        return str(path)

    @property
    def _checkpoint_path(self) -> Path:
        return self.folder.checkpoints.path_of(self.algorithm.training_iteration)

    @contextmanager
    def _interruptible(self, progress: Progress) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM or SIGHUP end the run after the current iteration; a second one ends it at once.

        A terminal that closes may send SIGHUP twice, from the system and from the shell; one that the run was started
        to ignore, with nohup, stays ignored.
        The answer is printed by a thread: this one may be in the middle of printing when the signal comes.
        """
        answers: list[threading.Thread] = []

        def on_signal(number: int, frame: FrameType | None) -> None:
            again = self._signal is not None and number != _HANGUP
            self._signal = number
            if again:
                raise KeyboardInterrupt
            what = _SIGNALS[signal.Signals(number)]
            text = f"{what}: finishing this iteration, then saving (once more: stop without saving)"
            answers.append(threading.Thread(target=progress.say, args=(text,)))
            answers[-1].start()

        heeded = [number for number in _SIGNALS if number != _HANGUP or signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, on_signal) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for answer in answers:
                answer.join()

    # ------------------------------------------------------------------------------------- endings

    def _nothing_to_do(self, verdict: Verdict) -> int:
        try:
            if not self.folder.curve_path.exists():  # killed before it was drawn
                self._draw()
        finally:
            self._stop()
        print(f"nothing to train: {verdict.reason}")
        print(f"to go on, raise it: {self._command()} --set stop.{verdict.setting}=...")
        return _exit_code(verdict)

    def _stopped_unsaved(self) -> int:
        self._stop()
        saved = "the last checkpoint" if self.folder.checkpoints.iterations() else "the beginning"
        print(f"stopped at once; what was trained since {saved} is not saved")
        print(f"go on with: {self._command()}")
        return 128 + (self._signal or signal.SIGINT)

    def _failed(self, error: Exception) -> int:
        """Report the error, then save what there is; an error on the way changes nothing about the first one."""
        iteration = self.algorithm.training_iteration
        between = isinstance(error, (LoggerError, StorageError))
        when = f"after iteration {iteration}" if between else f"in iteration {iteration + 1}"
        lines = ["", error_report(error), "", f"the run failed {when}"]
        if isinstance(error, FirstUpdateError):
            lines.append(self._inspect())
        try:
            self._save()
            lines.append(f"checkpoint: {self._checkpoint_path} (after {iteration} iterations)")
        except Exception as second:
            lines.append(f"the checkpoint could not be saved either: {type(second).__name__}: {second}")
        lines.append(f"go on with: {self._command()} (once the cause is mended)")
        lines += self._warned()
        print("\n".join(lines), file=sys.stderr)
        self._stop(" too")
        return FAILED if self._signal is None else 128 + self._signal

    def _inspect(self) -> str:
        """Write the page that shows where acting and learning differ, and return a line that names it."""
        try:
            self.algorithm.inspect(self.folder.page_path)
        except Exception as error:
            return f"no page of where acting and learning differ: {type(error).__name__}: {error}"
        return f"acting and learning differ; see where: {self.folder.page_path}"

    def _stop(self, too: str = "") -> None:
        """Close environments, loggers and folder; what fails is said, and changes nothing about how the run ended."""
        closings = {"the environments": self.algorithm.stop, "the loggers": self.loggers.close}
        for what, close in {**closings, "the run's folder": self.folder.unlock}.items():
            try:
                close()
            except Exception as error:
                print(f"closing {what} failed{too}: {type(error).__name__}: {error}", file=sys.stderr)

    def _warned(self) -> list[str]:
        """Return the lines about this run's warnings: the file that has them, and the first lines of some."""
        heads = list(self.warnings.heads)
        if not heads:
            return []
        lines = [f"warnings:   {self.folder.warnings_path}", *(f"  {head}" for head in heads[:_MOST_WARNINGS])]
        more = len(heads) - _MOST_WARNINGS
        return [*lines, f"  and {more} more"] if more > 0 else lines

    def _command(self) -> str:
        imports = " --allow-imports" if self.algorithm.config.allows_imports else ""
        return f"epibatch train --resume {shlex.quote(str(self.folder.path))}{imports}"

    def _report(self, verdict: Verdict | None, results: Mapping[str, Any], curve: str, iterations: int | None) -> None:
        steps = results.get("num_env_steps_sampled_lifetime", 0)
        seconds = results.get("time_total_s", 0.0)
        if verdict is not None:
            head = "solved" if verdict.solved else "not solved" if verdict.has_goal else "finished"
            head += f": {verdict.reason}"
        elif self._signal is not None:
            head = "interrupted"
        else:
            head = f"finished: --iterations {iterations} done"
        print(f"{head}, after {steps:,} env steps and {seconds:.1f} s of training")
        print(f"curve:      {curve}")
        print(f"checkpoint: {self._checkpoint_path}")
        if self._best is not None:
            print(f"best:       {self.folder.checkpoints.best}")
        for line in self._warned():
            print(line)
        if verdict is None:
            print(f"go on with: {self._command()}")
        elif not verdict.solved:
            print(f"to go on, raise it: {self._command()} --set stop.{verdict.setting}=...")


def _goal(rules: StopSettings, key: str) -> float | None:
    """Return the goal for the result that the curve shows."""
    returns = rules.evaluation_return_mean if rules.episode_return_mean is None else rules.episode_return_mean
    return rules.results.get(key, returns if key == RETURN_MEAN else None)


def _exit_code(verdict: Verdict | None) -> int:
    return GOAL_MISSED if verdict is not None and verdict.has_goal and not verdict.solved else 0


def _read_config(path: Path, changes: Sequence[str], allow_imports: bool) -> AlgorithmConfig:
    """The config in a file, with changes, checked for all that training needs."""
    document = read_document(path)
    cls = AlgorithmConfig.class_in(document, allow_imports=allow_imports)
    if cls is AlgorithmConfig:  # the message that `algorithm` is missing names this one
        cls = config_class("ppo")
    return cls.from_document(changed_document(cls, document, changes), allow_imports=allow_imports, complete=True)


def built_algorithm(path: Path, *, allow_imports: bool = False) -> Algorithm:
    """Build the algorithm of a config file, of a checkpoint, or of a run, with its newest checkpoint if it has one.

    It is for acting: if its replay buffer was not saved, no warning says so.

    Raises:
        EpibatchError: the file or folder is none of these, or the algorithm cannot be built.
    """
    if not path.exists():
        folders = (file.parent for place in (path.parent, Path("runs")) for file in place.glob("*/config.yaml"))
        there = sorted({str(other) for other in (*folders, *path.parent.glob("*.yaml"), *path.parent.glob("*.yml"))})
        example = "algorithm: ppo, and below environment: the line env: CartPole-v1"
        raise ConfigError(
            str(path),
            expected="the folder of a run or of a checkpoint, or a YAML file with a config",
            found="no file or folder of this name",
            do=f"name one that is here: {nearest(str(path), there)}"
            if there
            else f"write a file with {example}; or train first: epibatch train FILE.yaml --run {path}",
        )
    if path.is_dir() and (path.parent.name == CHECKPOINTS or (path / CHECKPOINTS).is_dir()):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "restoring a replay buffer", EpibatchWarning)
            return Algorithm.from_checkpoint(path, allow_imports=allow_imports)
    if path.is_dir():
        path = RunFolder.open_existing(path).config_path
    return _build(_read_config(path, (), allow_imports), path)


def _build(config: AlgorithmConfig, path: Path) -> Algorithm:
    try:
        return config.build_algo()
    except EpibatchError as error:
        add_context(error, f"{path}:")
        raise


def _default_folder(config_path: Path) -> Path:
    stem = re.sub(r"[^\w.-]+", "-", config_path.stem)
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
