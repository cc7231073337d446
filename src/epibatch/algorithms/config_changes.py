"""Changes to a config's data before it is read: `training.lr=1e-3`, as `epibatch train --set` takes them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from epibatch.core.errors import ConfigError, nearest

from .other_libraries import other_setting
from .pipelines import PIPELINES
from .settings import ALIASES, Problems, setting_names
from .yaml_files import parse_yaml

__all__ = ["changed"]

_LEARNER_SECTIONS = ("training", "learners")


def changed(cls: type[Any], data: Any, changes: Iterable[str]) -> Any:
    """The data of a config file with some values changed or added.

    Args:
        cls: the config class, whose settings are known.
        data: what the file holds; not modified.
        changes: `path=value` each. A path is a section and a setting (`training.lr`), further keys below it
            (`environment.env_config.map_name`), or a pipeline, the number of an entry and a keyword
            (`env_to_module.0.num_frames`). A setting's name alone (`lr`) and `learner.lr` mean the setting
            wherever it stands. The value is read as YAML.

    Raises:
        ConfigError: paths that lead nowhere, values that are no YAML, and changes of which one lies below another
            and one drops what the other gives; all of them in one message.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> changed(PPOConfig, {"training": {"lr": 0.1, "gamma": 1.0}}, ["training.lr=1e-3", "seed=4"])
        {'training': {'lr': 0.001, 'gamma': 1.0}, 'debugging': {'seed': 4}}
    """
    wanted = list(changes)
    if not wanted or not isinstance(data, Mapping):
        return data
    problems = Problems()
    result = copy.deepcopy(dict(data))
    made: list[_Change] = []
    for change in wanted:
        path, equals, text = change.partition("=")
        path = path.strip()
        try:
            if not equals or not path or not text.strip():
                raise _Unfit("expected path=value, for example training.lr=1e-3; for no value write null")
            made.append(_Change(path, _resolved(cls, path.split(".")), parse_yaml(text, f"the value of {path}")))
            _put(result, made[-1].keys, copy.deepcopy(made[-1].value))
        except _Unfit as unfit:
            problems.add(change if not equals else path, str(unfit))
        except ConfigError as error:
            problems.add(path, str(error))
    for index, later in enumerate(made):
        for earlier in made[:index]:
            if _drops(later, earlier):
                problems.add(later.path, f"drops a value that {earlier.path} gives; give it in one of them only")
    problems.raise_if_any("--set")
    return result


class _Unfit(Exception):
    """A change that cannot be made, with what to say about it."""


class _Change(NamedTuple):
    """A change: its path as given, the keys that lead there, and the value."""

    path: str
    keys: list[str]
    value: Any


_NONE = object()


def _drops(later: _Change, earlier: _Change) -> bool:
    """Whether of two changes, one below the other, the later one overwrites what the earlier one gave."""
    if len(later.keys) == len(earlier.keys):
        return False  # the same setting twice, or two settings: the last one counts
    upper, lower = sorted((later, earlier), key=lambda change: len(change.keys))
    depth = len(upper.keys)
    if lower.keys[:depth] != upper.keys:
        return False
    value = upper.value
    for at, key in enumerate(lower.keys[depth:], start=depth):
        value = _part(value, key, ALIASES.get(lower.keys[0], {}) if at == 1 else {})
    return bool(value != lower.value and (upper is later or value is not _NONE))


def _part(value: Any, key: str, aliases: Mapping[str, str]) -> Any:
    if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
        return value[int(key)]
    if isinstance(value, Mapping):
        return next((part for name, part in value.items() if aliases.get(name, name) == key), _NONE)
    return _NONE


def _resolved(cls: type[Any], parts: list[str]) -> list[str]:
    """The path in the file's structure, with the setting's first spelling."""
    first, rest = parts[0], parts[1:]
    places = cls.places()
    if first in ("algorithm", *cls.sections, *PIPELINES) and not rest:
        return parts
    if first == "learner" and not rest[0].isdecimal():
        parts = next(([section, *rest] for section in _LEARNER_SECTIONS if rest[0] in _names(cls, section)), parts)
    elif first not in cls.sections and first not in PIPELINES:
        section = next((section for section in cls.sections if first in _names(cls, section)), None)
        parts = parts if section is None else [section, *parts]
    section, name = parts[0], parts[1] if len(parts) > 1 else ""
    if section in PIPELINES:
        if name.isdecimal():
            return parts
        short = [f"learner.{setting}" for place in _LEARNER_SECTIONS for setting in _names(cls, place)]
        hint = f"; {nearest('.'.join(parts), short)}" if section == "learner" else ""
        raise _Unfit(f"the pipeline {section} is a list: number its entries, {section}.0.num_frames, say{hint}")
    if section not in cls.sections or name not in _names(cls, section):
        known = [f"{place}.{setting}" for place in cls.sections for setting in _names(cls, place)]
        hint = f"it is {places[name]}.{name}" if name in places else other_setting(name or section, places)
        hint = hint or nearest(".".join(parts), [*known, *PIPELINES])
        raise _Unfit(f"no such setting; {hint}")
    return [section, ALIASES.get(section, {}).get(name, name), *parts[2:]]


def _names(cls: type[Any], section: str) -> list[str]:
    return [*setting_names(cls.sections[section]), *ALIASES.get(section, {})]


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at a path, making the mappings on the way."""
    if path[0] in data and len(path) > 1:
        for alias, name in ALIASES.get(path[0], {}).items():
            if name == path[1] and isinstance(data[path[0]], dict) and alias in data[path[0]]:
                data[path[0]][name] = data[path[0]].pop(alias)
    place: Any = data
    for depth, key in enumerate(path):
        last = depth == len(path) - 1
        where = ".".join(path[:depth])
        if isinstance(place, list):
            index = _index(place, key, where, may_append=last)
            if last:
                place[index:] = [value, *place[index + 1 :]]
            elif isinstance(place[index], str):
                place[index] = {"piece": place[index]}
            key = index  # type: ignore[assignment]
        elif not isinstance(place, dict):
            raise _Unfit(f"{where} is {place!r}, in which nothing has a name")
        elif last:
            place[key] = value
        elif place.get(key) is None:
            place[key] = [] if depth == 0 and key in PIPELINES else {}
        place = place[key]


def _index(items: list[Any], key: str, where: str, *, may_append: bool) -> int:
    if key.isdecimal() and int(key) < len(items) + may_append:
        return int(key)
    count = f"it has {len(items)}" if items else "it has none"
    raise _Unfit(f"{where} has no entry {key}: {count}, counted from 0")
