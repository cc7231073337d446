"""Every error class of epibatch, each inheriting the builtin that fits it.

Messages have one form: where it happened, what was expected, what was found, what to do. An error is raised with
these four parts, `SpaceError("env 3, reset()", expected="shape (4,)", found="(3,)", do="return the space's shape")`,
and keeps them as attributes. `nearest` adds the closest known name. docs/errors.md explains the most frequent errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "BatchLayoutError",
    "CheckpointError",
    "ColumnError",
    "ConfigError",
    "DataError",
    "EnvironmentCheckError",
    "EnvironmentContractError",
    "EpisodeError",
    "EpisodeIndexError",
    "EpisodeStateError",
    "EpibatchError",
    "EpibatchWarning",
    "FirstUpdateError",
    "FirstUpdateWarning",
    "LoggerError",
    "LookbackError",
    "MissingExtraError",
    "NonFiniteLossError",
    "NotAvailableError",
    "NotStoredError",
    "OtherLearnerError",
    "PieceCheckError",
    "PieceError",
    "PieceOutputError",
    "PipelineError",
    "PortingError",
    "RegistryError",
    "ReplayError",
    "RenamedError",
    "RolloutOverflowError",
    "RunnerArgumentError",
    "RunnerError",
    "SpaceError",
    "StateError",
    "StorageError",
    "UnknownNameError",
    "WorkerLostError",
    "add_context",
    "add_note",
    "error_context",
    "nearest",
]

_LISTED, _LONGEST = 380, 400
"""Characters of a list of names, and of a part of a message, at most."""


class _FourParts(Exception):
    """A message of four parts, which stay readable as attributes after `copy` and `pickle` too."""

    where: str | None = None
    expected: str | None = None
    found: str | None = None
    do: str | None = None

    def __init__(self, *args: object, expected: object = None, found: object = None, do: object = None) -> None:
        if expected is None and found is None and do is None:
            super().__init__(*args)
            return
        shown = "\n".join(map(_shortened, str(found).split("\n")))
        parts = {"where": str(args[0]), "expected": str(expected), "found": shown, "do": str(do)}
        text = "{where}\n  expected: {expected}\n  found:    {found}\n  do:       {do}".format(**parts)
        super().__init__("\n".join(line.rstrip() for line in text.splitlines()))
        vars(self).update(parts)

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return "\n".join(str(part) for part in self.args)


def _shortened(text: str) -> str:
    """Return a line without its middle if it is long, as the values of users can be."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]} ({len(text):,} characters)"


class EpibatchError(_FourParts):
    """Base of every error that epibatch raises on purpose.

    Args:
        *args: Where it happened; or a whole message, without the other three.
        expected: What would have been right.
        found: What was there. The middle of a long line is left out.
        do: What mends it.

    Attributes:
        where, expected, found, do: The four parts as text; None for an error with a whole message.
    """


class EpibatchWarning(_FourParts, UserWarning):
    """A warning of epibatch, with the same four parts as its errors."""


class EpisodeError(EpibatchError, ValueError):
    """An episode was given data that does not fit it."""


class EpisodeStateError(EpisodeError, AssertionError):
    """An operation the episode's state forbids: step before reset, step after done, a second reset.

    Also an AssertionError, so that code written against RLlib's episodes catches it.
    """


class EpisodeIndexError(EpibatchError, IndexError):
    """An index outside an episode's rows, or new data of another length than its indices."""


class LookbackError(EpibatchError, IndexError):
    """A piece asked for history that its chunk does not carry although the episode has it."""


class SpaceError(EpibatchError, ValueError):
    """Data or a module does not match its Gymnasium space."""


class ColumnError(EpibatchError, ValueError):
    """A column has the wrong rows, shape or type, or is missing."""


class NotStoredError(ColumnError, KeyError, AttributeError):
    """A storage has no such column, because its configuration does not ask for it or it is not computed yet."""


class BatchLayoutError(EpibatchError, ValueError):
    """A batch is in another layout than the operation takes."""


class PipelineError(EpibatchError, ValueError):
    """A pipeline cannot work as it was put together."""


class PieceError(EpibatchError, TypeError):
    """Something in a pipeline is not a connector piece, or was built with wrong arguments."""


class PieceCheckError(EpibatchError, AssertionError):
    """A piece does not keep the contract of connector pieces; the message lists everything that was found.

    Attributes:
        report: what every check found, an `epibatch.testing.CheckReport`.
    """

    report: Any = None


class PieceOutputError(EpibatchError, ValueError):
    """A piece returned something other than a batch dict."""


class PortingError(EpibatchError, ValueError):
    """A file cannot be ported: it is no Python source, or cannot be read as text."""


class UnknownNameError(EpibatchError, KeyError, ValueError):
    """A name that is not known here; the message lists the nearest and all known names."""


class RegistryError(EpibatchError, ValueError):
    """A name is taken already, or a registered object cannot be loaded."""


class RenamedError(EpibatchError, ImportError):
    """A public name that has another one now, which the message says."""


class ConfigError(EpibatchError, ValueError):
    """A configuration has wrong keys or values; the message lists all of them with their paths."""


class CheckpointError(EpibatchError, ValueError):
    """A checkpoint is incomplete, damaged, or does not fit what it is loaded into."""


class DataError(EpibatchError, ValueError):
    """Recorded data is incomplete, damaged, of another format, or cannot be kept in a data set."""


class StorageError(EpibatchError, OSError):
    """Something could not be written: the disk is full or broken, or there is no permission."""


class RolloutOverflowError(EpibatchError, OverflowError):
    """Raised when a rollout storage gets more steps than it has room for."""


class ReplayError(EpibatchError, ValueError):
    """A replay buffer cannot hold or draw what it was asked for."""


class StateError(EpibatchError, ValueError):
    """A piece's state does not fit the piece, or states of its copies cannot be merged."""


class LoggerError(EpibatchError, RuntimeError):
    """A logger raised; what it was given has been trained, and the other loggers have it."""


class MissingExtraError(EpibatchError, ImportError):
    """A package is needed that only an extra installs; the message has the command."""


class RunnerError(EpibatchError, RuntimeError):
    """An environment runner was used wrongly or its environment broke its contract."""


class EnvironmentContractError(RunnerError, ValueError):
    """An environment broke the contract of Gymnasium's `Env` or `VectorEnv`, or of `MultiAgentEnv`."""


class EnvironmentCheckError(EnvironmentContractError, AssertionError):
    """An environment breaks its contract; the message lists everything that `check_env` found.

    Attributes:
        report: All findings, an `epibatch.testing.EnvReport`.
    """

    report: Any = None


class RunnerArgumentError(RunnerError, ValueError, AssertionError):
    """`sample` was called with arguments that contradict each other.

    Also an AssertionError, so that code written against RLlib's runners catches it.
    """


class WorkerLostError(EpibatchError, RuntimeError):
    """A process that samples or learns died, hung or could not be reached, or its machine did."""


class NonFiniteLossError(EpibatchError, FloatingPointError):
    """A loss, one of its metrics or the gradient norm is NaN or infinite; the step was not applied."""


class OtherLearnerError(EpibatchError, RuntimeError):
    """Another one of the learners that update together failed; it raises the error itself."""


class FirstUpdateError(EpibatchError, ValueError):
    """The learner computes something else than was recorded while acting; see `check_first_update`."""


class FirstUpdateWarning(EpibatchWarning):
    """The learner computes something else than was recorded while acting; see `check_first_update`."""


class NotAvailableError(EpibatchError, NotImplementedError):
    """A capability this release does not have; the message says what to use instead."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name is closest to `name`, then list all of them; of many the closest, and how many more."""
    names, more = sorted(known), ""
    alike = [other for other in names if other.lower() == name.lower()]
    matches = alike or difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {matches[0]!r}? " if matches else ""
    if len(", ".join(names)) > _LISTED:
        close = difflib.get_close_matches(name, names, n=5, cutoff=0.3) or names[:5]
        names, more = close, f", and {len(names) - len(close)} more"
    return f"{hint}Known: {', '.join(names) if names else 'none'}{more}"


def add_context(error: BaseException, context: str) -> None:
    """Put `context` before an error's message, keeping its class and traceback.

    Errors that make their message from several arguments, or quote it, get a note instead.
    """
    if isinstance(error, EpibatchError) or not error.args or [str(error)] == list(error.args):
        first = str(error)
        error.args = (f"{context}\n{first}" if first else context, *error.args[1:])
    else:
        add_note(error, context.removesuffix(":"))  # nothing follows a note


@contextmanager
def error_context(context: str, kinds: type[Exception] = EpibatchError) -> Iterator[None]:
    """Put `context` before the message of an error that is raised inside; see `add_context`.

    Args:
        context: Where the error was raised.
        kinds: The class of errors that get it.
    """
    try:
        yield
    except kinds as error:
        add_context(error, context)
        raise


def add_note(error: BaseException, note: str) -> None:
    """Append `note` to an error's message in its printed traceback."""
    if hasattr(error, "add_note"):
        error.add_note(note)
        return
    error.__notes__ = [*getattr(error, "__notes__", []), note]  # Python 3.10 keeps notes and prints none
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        key = NotedKey(error.args[0])
        key.hint, key.notes = getattr(error.args[0], "hint", ""), error.__notes__
        error.args = (key,)


class NotedKey(str):
    """The key of a KeyError, shown with a hint and with the notes of the error."""

    hint: str = ""
    notes: Iterable[str] = ()

    def __repr__(self) -> str:
        return "\n".join([super().__repr__() + self.hint, *self.notes])


def __getattr__(name: str) -> Any:
    if name == "explain":
        raise RenamedError(
            "epibatch.core.errors.explain",
            expected="SomeError(where, expected=..., found=..., do=...)",
            found="explain, which built the text before the error did",
            do="give the four parts to the error class itself",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
