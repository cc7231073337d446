"""Configs as YAML text, and changes to them from the command line (`--set training.lr=1e-3`)."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from epibatch.core.errors import ConfigError
from epibatch.core.files import read_file

from .pipelines import PIPELINES
from .settings import ALIASES, Problems

__all__ = ["changed", "parse_yaml", "read_yaml", "to_yaml_text", "yaml_name"]

_MOST_NODES = 50_000
_MOST_BYTES = 4 * 2**20


# --------------------------------------------------------------------------------------------- YAML


class _Composer(Composer):
    """Refuses a short text that stands for very many values: what is read is copied and written again."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one value, and count the values in it, those of aliases again."""
        mark = self.parser.peek_event().start_mark
        node = super().compose_node(parent, index)
        parts = [] if isinstance(node, ScalarNode) else node.value
        inner = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in inner)
        if max(self._sizes[id(node)], len(self._sizes)) > _MOST_NODES:
            raise ComposerError(
                None, None, f"more than {_MOST_NODES:,} values, those of aliases (*name) included", mark
            )
        return node

    def return_alias(self, a: Any) -> Any:
        """Return what an alias names; it must be complete."""
        if id(a) not in self._sizes:
            raise ComposerError("in a value", a.start_mark, "found an alias of the value itself", None)
        return a


class _Representer(SafeRepresenter):
    """Writes 5e-05 as 5.0e-05, which readers of YAML 1.1 take for a number too."""

    def represent_float(self, data: Any) -> ScalarNode:
        """Write a float."""
        node = super().represent_float(data)
        node.value = node.value if "." in node.value else node.value.replace("e", ".0e")
        return node


_Representer.add_representer(float, _Representer.represent_float)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer, yaml.Representer = _Composer, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    return yaml


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
    """The data in a text of YAML 1.2.

    Args:
        text: the YAML.
        where: what the text is, for messages.

    Raises:
        ConfigError: it is no YAML.

    Example:
        >>> parse_yaml("[3e-4, relu, off]", "an example")
        [0.0003, 'relu', 'off']
    """
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found = ", ".join(part for part in (error.context, error.problem) if part)
        if mark is not None:
            where += f", line {mark.line + 1}, column {mark.column + 1}"
            found += f"\n{mark.get_snippet()}"
        raise ConfigError(where, expected="YAML", found=found, do="correct it there") from error
    except YAMLError as error:
        found = str(error).replace('"<unicode string>", ', "")
        raise ConfigError(where, expected="YAML", found=found, do="correct it there") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # a tag on what does not fit it
        found = f"something that cannot be read ({type(error).__name__}: {error})"
        raise ConfigError(where, expected="YAML", found=found, do="correct it") from error


def to_yaml_text(data: Mapping[str, Any]) -> str:
    """YAML with the keys in the order they are given."""
    text = StringIO()
    _yaml().dump(dict(data), text)
    return text.getvalue()


# ------------------------------------------------------------------------------------------ changes


def changed(cls: type[Any], data: Any, changes: Iterable[str]) -> Any:
    """The data of a config file with some values changed or added; the last change of a value wins.

    Args:
        cls: the config class, whose settings are known.
        data: what the file holds; not modified.
        changes: `path=value` each. A path is a section and a setting (`training.lr`), further keys below it
            (`environment.env_config.map_name`), or a pipeline, the number of an entry and a keyword
            (`env_to_module.0.num_frames`). A setting's name alone (`lr`) and `learner.lr` mean the setting
            wherever it stands. The value is read as YAML.

    Raises:
        ConfigError: paths that lead nowhere and values that are no YAML, all of them in one message.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> changed(PPOConfig, {"training": {"lr": 0.1, "gamma": 1.0}}, ["training.lr=1e-3", "seed=4"])
        {'training': {'lr': 0.001, 'gamma': 1.0}, 'debugging': {'seed': 4}}
    """
    if not isinstance(data, Mapping):
        return data
    problems = Problems()
    result = copy.deepcopy(dict(data))
    for change in changes:
        path, equals, text = (part.strip() for part in change.partition("="))
        try:
            if not equals or not path or not text:
                raise ConfigError("expected path=value, for example training.lr=1e-3; for no value write null")
            _put(result, _keys(cls, path.split(".")), parse_yaml(text, f"the value of {path}"))
        except ConfigError as error:
            problems.add(path or change, str(error))
    problems.raise_if_any("--set")
    return result


def _keys(cls: type[Any], keys: list[str]) -> list[str]:
    """The keys in the file's structure, with the setting's section and first spelling."""
    sections = {**{alias: section for section in ALIASES for alias in ALIASES[section]}, **cls.places()}
    if keys[0] == "learner" and len(keys) > 1 and sections.get(keys[1]) in ("training", "learners"):
        keys = keys[1:]
    if keys[0] in sections and keys[0] not in cls.sections:
        keys = [sections[keys[0]], *keys]
    if len(keys) > 1:
        keys[1] = ALIASES.get(keys[0], {}).get(keys[1], keys[1])
    return keys


def _put(data: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set the value that keys lead to, making the mappings on the way."""
    if isinstance(data.get(keys[0]), dict) and len(keys) > 1:
        aliases = [alias for alias, name in ALIASES.get(keys[0], {}).items() if name == keys[1]]
        for alias in aliases & data[keys[0]].keys():
            data[keys[0]][keys[1]] = data[keys[0]].pop(alias)
    place: Any = data
    for depth, name in enumerate(keys):
        last, where = depth == len(keys) - 1, ".".join(keys[:depth])
        key: Any = name
        if isinstance(place, list):
            key = _index(place, name, where, may_append=last)
            place += [None] * (key == len(place))
            if isinstance(place[key], str) and not last:
                place[key] = {"piece": place[key]}
        elif not isinstance(place, dict):
            raise ConfigError(f"{where} is {place!r}, in which nothing has a name")
        elif not last and place.get(key) is None:
            place[key] = [] if depth == 0 and key in PIPELINES else {}
        if last:
            place[key] = value
        place = place[key]


def _index(items: list[Any], key: str, where: str, *, may_append: bool) -> int:
    if key.isdecimal() and int(key) < len(items) + may_append:
        return int(key)
    count = f"it has {len(items)}" if items else "it has none"
    raise ConfigError(f"{where} has no entry {key!r}: {count}, counted from 0; write {where}.0.num_frames, say")
