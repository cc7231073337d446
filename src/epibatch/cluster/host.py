"""The inside of an actor: an object of the user's class, its constructor and its errors."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from epibatch.core.errors import EpibatchError, add_note

from .registered import Registrations

Parts: TypeAlias = tuple[Callable[..., Any], Registrations, Mapping[str, Any]]

_LONGEST_CHAIN = 8


@dataclass(frozen=True)
class Failure:
    """An exception that an actor raised, as data.

    Args:
        links: The exception and its causes: each pickled, empty if that is impossible, and one that says the same.
        trace: The traceback in the actor.
    """

    links: list[tuple[bytes, EpibatchError]]
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return the data of an exception that is being handled."""
        links: list[tuple[bytes, EpibatchError]] = []
        link: BaseException | None = error
        while link is not None and len(links) < _LONGEST_CHAIN:
            links.append((_pickled(link), _substitute(link)))
            link = link.__cause__
        return cls(links, traceback.format_exc())

    def exception(self, where: str) -> Exception:
        """Return the exception again, of its class where possible, with the actor's traceback as a note.

        Args:
            where: Which actor raised it.
        """
        chain = [_loaded(data) or substitute for data, substitute in self.links]
        for effect, cause in itertools.pairwise(chain):
            effect.__cause__ = cause
        add_note(chain[0], f"Raised in {where}:\n{self.trace.rstrip()}")
        return chain[0]


def _pickled(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        return data if type(pickle.loads(data)) is type(error) else b""
    except Exception:  # whatever a class of the user raises here: the substitute goes in its place
        return b""


def _loaded(data: bytes) -> Exception | None:
    try:
        error = pickle.loads(data) if data else None
    except Exception:  # a class that only the other process can import
        return None
    return error if isinstance(error, Exception) else None


def _substitute(error: BaseException) -> EpibatchError:
    """Return an exception of a known class with the text of `error`, and its flags."""
    substitute = EpibatchError(f"{type(error).__name__}: {error}")
    vars(substitute).update((name, value) for name, value in vars(error).items() if isinstance(value, bool))
    return substitute


class ActorHost:
    """The actor that Ray makes: it builds an object and calls its methods, and returns exceptions as `Failure`.

    The constructor and all methods but `progress` run in one thread, one after the other, in the order of the calls.

    Args:
        import_paths: Folders of modules, as in `sys.path` of the process that makes the actor.
    """

    def __init__(self, import_paths: Iterable[str] = ()) -> None:
        sys.path += [path for path in import_paths if path not in sys.path]
        self._hosted: Any = None
        self._failure: Failure | None = None

    def build(self, index: int, restarts: int, parts: Parts) -> Any:
        """Build the object, and return the process id and the node, or the constructor's `Failure`.

        Args:
            index: Its number in its group, from 1.
            restarts: Number of earlier actors of this index.
            parts: Its class, names to register first, and the other arguments of the class.
        """
        import ray

        actor_class, registered, arguments = parts
        try:
            registered.apply()
            self._hosted = actor_class(index=index, restarts=restarts, **arguments)
        except Exception as error:
            self._failure = Failure.of(error)
            return self._failure
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object, and return its value or its `Failure`."""
        if self._failure is not None:
            return self._failure
        try:
            return getattr(self._hosted, method)(*args)
        except Exception as error:
            return Failure.of(error)

    def progress(self) -> Any:
        """Return what `progress()` of the object returns; runs beside the other methods, in another thread."""
        return None if self._hosted is None else self._hosted.progress()
