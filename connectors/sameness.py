"""Whether two arguments of pieces mean the same, wherever they were written."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.piece_arguments import all_arguments

from ..episodes._storage.arrays import same_leaf, same_value

__all__ = ["mean_the_same"]

_DEEPEST = 60
_NOWHERE = object()
_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_KINDS_OF_FUNCTION = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
Pairs = dict[tuple[int, int], tuple[Any, Any]]


def mean_the_same(one: Any, other: Any) -> bool:
    """Whether two arguments mean the same; objects that only equal themselves do if they hold the same.

    Arrays, tensors and networks are compared by value, functions by what they compute: their code, their defaults, and
    what they refer to. What cannot be told, as it is nested too deep or lies in compiled code, is not the same.

    Args:
        one: An argument, or a structure of them.
        other: Another one.

    Example:
        >>> def times(factor):
        ...     return lambda x: x * factor
        >>> mean_the_same(times(2), times(2)), mean_the_same(times(2), times(3))
        (True, False)
    """
    return _same(one, other, 0, {})


def _same(one: Any, other: Any, depth: int, seen: Pairs) -> bool:
    """Whether both mean the same if all pairs seen so far do; one that does not settles the whole question."""
    if one is other or (id(one), id(other)) in seen:
        return True
    if depth > _DEEPEST:
        return False
    seen[id(one), id(other)] = one, other  # held, so that no other object gets their ids
    deeper = depth + 1, seen
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(*pair, *deeper) for pair in zip(one, other))
    if type(one) is not type(other):
        return _equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(own, other[key], *deeper) for key, own in one.items())
    if isinstance(one, np.ndarray):
        return _same_arrays(one, other, *deeper)
    if _is_torch(one, "Tensor"):
        return _same_tensors(one, other)
    parts = _parts(one)
    if parts is not None:
        return _same(parts, _parts(other), *deeper)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):  # whose equality does without ours
        return _equal(one, other) or _same(_fields(one), _fields(other), *deeper)
    return _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    """Whether two objects say that they are equal."""
    try:
        return same_value(one, other)
    except Exception:  # they do not say
        return False


def _same_arrays(one: Any, other: Any, depth: int, seen: Pairs) -> bool:
    if one.dtype != object:
        return same_leaf(one, other)
    return one.shape == other.shape and _same(list(one.ravel()), list(other.ravel()), depth, seen)


def _same_tensors(one: Any, other: Any) -> bool:
    """By type, shape and values, on whatever device; NaN equals NaN."""
    try:
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        one, other = one.detach().cpu().to_dense(), other.detach().cpu().to_dense()
        return bool(((one == other) | ((one != one) & (other != other))).all())
    except Exception:  # weights of a lazy network, which are not there yet
        return False


def _is_torch(value: Any, *names: str) -> bool:
    """Whether a value is of one of torch's classes, without importing torch."""
    torch = sys.modules.get("torch")
    found: Any = torch
    for name in names:
        found = getattr(found, name, None)
    return found is not None and isinstance(value, found)


def _parts(value: Any) -> Any:
    """What a value is made of; None for one that says itself what it equals."""
    if hasattr(type(value), "get_ctor_args_and_kwargs"):
        return all_arguments(type(value), *value.get_ctor_args_and_kwargs())
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords, vars(value)
    if inspect.isfunction(value):
        return _of_function(value)
    if inspect.ismethod(value):
        return value.__func__, value.__self__
    if isinstance(value, types.CellType):
        return [value.cell_contents] if value != types.CellType() else []
    if _is_torch(value, "jit", "ScriptModule"):
        return str(value.inlined_graph), value.state_dict()
    equality: Any = type(value).__eq__
    if equality is not object.__eq__ or isinstance(value, (type, types.ModuleType)) or type(value) is object:
        return None
    return _fields(value) if type(value).__flags__ & _WRITTEN_IN_PYTHON else None


def _fields(value: Any) -> Any:
    """The attributes of an object, and what it would be made of again where that is known to no attribute."""
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare]
    slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
    if not slots and not hasattr(value, "__dict__"):
        return _made_again(value)
    own = {name: getattr(value, name, _NOWHERE) for name in slots}
    for name, attribute in getattr(value, "__dict__", {}).items():
        hooks = "hooks" in name and isinstance(attribute, dict)  # by numbers that are counted up in the whole program
        own[name] = list(attribute.values()) if hooks and _is_torch(value, "nn", "Module") else attribute
    return own


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    hidden = cls.__name__.lstrip("_")
    private = [name.startswith("__") and not name.endswith("__") for name in names]
    names = [f"_{hidden}{name}" if own else name for name, own in zip(names, private)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _made_again(value: Any) -> Any:
    try:
        made = value.__reduce_ex__(2)
    except Exception:  # nothing that can be copied
        return [id(value)]
    return made if isinstance(made, tuple) else [id(value)]


# -- functions -------------------------------------------------------------------------------------


def _of_function(function: Any) -> tuple[Any, ...]:
    """What a function computes, wherever it was written."""
    code = function.__code__
    scope = function.__globals__
    built_in = scope.get("__builtins__", {})
    built_in = built_in if isinstance(built_in, dict) else vars(built_in)
    names = {name: scope.get(name, built_in.get(name, _NOWHERE)) for name in sorted(_globals(code))}
    held = list(function.__closure__ or ())
    kept = function.__defaults__, function.__kwdefaults__, vars(function)
    return _of_code(code, function.__doc__), names, held, *kept


def _of_code(code: types.CodeType, doc: Any = None) -> tuple[Any, ...]:
    constants = [one for one in code.co_consts if doc is None or one != doc]
    kinds = [type(one) for one in constants]  # 2 and 2.0 make other columns of integers
    nested = [_of_code(one) if inspect.iscode(one) else one for one in constants]
    called = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _KINDS_OF_FUNCTION
    handlers = getattr(code, "co_exceptiontable", b"")  # Python 3.11 and later
    return code.co_code, code.co_names, kinds, nested, called, handlers


def _globals(code: types.CodeType) -> set[str]:
    """Names that code, or code in it, looks up where it was written."""
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_globals(one) for one in code.co_consts if inspect.iscode(one)))
