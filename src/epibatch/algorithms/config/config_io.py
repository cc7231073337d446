"""Configs as nested dicts and as YAML text, and changes to them from the command line (`--set training.lr=1e-3`)."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.tokens import (
    FlowMappingEndToken,
    FlowMappingStartToken,
    FlowSequenceEndToken,
    FlowSequenceStartToken,
)

from epibatch.core.errors import ConfigError, EpibatchError
from epibatch.core.files import read_file
from epibatch.core.registry import piece_to_dict, plain_data
from epibatch.core.settings import ErrorList, Place, SettingsModel, path_text
from epibatch.core.space_dicts import space_to_dict

from ...offline.episode_dataset import EpisodeDataset
from ...offline.multi_agent_dataset import MultiAgentDataset
from .multi_agent import AgentMapping
from .pipelines import PIPELINES

if TYPE_CHECKING:
    from .settings import AlgorithmSettings

_MOST_NODES = 50_000
_MOST_BYTES = 4 * 2**20
_DEEPEST = 200
_OPENING = (FlowSequenceStartToken, FlowMappingStartToken)
_CLOSING = (FlowSequenceEndToken, FlowMappingEndToken)


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


_LONG: dict[type, Callable[[Any], Any]] = {np.longdouble: float, np.clongdouble: complex}  # item() returns them


class _Representer(SafeRepresenter):
    """Writes 5e-05 as 5.0e-05, which readers of YAML 1.1 take for a number too, and NumPy's values as Python's."""

    def represent_float(self, data: Any) -> ScalarNode:
        """Write a float."""
        node = super().represent_float(data)
        node.value = node.value if "." in node.value else node.value.replace("e", ".0e")
        return node

    def represent_numpy(self, data: np.generic) -> Node:
        """Write a NumPy scalar."""
        convert = _LONG.get(type(data), np.generic.item)
        node: Node = self.represent_data(convert(data))
        return node


_Representer.add_representer(float, _Representer.represent_float)
_Representer.add_multi_representer(np.generic, _Representer.represent_numpy)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer, yaml.Representer = _Composer, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    return yaml


def yaml_name(source: str | Path) -> str:
    """Return the name of a YAML source in messages: its path, or that it is text."""
    return str(source) if _is_path(source) else "YAML text"


def _is_path(source: str | Path) -> bool:
    return isinstance(source, Path) or ("\n" not in source and source.strip().endswith((".yaml", ".yml")))


def parse_yaml(text: str, where: str) -> Any:
    """The data in a text of YAML 1.2.

    Args:
        text: The YAML.
        where: What the text is, for messages.

    Raises:
        ConfigError: it is no YAML.

    Examples:
        >>> parse_yaml("[3e-4, relu, off]", "an example")
        [0.0003, 'relu', 'off']
    """
    return _parsed(text, where)[0]


def _parsed(text: str, where: str) -> tuple[Any, Node | None]:
    _check_depth(text, where)
    yaml = _yaml()
    try:
        node = yaml.compose(text)
        return None if node is None else yaml.constructor.construct_document(node), node
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


def _check_depth(text: str, where: str) -> None:
    """Refuse brackets in very many levels, for which the parser takes a time that grows with their square."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    depth = 0
    with suppress(YAMLError):  # the parser explains it
        for token in _yaml().scan(text):
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > _DEEPEST:
                where += f", line {token.start_mark.line + 1}"
                found, do = "more open brackets", "nest values less deeply"
                raise ConfigError(where, expected=f"YAML of at most {_DEEPEST} levels", found=found, do=do)


def to_yaml_text(data: Mapping[str, Any]) -> str:
    """YAML with the keys in the order they are given."""
    text = StringIO()
    _yaml().dump(dict(data), text)
    return text.getvalue()


# ---------------------------------------------------------------------------------------- documents


@dataclass(frozen=True)
class ConfigDocument:
    """The data of a config, and where it stands in a text.

    Args:
        where: What it was read from, for messages.
        data: Nested dicts.
        node: The YAML that the data was read from.
        original: The data as it was read, if changes were made since.
    """

    where: str
    data: Any
    node: Node | None = None
    original: Any = None

    def sections(self, errors: ErrorList) -> dict[Any, Any]:
        """Section -> its settings; the pipelines, which stand beside the sections in files, are among them.

        Args:
            errors: Where to add pipelines that are no lists.

        Raises:
            ConfigError: the data is no mapping.
        """
        if not isinstance(self.data, Mapping):
            raise ConfigError(
                self.where,
                expected="sections such as environment and training",
                found="nothing" if self.data is None else f"{type(self.data).__name__} {self.data!r}",
                do="write a mapping, for example `environment: {env: CartPole-v1}`",
            )
        sections = {key: value for key, value in self.data.items() if key not in PIPELINES and value is not None}
        for name in PIPELINES.keys() & self.data.keys():
            hook, value = PIPELINES[name], self.data[name]
            if value is not None and not isinstance(value, (list, tuple)):
                form = "[{piece: frame_stacking, num_frames: 4}]"
                errors.add(name, f"expected a list such as {form}, found {value!r}")
            elif isinstance(sections.get(hook.section, {}), Mapping):
                sections[hook.section] = {**sections.get(hook.section, {}), hook.setting: value}
        return sections

    def add_missing(self, algorithm: str, offline: bool, errors: ErrorList) -> None:
        """Add what `epibatch train` needs and the file does not give: what to learn from."""
        if "algorithm" not in self.data:
            errors.add("algorithm", f"missing; add the line `algorithm: {algorithm}`")
        sections = [self.data.get(section) or {} for section in ("environment", "offline_data", "env_runners")]
        if not all(isinstance(section, Mapping) for section in sections):
            return
        environment, recorded, runners = sections
        if recorded.get("input", recorded.get("input_")) is not None:
            return
        if offline:
            errors.add(
                "offline_data.input", "missing; add the line `offline_data: {input: FOLDER}`, of recorded episodes"
            )
        elif environment.get("env") is None and runners.get("env_runner_cls") is None:
            errors.add("environment.env", "missing; add the line `environment: {env: CartPole-v1}`")

    def shown(self, place: Place) -> str:
        """A setting's path in the document, with line and column if it stands in a text."""
        for name, hook in PIPELINES.items():
            if place[:2] == (hook.section, hook.setting) and name in self.data:
                place = (name, *place[2:])
        mark = self._mark(place)
        return path_text(place) + (f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else "")

    def _mark(self, place: Place) -> Any:
        """Return where the value at a place begins in the text; None if it is not there, or was changed."""
        node, data, original = self.node, self.data, self.data if self.original is None else self.original
        for key in place:
            try:
                data, original = data[key], original[key]
            except (LookupError, TypeError):
                return None
            if isinstance(node, SequenceNode):
                node = node.value[key]
            elif isinstance(node, MappingNode):
                node = next((value for name, value in node.value if name.value == str(key)), None)
        return None if node is None or data != original else node.start_mark


def read_document(source: str | Path, prefix: str = "") -> ConfigDocument:
    """Read the data in a YAML file or text, with its lines.

    Args:
        source: A path; or a string, which is a path if it is one line that ends in .yaml or .yml, else the text.
        prefix: Text before its name in messages.

    Raises:
        ConfigError: the file is missing or is no YAML; the message has line and column.
    """
    name, text = yaml_name(source), source
    if _is_path(source):
        try:
            text = read_file(Path(os.path.realpath(source)), _MOST_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
            raise ConfigError(name, expected="a readable YAML file", found=str(error), do="check the path") from error
    data, node = _parsed(str(text), name)
    return ConfigDocument(prefix + name, data, node)


# ------------------------------------------------------------------------------------------ changes


def changed_document(cls: type[Any], document: ConfigDocument, changes: Sequence[str]) -> ConfigDocument:
    """A document with some values changed, see `changed`."""
    if not changes:
        return document
    where = " ".join([document.where, *(f"--set {change}" for change in changes)])
    return replace(document, where=where, data=changed(cls, document.data, changes), original=document.data)


def changed(cls: type[Any], data: Any, changes: Iterable[str]) -> Any:
    """The data of a config file with some values changed or added; the last change of a value wins.

    Args:
        cls: The config class, whose settings are known.
        data: What the file holds; not modified.
        changes: `path=value` each. A path is a section and a setting (`training.lr`), further keys below it
            (`environment.env_config.map_name`), or a pipeline, the number of an entry and a keyword
            (`env_to_module.0.num_frames`). A setting's name alone (`lr`) and `learner.lr` mean the setting
            wherever it stands. The value is read as YAML.

    Raises:
        ConfigError: paths that lead nowhere and values that are no YAML, all of them in one message.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> changed(PPOConfig, {"training": {"lr": 0.1, "gamma": 1.0}}, ["training.lr=1e-3", "seed=4"])
        {'training': {'lr': 0.001, 'gamma': 1.0}, 'debugging': {'seed': 4}}
    """
    if not isinstance(data, Mapping):
        return data
    errors, sections = ErrorList(), cls.model.sections()
    result = {key: _first_spellings(sections.get(key), value) for key, value in copy.deepcopy(dict(data)).items()}
    for change in changes:
        path, equals, text = (part.strip() for part in change.partition("="))
        try:
            if not equals or not path or not text:
                raise ConfigError("expected path=value, for example training.lr=1e-3; for no value write null")
            _set_value(result, _keys(cls, path.split(".")), parse_yaml(text, f"the value of {path}"))
        except ConfigError as error:
            errors.add(path or change, str(error))
    errors.raise_if_any("--set")
    return result


def _keys(cls: type[Any], keys: list[str]) -> list[str]:
    """The keys in the file's structure, with the setting's section and first spelling."""
    sections, section_of = cls.model.sections(), cls.model.section_of()
    if keys[0] == "learner" and len(keys) > 1 and section_of.get(keys[1]) in ("training", "learners"):
        keys = keys[1:]
    if keys[0] in section_of and keys[0] not in sections:
        keys = [section_of[keys[0]], *keys]
    if keys[0] in sections and len(keys) > 1:
        keys[1] = sections[keys[0]].first_spelling(keys[1])
    return keys


def _first_spellings(model: type[SettingsModel] | None, values: Any) -> Any:
    """A section of a file with the first spelling of every setting, unless two spellings of one are given."""
    if model is None or not isinstance(values, dict):
        return values
    first = {model.first_spelling(name): value for name, value in values.items()}
    return first if len(first) == len(values) else values


def _set_value(data: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set the value that keys lead to, making the mappings on the way."""
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


# ------------------------------------------------------------------------------------------- writing


def config_schema(settings: type[AlgorithmSettings]) -> dict[str, Any]:
    """The JSON schema of config files, by which editors complete and check them.

    Args:
        settings: The model of an algorithm's settings.
    """
    schema = settings.model_json_schema()
    sections = {name: schema["$defs"][model.__name__]["properties"] for name, model in settings.sections().items()}
    for hook in PIPELINES.values():
        schema["properties"][hook.name] = sections[hook.section][hook.setting]
    for name, model in settings.sections().items():
        for spelling in model.spellings():
            sections[name].setdefault(spelling, sections[name][model.first_spelling(spelling)])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def config_to_dict(settings: AlgorithmSettings, where: str) -> dict[str, Any]:
    """A config's settings as plain data.

    Args:
        settings: Of all sections.
        where: What they are, for messages.

    Raises:
        ConfigError: something is not plain data; everything that is not is named.
    """
    errors = ErrorList()
    data = settings_data(settings, errors)
    errors.raise_if_any(where)
    return data


def settings_data(
    settings: AlgorithmSettings, errors: ErrorList, pieces: Mapping[str, list[Any]] | None = None
) -> dict[str, Any]:
    """The settings that are plain data; the others are added to the errors.

    Args:
        settings: Of all sections.
        errors: Where to add what is code.
        pieces: For a checkpoint, which describes modules too: the pieces that the config's functions made, by
            pipeline. Without them functions and specs of modules are code.
    """

    def data_of(value: Any, *place: str) -> Any:
        try:
            if place[0] == "environment" and isinstance(value, gym.Space):
                return space_to_dict(value)
            if isinstance(value, type) and place[-1] == "env_runner_cls" and value.__module__.startswith("epibatch."):
                return f"{value.__module__}:{value.__qualname__}"
            described = pieces is not None and place[-1] == "rl_module_spec" and hasattr(value, "to_dict")
            return _spec_data(value) if described else plain_data(value)
        except TypeError as error:
            errors.add(place, f"{str(error).removeprefix('a ')} is code, not data")
        except EpibatchError as error:
            errors.add(place, str(error))
        return None

    data: dict[str, Any] = {"algorithm": settings.algorithm}
    hooks = {hook.setting for hook in PIPELINES.values()}
    for section, model in type(settings).sections().items():
        values: dict[str, Any] = {}
        for name, value in getattr(settings, section).values().items():
            if name in hooks or (value is None and model.default_of(name) is None):
                continue
            if isinstance(value, AgentMapping):
                value = value.table
            if name == "view_requirements":
                value = {column: view.to_dict() for column, view in value.items()}
            if name == "policies":
                policies = {module_id: spec.given() for module_id, spec in value.items()}
                values[name] = {
                    module_id: {key: data_of(part, section, name, module_id, key) for key, part in policy.items()}
                    for module_id, policy in policies.items()
                }
                if not any(policies.values()):
                    values[name] = list(policies)  # ids alone if there is no more to say
            elif name == "input_" and isinstance(value, (EpisodeDataset, MultiAgentDataset)) and value.path is not None:
                values[name] = str(value.path)
            elif name == "input_":
                text = f"{len(value)} episodes in memory, which no file of settings stores; write them with "
                text += "epibatch.offline.write_episodes, and give the path"
                errors.add((section, name), text)
            else:
                values[name] = data_of(value, section, name)
        if values:
            data[section] = values
    for name in PIPELINES:
        specs = _pipeline_data(settings, name, (pieces or {}).get(name), errors)
        if specs:
            data[name] = specs
    return data


def _spec_data(spec: Any) -> dict[str, Any]:
    """A spec of modules as data, without what it loads: the checkpoint has the states."""
    data = dict(spec.to_dict())
    for part in (data, *data.get("rl_module_specs", {}).values()):
        for name in ("load_state_path", "modules_to_load"):
            part.pop(name, None)
    return data


def _pipeline_data(settings: AlgorithmSettings, name: str, pieces: list[Any] | None, errors: ErrorList) -> list[Any]:
    hook = PIPELINES[name]
    value = getattr(getattr(settings, hook.section), hook.setting)
    if isinstance(value, (list, tuple)):
        return [dict(spec) if isinstance(spec, Mapping) else spec for spec in value]
    if value is not None and pieces is None:
        errors.add(name, f"{hook.setting} is a function, not data; give a list of piece specs instead")
    specs = []
    for index, piece in enumerate(pieces or []):
        try:
            specs.append(piece_to_dict(piece))
        except EpibatchError as error:
            errors.add((name, index), str(error))
    return specs
