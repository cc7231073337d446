"""One training run from the command line: start or resume, watch, stop, save."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, EpibatchError, explain

from .checkpoint import config_class
from .config_files import read_yaml, to_yaml_text
from .run_folder import RunFolder
from .stop_rules import Verdict, judge
from .training_progress import Progress

if TYPE_CHECKING:
    from .algorithm import Algorithm

__all__ = ["STARTUP_ERRORS", "TrainingRun"]

STARTUP_ERRORS = (EpibatchError, gym.error.Error, ImportError, OSError)
"""What a wrong config, environment or folder raises before training begins."""

GOAL_MISSED = 1
INTERRUPTED = 130


class TrainingRun:
    """Trains an algorithm into a run folder until a stop rule, a number of iterations, or Ctrl-C ends it.

    Args:
        algorithm: the algorithm.
        folder: where the run is written.
        name: the run's title.
    """

    def __init__(self, algorithm: Algorithm, folder: RunFolder, name: str) -> None:
        self.algorithm = algorithm
        self.folder = folder
        self.name = name
        self._interrupted = False

    @classmethod
    def start(cls, config_path: Path, run: Path | None, *, seed: int | None, allow_imports: bool) -> TrainingRun:
        """Begin a run from a config file.

        Raises:
            ConfigError: the file is missing or wrong, or the run folder is not empty.
        """
        data = read_yaml(Path(config_path))
        config = config_class(_algorithm_of(data)).from_dict(data, allow_imports=allow_imports)
        if seed is not None:
            config.debugging(seed=seed)
        text = to_yaml_text(config.to_dict())
        algorithm = config.build_algo()
        folder = RunFolder.create(run or _default_folder(config_path))
        folder.write_config(text)
        return cls(algorithm, folder, config_path.stem)

    @classmethod
    def resume(cls, run: Path, *, allow_imports: bool) -> TrainingRun:
        """Go on with a saved run, with the config in its folder.

        Raises:
            CheckpointError: the folder holds no saved run.
        """
        folder = RunFolder.open_existing(Path(run))
        data = read_yaml(folder.config_path)
        algorithm = config_class(_algorithm_of(data)).from_dict(data, allow_imports=allow_imports).build_algo()
        algorithm.restore_from_path(folder.checkpoint_path)
        folder.keep_until(algorithm.training_iteration)
        return cls(algorithm, folder, Path(run).name)

    def run(self, iterations: int | None = None) -> int:
        """Train until something ends the run, save, draw, and say how it went.

        Args:
            iterations: stop after this many, or None.

        Returns:
            The process's exit code.
        """
        rules = self.algorithm.config.stop_rules
        verdict: Verdict | None = None
        done = 0
        results: dict[str, Any] = {}
        with Progress(rules, self.name) as progress, self._interruptible(progress):
            while verdict is None and not self._interrupted and (iterations is None or done < iterations):
                results = self.algorithm.train()
                done += 1
                self.folder.log(results)
                progress.show(results)
                verdict = judge(rules, results)
        self.algorithm.save_to_path(self.folder.checkpoint_path)
        curve = self.folder.draw_learning_curve(self.name, rules.episode_return_mean)
        self.algorithm.stop()
        self._report(verdict, results, curve)
        if self._interrupted:
            return INTERRUPTED
        return GOAL_MISSED if verdict is not None and verdict.has_goal and not verdict.solved else 0

    @contextmanager
    def _interruptible(self, progress: Progress) -> Iterator[None]:
        """Let Ctrl-C end the run after the current iteration; a second one ends it at once."""

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            progress.say("Ctrl-C: finishing this iteration, then saving (press again to stop without saving)")

        before = signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _report(self, verdict: Verdict | None, results: dict[str, Any], curve: Path) -> None:
        steps = results.get("num_env_steps_sampled_lifetime", 0)
        seconds = results.get("time_total_s", 0.0)
        if verdict is not None:
            head = "solved" if verdict.solved else "not solved" if verdict.has_goal else "finished"
            head += f": {verdict.reason}"
        else:
            head = "interrupted" if self._interrupted else "finished"
        print(f"{head}, after {steps:,} env steps and {seconds:.1f} s of training")
        print(f"curve:      {curve}")
        print(f"checkpoint: {self.folder.checkpoint_path}")
        if verdict is None or not verdict.solved:
            print(f"go on with: epibatch train --resume {self.folder.path}")


def _algorithm_of(data: Any) -> str:
    if isinstance(data, dict) and "algorithm" in data:
        return str(data["algorithm"])
    found = "no key 'algorithm'" if isinstance(data, dict) else type(data).__name__
    raise ConfigError(
        explain(
            "config file", expected="a mapping with `algorithm: ppo`", found=found, do="add the line algorithm: ppo"
        )
    )


def _default_folder(config_path: Path) -> Path:
    stem = re.sub(r"[^\w.-]+", "-", config_path.stem)
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
