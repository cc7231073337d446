"""A config's callbacks, by event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from epibatch.core.errors import add_context
from epibatch.core.imports import load_object

from .callbacks import Callbacks

__all__ = ["Listeners", "callback_problem"]


def callback_problem(value: Any, kind: str = "function") -> str | None:
    """Return the problem of a config's callback as text; None if it is valid.

    Args:
        value: A function (or a class), an import path `module:name`, or a list of these; None: no callback.
        kind: "function" or "class", the expected kind.

    Example:
        >>> callback_problem("math:floor"), callback_problem([print, 3])
        (None, 'expected a function, its import path module:function, or a list of these, found int 3')
    """
    for item in _listed(value):
        if isinstance(item, str):
            if not item.partition(":")[2]:
                return f"expected a {kind}'s import path module:{kind}, found {item!r}"
        elif not callable(item):
            form = f"a {kind}, its import path module:{kind}, or a list of these"
            return f"expected {form}, found {type(item).__name__} {item!r}"
    return None


class Listeners:
    """Dispatcher of a config's callbacks: objects of its callback classes, and its functions.

    Args:
        config: Has `callbacks_class`, and a setting named after each event.
        events: The names of the events.

    Raises:
        RegistryError: an import path cannot be resolved.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> told = []
        >>> config = PPOConfig().callbacks(on_sample_end=lambda samples, **kwargs: told.append(samples))
        >>> listeners = Listeners(config, ["on_sample_end", "on_episode_end"])
        >>> listeners.call("on_sample_end", samples=[])
        >>> "on_sample_end" in listeners, "on_episode_end" in listeners, told
        (True, False, [[]])
    """

    def __init__(self, config: Any, events: Sequence[str]) -> None:
        objects = [cls() for cls in _loaded(config.callbacks_class, "callbacks_class", "class")]
        self._functions: dict[str, list[Callable[..., Any]]] = {}
        for event in events:
            own = [getattr(each, event) for each in objects if _overrides(each, event)]
            self._functions[event] = own + _loaded(getattr(config, event), event, "function")

    def __contains__(self, event: str) -> bool:
        return bool(self._functions[event])

    def call(self, event: str, **keywords: Any) -> None:
        """Call all callbacks of an event, methods first.

        An error keeps its class; its message begins with the event, the function, and the episode if there is one.
        """
        for function in self._functions[event]:
            try:
                function(**keywords)
            except Exception as error:
                add_context(error, _place(event, function, keywords))
                raise


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _loaded(value: Any, setting: str, kind: str) -> list[Any]:
    return [
        load_object(item, f"callbacks.{setting}", kind) if isinstance(item, str) else item for item in _listed(value)
    ]


def _overrides(listener: Any, event: str) -> bool:
    """True if the object's class overrides the event's method."""
    method = getattr(listener, event, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(Callbacks, event)


def _place(event: str, function: Callable[..., Any], keywords: dict[str, Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    place = f"in the callback {event} ({name})"
    episode = keywords.get("episode")
    if episode is not None:
        place += f", episode {episode.id_!r} of environment {keywords['env_index']}"
    return f"{place}:"
