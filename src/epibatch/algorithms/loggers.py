"""Loggers: what takes a run's results, one iteration after the other, and writes them somewhere."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from epibatch.core.errors import ConfigError, EpibatchError, LoggerError, StorageError, add_context, nearest
from epibatch.core.files import open_to_append, read_file, replace_file, storing
from epibatch.core.imports import import_extra
from epibatch.core.video import VideoWriter

from .run.mlflow_logger import MLflowLogger
from .run.results import flat_metrics, in_reading_order, numbers_in, videos_in
from .run.wandb_logger import WandbLogger

__all__ = [
    "LOGGERS",
    "CSVLogger",
    "JSONLLogger",
    "Logger",
    "Loggers",
    "TensorBoardLogger",
    "VideoLogger",
    "make_logger",
]

VIDEO_FPS = 30
"""Frames per second of the videos in results."""
_FREE = "free some space, or mend what the system complains about, then go on with the run"


@runtime_checkable
class Logger(Protocol):
    """Anything with a method `log`.

    Two further methods are called if they are there: `resume(rows)` once before the first `log` of a run that is
    gone on with, with the flat rows of the iterations up to its checkpoint, and `close()` when the run ends.

    Examples:
        >>> class Printer:
        ...     def log(self, results):
        ...         print(results["training_iteration"])
        >>> isinstance(Printer(), Logger)
        True
    """

    def log(self, results: Mapping[str, Any]) -> None:
        """Take the results of one iteration, nested as `Algorithm.train` returns them."""


class JSONLLogger:
    """Appends each iteration to a file as one line of JSON, `{"training_iteration": 1, ...}`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, results: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            StorageError: the disk is full, say.
        """
        with storing(f"writing {self.path}", _FREE), open_to_append(self.path) as file:
            file.write((json.dumps(flat_metrics(results)) + "\n").encode())

    def resume(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep these rows and no others; without any the file goes."""
        if rows:
            replace_file(self.path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        else:
            self.path.unlink(missing_ok=True)


class CSVLogger:
    """Appends each iteration to a table; a new metric adds a column, which is empty in the rows before it.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []

    def log(self, results: Mapping[str, Any]) -> None:
        """Append one row.

        Raises:
            StorageError: the disk is full, say.
        """
        row = flat_metrics(results)
        new = [key for key in row if key not in self._columns]
        with storing(f"writing {self.path}", _FREE):
            if new:
                rows = self._rows()
                self._columns = in_reading_order([*self._columns, *new])
                self._write([*rows, row])
                return
            line = io.StringIO(newline="")
            csv.DictWriter(line, self._columns).writerow(row)
            with open_to_append(self.path) as file:
                file.write(line.getvalue().encode())

    def resume(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep these rows and no others; without any the file goes."""
        self._columns = in_reading_order(dict.fromkeys(key for row in rows for key in row))
        if rows:
            self._write(rows)
        else:
            self.path.unlink(missing_ok=True)

    def _rows(self) -> list[dict[str, Any]]:
        if not self._columns:
            return []
        text = io.StringIO(read_file(self.path).decode(), newline="")
        return list(csv.DictReader(text))

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self.path, text.getvalue().encode())


class TensorBoardLogger:
    """Writes every number as a scalar over environment steps, and videos as moving images, for `tensorboard --logdir`.

    Args:
        path: The folder for event files.

    Raises:
        MissingExtraError: the extra `tensorboard` is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer_class: Callable[..., Any] = import_extra(
            "torch.utils.tensorboard", "tensorboard", "the logger 'tensorboard'"
        ).SummaryWriter
        self._purge_step: int | None = None
        self._writer: Any = None

    def log(self, results: Mapping[str, Any]) -> None:
        """Write one point of every curve."""
        if self._writer is None:
            self._writer = self._writer_class(str(self.path), purge_step=self._purge_step)
        step = results["num_env_steps_sampled_lifetime"]
        for name, value in numbers_in(results).items():
            self._writer.add_scalar(name, value, step)
        for name, frames in videos_in(results).items():
            self._add_video(name, frames, step)
        self._writer.flush()

    def _add_video(self, name: str, frames: Any, step: int) -> None:
        """Write a GIF; PyTorch's `add_video` does not know moviepy 2."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        file, (first, *others) = io.BytesIO(), map(Image.fromarray, frames)
        first.save(file, "GIF", save_all=True, append_images=others, duration=1000 / VIDEO_FPS, loop=0)
        height, width, channels = frames.shape[1:]
        image = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=file.getvalue())
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def resume(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let what was written after these rows be hidden."""
        self._purge_step = (rows[-1]["num_env_steps_sampled_lifetime"] if rows else 0) + 1

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class VideoLogger:
    """Writes the videos in the results, such as those of a `VideoRecorder`, as mp4 files.

    The file of `env_runners/video` of iteration 12 is `env_runners-video-000012.mp4`.

    Args:
        path: The folder.

    Raises:
        NotAvailableError: the extra `video` is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer("check")

    def _writer(self, name: str) -> VideoWriter:
        return VideoWriter(self.path / f"{name}.mp4", VIDEO_FPS)

    def log(self, results: Mapping[str, Any]) -> None:
        """Write a file for each video of the iteration."""
        for name, frames in videos_in(results).items():
            writer = self._writer(f"{name.replace('/', '-')}-{results['training_iteration']:06d}")
            with closing(writer):
                for frame in frames:
                    writer.add(frame)


LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "jsonl": lambda folder: JSONLLogger(folder / "metrics.jsonl"),
    "csv": lambda folder: CSVLogger(folder / "metrics.csv"),
    "tensorboard": lambda folder: TensorBoardLogger(folder / "tensorboard"),
    "video": lambda folder: VideoLogger(folder / "videos"),
    "wandb": WandbLogger,
    "mlflow": MLflowLogger,
}
"""A logger's name in a config -> what makes it for a run's folder."""


def make_logger(logger: str | Logger, folder: Path) -> Logger:
    """A logger by name, or the one that is given.

    Args:
        logger: One of `LOGGERS`, or an object with a method `log`.
        folder: The run's folder, for those with a name.

    Raises:
        ConfigError: there is no logger of this name, or the object is none.
        MissingExtraError: it needs an extra that is not installed.
    """
    if isinstance(logger, str):
        if logger in LOGGERS:
            return LOGGERS[logger](folder)
        found, do = repr(logger), nearest(logger, LOGGERS)
    else:
        if not isinstance(logger, type) and isinstance(logger, Logger):
            return logger
        found, do = f"{type(logger).__name__} {logger!r}", "give it a method log(self, results)"
    expected = "the name of a logger, or an object with a method log(results)"
    raise ConfigError("loggers", expected=expected, found=found, do=do)


class Loggers:
    """Hands results to several loggers.

    Args:
        loggers: The loggers.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)

    def log(self, results: Mapping[str, Any]) -> None:
        """Pass a copy of one iteration's results to every logger, also to those after a failing one.

        Raises:
            EpibatchError: the error of the first logger that failed, beginning with the logger's name.
            StorageError: in place of another OSError.
            LoggerError: in place of any other exception.
        """
        when = f"iteration {results.get('training_iteration')}"
        self._each(self._loggers, lambda logger: logger.log(deepcopy(results)), when)

    def resume(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell every logger which rows stay; raises as `log` does."""
        self._each(self._loggers, lambda logger: getattr(logger, "resume", _no_operation)(rows), "going on with a run")

    def close(self) -> None:
        """Close every logger, once; raises as `log` does."""
        loggers, self._loggers = self._loggers, []
        self._each(loggers, lambda logger: getattr(logger, "close", _no_operation)(), "closing")

    def _each(self, loggers: Sequence[Logger], act: Callable[[Any], None], what: str) -> None:
        failures: list[tuple[Logger, Exception]] = []
        for logger in loggers:
            try:
                act(logger)
            except Exception as error:
                failures.append((logger, error))
        if failures:
            logger, first = failures[0]
            where = f"logger {type(logger).__name__}, {what}"
            if isinstance(first, EpibatchError):
                add_context(first, f"in {where}:")
                raise first
            raise _failure(where, first) from first


def _failure(where: str, error: Exception) -> EpibatchError:
    kind: type[EpibatchError] = LoggerError
    do = "mend the logger, or leave it out; the other loggers were served"
    if isinstance(error, OSError):
        kind, do = StorageError, _FREE
    found = f"{type(error).__name__}: {error}"
    return kind(where, expected="results that are written", found=found, do=do)


def _no_operation(*_: Any) -> None:
    """Stand in for a method that a logger does not have."""
