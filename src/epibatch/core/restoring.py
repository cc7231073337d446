"""Restored states, compared with what they restore before they are used.

A state may come from a stranger's file: it is data of any nesting, shape and type. Before an object takes a state over,
it is compared with a template, which is what the object's `get_state` gives: same keys, shapes and kinds of numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, EpibatchError

_MOST = 2**63
_KINDS = {"i": "integers", "u": "integers", "f": "floats", "b": "booleans", "c": "complex numbers"}
_LISTED = 120
_WORDS = 624
_POSITIONS = {"pos": _WORDS, "buffer_pos": 4, "has_uint32": 1, "uinteger": 2**32 - 1}
"""Entries of NumPy's bit generators -> the largest value; NumPy reads out of bounds beyond some of them."""
_TORCH_STATE = struct.Struct("<QiiQ")
"""Seed, words left, whether it is seeded, and the next word: the beginning of the state of torch's CPU generator."""


@contextmanager
def restoring(where: str, part: object) -> Iterator[None]:
    """Say which part of a state does not fit when restoring it fails.

    Args:
        where: What is being restored.
        part: The name of the part.

    Raises:
        CheckpointError: in place of errors that only tell what went wrong inside.
    """
    try:
        yield
    except EpibatchError:
        raise
    except Exception as error:
        found = f"something else ({type(error).__name__}: {error})"
        raise _unfit(where, f"the part {part!r} of a state that get_state gave", found) from error


@contextmanager
def restore_on_error(put_back: Callable[[], Any]) -> Iterator[None]:
    """Put an object's state back if taking another one over fails on the way.

    Args:
        put_back: Gives the object the state that it had before.
    """
    try:
        yield
    except Exception:
        put_back()
        raise


def check_like(where: str, state: Any, template: Any) -> None:
    """Compare a state with one of the same nesting: keys, lengths, shapes and kinds of numbers.

    Args:
        where: Whose state it is, for messages.
        state: What is to be restored.
        template: What `get_state` gives now. Dicts must have the same keys, lists and tuples as many items, arrays
            and tensors the same shape and kind (floats, integers, booleans), numbers the same type; integers are below
            2**63.

    Raises:
        CheckpointError: they differ; the message says where.

    Examples:
        >>> check_like("a filter", {"mean": np.zeros(3), "count": 7}, {"mean": np.ones(3), "count": 0})
        >>> check_like("a filter", {"mean": np.zeros(4), "count": 7}, {"mean": np.ones(3), "count": 0})
        Traceback (most recent call last):
            ...
        epibatch.core.errors.CheckpointError: a filter['mean']
          expected: floats of shape (3,)
          found:    floats of shape (4,)
          do:       restore a state that get_state of the same object gave
    """
    if isinstance(template, Mapping):
        if not isinstance(state, Mapping) or state.keys() != template.keys():
            found = f"keys: {_listed(state)}" if isinstance(state, Mapping) else _text(state)
            raise _unfit(where, f"keys: {_listed(template)}", found)
        for key, part in template.items():
            check_like(f"{where}[{key!r}]", state[key], part)
    elif isinstance(template, (list, tuple)):
        if not isinstance(state, (list, tuple)) or len(state) != len(template):
            raise _unfit(where, f"{len(template)} items", _text(state))
        for index, part in enumerate(template):
            check_like(f"{where}[{index}]", state[index], part)
    elif _form(state) != _form(template):
        raise _unfit(where, _described(template), _described(state))
    elif type(template) is int and not -_MOST <= state < _MOST:
        raise _unfit(where, "an integer below 2**63", _text(state))


def converted_numbers(where: str, value: Any, template: Any) -> Any:
    """Numbers, as a tensor that can be copied into another one.

    Args:
        where: Whose they are, for messages.
        value: A tensor, an array, a number or lists of numbers.
        template: The other tensor. Integers may become floats, and floats that are whole may become integers.

    Raises:
        CheckpointError: the template's type cannot express the numbers.
    """
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    if not torch.can_cast(tensor.dtype, template.dtype):
        converted = tensor.to(template.dtype)
        if not torch.equal(converted.to(tensor.dtype), tensor):
            raise _unfit(where, _described(template), _described(tensor))
        return converted
    return tensor


def check_count(where: str, value: Any) -> int:
    """A number of things: an integer from 0 to 2**63 - 1.

    Raises:
        CheckpointError: it is something else.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < _MOST:
        return int(value)
    raise _unfit(where, "a whole number from 0 to 2**63 - 1", _text(value))


def restore_generator(where: str, generator: np.random.Generator, state: Any) -> None:
    """Put a NumPy generator to where the state of its bit generator was taken.

    Raises:
        CheckpointError: the state is of another kind of generator, or none that one can have; nothing was changed.
    """
    template = generator.bit_generator.state
    if not isinstance(state, Mapping) or state.get("bit_generator") != template["bit_generator"]:
        raise _unfit(where, f"the state of a {template['bit_generator']} generator", _text(state))
    _check_words(where, state, template)
    with restoring(where, "generator"):
        generator.bit_generator.state = state


def _check_words(where: str, state: Any, template: Any) -> None:
    """Compare a bit generator's state with its own one; its words are integers of up to 128 bits."""
    if not isinstance(template, Mapping):
        number = isinstance(state, (int, np.integer)) and not isinstance(state, bool)
        if isinstance(template, int) and not (number and 0 <= state < 2**128):
            raise _unfit(where, "an integer from 0 to 2**128 - 1", _text(state))
        if not isinstance(template, int):
            check_like(where, state, template)
        return
    if not isinstance(state, Mapping) or state.keys() != template.keys():
        raise _unfit(where, f"keys: {_listed(template)}", _text(state))
    for key, value in template.items():
        _check_words(f"{where}[{key!r}]", state[key], value)
        if key in _POSITIONS and state[key] > _POSITIONS[key]:
            raise _unfit(f"{where}[{key!r}]", f"at most {_POSITIONS[key]}", _text(state[key]))


def restore_torch_generator(where: str, generator: Any, state: Any) -> None:
    """Put a torch generator to where its state was taken.

    Args:
        where: Whose it is, for messages.
        generator: A `torch.Generator`, or an object with its `get_state` and `set_state`.
        state: Its bytes, as an array.

    Raises:
        CheckpointError: the state is none that such a generator can have; nothing was changed.
    """
    import torch

    template = generator.get_state().numpy()
    check_torch_state(where, state, template)
    with restoring(where, "generator"):
        generator.set_state(torch.from_numpy(np.array(state, np.uint8)))


def check_torch_state(where: str, state: Any, template: np.ndarray[Any, Any]) -> None:
    """Compare the bytes of a torch generator's state with its own ones.

    Raises:
        CheckpointError: there are more or fewer, or they lead beyond the end of the generator's words.
    """
    if not isinstance(state, np.ndarray) or state.dtype != np.uint8 or state.shape != template.shape:
        raise _unfit(where, f"{template.size} bytes", _described(state))
    if template.size > _TORCH_STATE.size + 8 * _WORDS:  # that of a CPU
        _, left, is_seeded, position = _TORCH_STATE.unpack_from(state.tobytes())
        if not 0 < left <= _WORDS or is_seeded not in (0, 1) or position > _WORDS:
            raise _unfit(where, f"a position from 0 to {_WORDS}", f"{position}, with {left} words left")


def _form(value: Any) -> tuple[Any, ...]:
    """Describe what a value and its template must have in common: kind of numbers, and shape."""
    dtype: Any = getattr(value, "dtype", None)
    if dtype is not None:
        kind = dtype.kind if isinstance(dtype, np.dtype) else _torch_kind(dtype)
        return _KINDS.get(kind, kind), tuple(value.shape)
    if type(value) is bool:
        return ("booleans", ())
    if isinstance(value, int):
        return ("integers", ())
    return ("floats", ()) if isinstance(value, float) else (type(value).__name__,)


def _torch_kind(dtype: Any) -> str:
    """The kind, as NumPy abbreviates it, of a torch type of numbers."""
    import torch

    return "f" if dtype.is_floating_point else "c" if dtype.is_complex else "b" if dtype is torch.bool else "i"


def _described(value: Any) -> str:
    form = _form(value)
    return f"{form[0]} of shape {form[1]}" if len(form) == 2 else _text(value)


def _listed(parts: Mapping[Any, Any]) -> str:
    text = ", ".join(map(repr, parts)) or "none"
    return text if len(text) <= _LISTED else f"{text[:_LISTED]}..."


def _text(value: Any) -> str:
    if isinstance(value, (int, float, str, bool, type(None))):
        text = repr(value) if not isinstance(value, int) or value.bit_length() < _LISTED else "a very large integer"
        return f"{type(value).__name__} {text if len(text) <= _LISTED else text[:_LISTED] + '...'}"
    return (
        f"{type(value).__name__} of {len(value)}" if isinstance(value, (Mapping, list, tuple)) else type(value).__name__
    )


def _unfit(where: str, expected: str, found: str) -> CheckpointError:
    do = "restore a state that get_state of the same object gave"
    return CheckpointError(where, expected=expected, found=found, do=do)
