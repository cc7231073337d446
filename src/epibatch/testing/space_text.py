"""Spaces written as text, for command lines and files; nothing in the text is run."""

from __future__ import annotations

import ast
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError, nearest

_SPACES = ("Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Text", "Tuple")
_NUMBERS = {"inf": np.inf}


def space_from_text(text: str) -> gym.Space[Any]:
    """Return a Gymnasium space from the text of its constructor call.

    Args:
        text: Such as `Box(-1, 1, (3,))`, with numbers, strings, lists, tuples, dicts, `inf` and further spaces as
            arguments; a type is its name, `uint8` or `"uint8"`.

    Raises:
        SpaceError: the text is no such call, or the space does not accept these arguments.

    Examples:
        >>> space_from_text("Box(0, 255, (8, 8, 1), uint8)")
        Box(0, 255, (8, 8, 1), uint8)
        >>> space_from_text("Dict(a=Discrete(3), b=Box(-inf, inf, (2,)))")["a"]
        Discrete(3)
    """
    try:
        space = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, _Unreadable) as error:
        raise _wrong(text, str(error).splitlines()[0] if str(error) else "no Python expression") from None
    except Exception as error:
        raise _wrong(text, f"{type(error).__name__}: {error}") from None
    if not isinstance(space, gym.Space):
        raise _wrong(text, f"{type(space).__name__} {space!r}")
    return space


class _Unreadable(Exception):
    """Raised for text that is not allowed in a space."""


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name not in _SPACES:
            raise _Unreadable(f"{name}(...). {nearest(name, _SPACES)}")
        arguments = [_value(argument) for argument in node.args]
        keywords = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
        return getattr(gym.spaces, name)(*arguments, **keywords)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        parts = [_value(item) for item in node.elts]
        return tuple(parts) if isinstance(node, ast.Tuple) else parts
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values) if key is not None}
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = ast.unparse(node).rpartition(".")[2]
        if name in _NUMBERS:
            return _NUMBERS[name]
        if name in np.sctypeDict:
            return np.dtype(name).type
    raise _Unreadable(ast.unparse(node))


def _wrong(text: str, found: str) -> SpaceError:
    return SpaceError(
        f"space {text!r}",
        expected=f"a call of {', '.join(_SPACES)}",
        found=found,
        do="write it as Python would, such as Box(-1, 1, (3,)) or Dict(a=Discrete(2), b=Box(0, 1, (4,)))",
    )
