"""YAML files: read strictly, so that nothing means something else than it looks like, and written."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from epibatch.core.errors import ConfigError
from epibatch.core.files import read_file

__all__ = ["parse_yaml", "read_yaml", "to_yaml_text", "yaml_name"]


class _Loader(yaml.SafeLoader):
    """Safe YAML without the traps of YAML 1.1.

    Repeated keys are refused, and so are words and numbers that YAML 1.1 reads as something else than they look
    like: `no` and `on` as switches, 010 as eight, 1:30 as ninety. 3e-4 is a number.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refused(key_node, "a key that is a list or a mapping")
            if key in seen:
                raise _refused(key_node, f"the key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_bool(self, node: Any) -> bool:
        """`true` or `false`."""
        word = self.construct_scalar(node)
        if word.lower() not in ("true", "false"):
            text = "a switch in YAML 1.1 and a word in YAML 1.2; write true or false, or put it in quotes"
            raise _refused(node, f"{word!r} is {text}")
        return bool(super().construct_yaml_bool(node))

    def construct_yaml_int(self, node: Any) -> int:
        """A decimal, or 0x or 0b in front."""
        self._check_number(node, _INTEGER)
        return int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: Any) -> float:
        """A decimal, with or without exponent, .inf or .nan."""
        self._check_number(node, _FLOAT)
        return float(super().construct_yaml_float(node))

    def _check_number(self, node: Any, form: re.Pattern[str]) -> None:
        text = self.construct_scalar(node)
        if not form.fullmatch(text):
            value = super().construct_yaml_int(node) if form is _INTEGER else super().construct_yaml_float(node)
            raise _refused(node, f"{text} would be read as {value}; write that, or put it in quotes")

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One value, of a limited number."""
        self.count = getattr(self, "count", 0) + 1
        node = super().compose_node(parent, index)
        if self.count > _MOST_NODES:
            raise _refused(node, f"more than {_MOST_NODES:,} values")
        return node


class _Dumper(yaml.SafeDumper):
    """Puts text into quotes that the loader would take for a number."""


def _refused(node: Any, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_MOST_NODES = 50_000
_MOST_BYTES = 4 * 2**20
_DIGITS = r"\d+(_\d+)*"
_INTEGER = re.compile(r"[-+]?(0|[1-9]\d*(_\d+)*|0x[\da-fA-F]+|0b[01]+)")
_FLOAT = re.compile(
    rf"[-+]?({_DIGITS}(\.({_DIGITS})?)?|\.{_DIGITS})([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_EXPONENT = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
for _kind in ("bool", "int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", getattr(_Loader, f"construct_yaml_{_kind}"))


def read_yaml(source: str | Path) -> Any:
    """The data in a YAML file or text.

    Args:
        source: a path; or a string, which is a path if it is one line that ends in .yaml or .yml, else the text.

    Raises:
        ConfigError: the file is missing or is no YAML; the message has line and column.
    """
    where = yaml_name(source)
    text = source
    if _is_path(source):
        try:
            text = read_file(Path(os.path.realpath(source)), _MOST_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
            raise ConfigError(where, expected="a readable YAML file", found=str(error), do="check the path") from error
    return parse_yaml(str(text), where)


def yaml_name(source: str | Path) -> str:
    """What messages call a YAML source: its path, or that it is text."""
    return str(source) if _is_path(source) else "YAML text"


def _is_path(source: str | Path) -> bool:
    return isinstance(source, Path) or ("\n" not in source and source.strip().endswith((".yaml", ".yml")))


def parse_yaml(text: str, where: str) -> Any:
    """The data in a YAML text.

    Args:
        text: the YAML.
        where: what the text is, for messages.

    Raises:
        ConfigError: it is no YAML.

    Example:
        >>> parse_yaml("[3e-4, relu]", "an example")
        [0.0003, 'relu']
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _refuse_aliases(node)
            return None if node is None else loader.construct_object(node, deep=True)  # deep: no list holds itself
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found = ", ".join(part for part in (_context(error), error.problem) if part)
        snippet = mark.get_snippet(indent=4) if mark is not None else None
        if mark is not None:
            where += f", line {mark.line + 1}, column {mark.column + 1}"
        found += f"\n{snippet}" if snippet else ""
        raise ConfigError(where, expected="YAML", found=found, do="correct it there") from error
    except yaml.YAMLError as error:
        found = str(error).replace('"<unicode string>", ', "")
        raise ConfigError(where, expected="YAML", found=found, do="correct it there") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # a tag on what does not fit it
        found = f"something that cannot be read ({type(error).__name__}: {error})"
        raise ConfigError(where, expected="YAML", found=found, do="correct it") from error


def _refuse_aliases(node: Any) -> None:
    """Refuse aliases that make a short text stand for very many values: what is read is copied and written again."""
    sizes: dict[int, int] = {}
    waiting = [] if node is None else [node]
    while waiting:
        each = waiting[-1]
        parts = [] if isinstance(each, yaml.ScalarNode) else each.value
        below = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        unknown = [part for part in below if id(part) not in sizes]
        if unknown and id(each) not in sizes:
            sizes[id(each)] = 0  # a node that holds itself: the loader refuses it
            waiting += unknown
            continue
        waiting.pop()
        sizes[id(each)] = 1 + sum(sizes.get(id(part), 1) for part in below)
        if sizes[id(each)] > _MOST_NODES:
            raise _refused(each, f"aliases (*name) that stand for more than {_MOST_NODES:,} values in all")


def _context(error: yaml.MarkedYAMLError) -> str:
    begun = error.context_mark
    where = f" that begins in line {begun.line + 1}, column {begun.column + 1}" if begun is not None else ""
    return f"{error.context}{where}" if error.context else ""


def to_yaml_text(data: Mapping[str, Any]) -> str:
    """YAML with the keys in the order they are given."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
