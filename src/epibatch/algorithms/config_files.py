"""Configs as nested dicts and as YAML."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from epibatch.core.errors import ConfigError, EpibatchError, explain, nearest
from epibatch.core.registry import piece_to_dict, plain_data, registered_envs

from .module_specs import check_model_config
from .pipelines import PIPELINES, check_hook
from .settings import Problems, default_of, setting_names

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

__all__ = ["config_from_dict", "config_to_dict", "parse_yaml", "read_yaml", "to_yaml_text", "yaml_name"]

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


# ------------------------------------------------------------------------------------------- reading


def config_from_dict(
    cls: type[ConfigT], data: Any, *, allow_imports: bool = False, where: str | None = None, for_command: bool = False
) -> ConfigT:
    """See `AlgorithmConfig.from_dict`.

    Args:
        cls: the config class.
        data: nested dicts.
        allow_imports: whether pieces and environments may be named by import path.
        where: what the data came from, for messages.
        for_command: whether `algorithm` and an environment must be given.
    """
    where = where or f"{cls.__name__} from data"
    if not isinstance(data, Mapping):
        found = "nothing" if data is None else f"{type(data).__name__} {data!r}"
        raise ConfigError(
            explain(
                where,
                expected="sections such as environment and training",
                found=found,
                do="write a mapping, for example `environment: {env: CartPole-v1}`",
            )
        )
    problems = Problems()
    config = cls(allow_imports=allow_imports)
    parts: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        if key == "algorithm":
            if value != cls.algorithm:
                problems.add("algorithm", _unknown_algorithm(value, cls.algorithm))
        elif key in PIPELINES:
            _read_pipeline(key, value, parts, problems, allow_imports)
        elif key in cls.sections:
            _read_section(cls, key, value, parts, problems)
        else:
            problems.add(str(key), _unknown_section(cls, str(key)))
    if for_command:
        _check_complete(cls, data, parts, problems)
    _check_env(parts.get("environment", {}).get("env"), problems, allow_imports)
    checked = {section: config.check(section, settings, problems)[0] for section, settings in parts.items()}
    config.check_together(checked, problems)
    _check_network(parts.get("rl_module", {}), problems)
    problems.raise_if_any(where)
    return config.change("from_dict", parts)


def _unknown_algorithm(value: Any, known: str) -> str:
    hint = nearest(value, [known]).partition("Known: ")[0] if isinstance(value, str) else ""
    return f"expected {known!r}, found {value!r}" + (f"; {hint.strip()}" if hint else "")


def _check_complete(cls: type[Any], data: Mapping[str, Any], parts: Mapping[str, Any], problems: Problems) -> None:
    """Note what `epibatch train` needs and the file does not give."""
    if "algorithm" not in data:
        problems.add("algorithm", f"missing; add the line `algorithm: {cls.algorithm}`")
    if parts.get("environment", {}).get("env") is None and isinstance(data.get("environment") or {}, Mapping):
        problems.add("environment.env", "missing; add the line `environment: {env: CartPole-v1}`")


def _read_section(cls: type[Any], name: str, value: Any, parts: dict[str, dict[str, Any]], problems: Problems) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        known = ", ".join(setting_names(cls.sections[name]))
        problems.add(name, f"expected a mapping with some of {known}; found {type(value).__name__} {value!r}")
        return
    parts.setdefault(name, {}).update(value)


def _read_pipeline(
    name: str, value: Any, parts: dict[str, dict[str, Any]], problems: Problems, allow_imports: bool
) -> None:
    hook = PIPELINES[name]
    if value is not None and not isinstance(value, (list, tuple)):
        problems.add(name, f"expected a list such as [{{piece: frame_stacking, num_frames: 4}}], found {value!r}")
        return
    found = Problems()
    check_hook(hook, value, name, found, allow_imports=allow_imports)
    if found:
        problems.extend(found)
    else:
        parts.setdefault(hook.section, {})[hook.setting] = value


def _unknown_section(cls: type[Any], name: str) -> str:
    place = cls.places().get(name)
    if place:
        return f"no section; this setting belongs to {place}"
    return f"no such section; {nearest(name, ['algorithm', *cls.sections, *PIPELINES])}"


def _check_env(env: Any, problems: Problems, allow_imports: bool) -> None:
    if isinstance(env, str) and ":" in env and env not in registered_envs() and not allow_imports:
        problems.add(
            "environment.env",
            f"{env!r} imports the module before the colon, which runs code; allow it with allow_imports=True "
            "(on the command line: --allow-imports), or import the module and register its environments first",
        )


def _check_network(settings: Mapping[str, Any], problems: Problems) -> None:
    model_config = settings.get("model_config", settings.get("model_config_dict"))
    if isinstance(model_config, Mapping) and settings.get("rl_module_spec") is None:
        check_model_config(model_config, problems)


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses repeated keys and reads 3e-4 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_EXPONENT = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


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
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                explain(where, expected="a readable YAML file", found=str(error), do="check the path")
            ) from error
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
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found = ", ".join(part for part in (_context(error), error.problem) if part)
        snippet = mark.get_snippet(indent=4) if mark is not None else None
        if mark is not None:
            where += f", line {mark.line + 1}, column {mark.column + 1}"
        found += f"\n{snippet}" if snippet else ""
        raise ConfigError(explain(where, expected="YAML", found=found, do="correct it there")) from error
    except yaml.YAMLError as error:
        found = str(error).replace('"<unicode string>", ', "")
        raise ConfigError(explain(where, expected="YAML", found=found, do="correct it there")) from error


def _context(error: yaml.MarkedYAMLError) -> str:
    begun = error.context_mark
    where = f" that begins in line {begun.line + 1}, column {begun.column + 1}" if begun is not None else ""
    return f"{error.context}{where}" if error.context else ""


# ------------------------------------------------------------------------------------------- writing


def config_to_dict(config: AlgorithmConfig, pieces: Mapping[str, list[Any]] | None = None) -> dict[str, Any]:
    """The config as plain data.

    Args:
        config: the config.
        pieces: pieces that the config's functions made, by pipeline; without them a function is an error.

    Raises:
        ConfigError: something is not plain data; everything that is not is named.
    """
    problems = Problems()
    data: dict[str, Any] = {"algorithm": config.algorithm}
    for section, model in config.sections.items():
        values = {}
        for name, value in config.all_settings(section).items():
            if value is None and default_of(model, name) is None:
                continue
            try:
                values[name] = plain_data(value)
            except TypeError as error:
                problems.add(f"{section}.{name}", f"{str(error).removeprefix('a ')} is code, not data")
        if values:
            data[section] = values
    for name in PIPELINES:
        specs = _pipeline_data(config, name, (pieces or {}).get(name), problems)
        if specs:
            data[name] = specs
    problems.raise_if_any(f"{type(config).__name__} as data")
    return data


def _pipeline_data(config: AlgorithmConfig, name: str, pieces: list[Any] | None, problems: Problems) -> list[Any]:
    hook = PIPELINES[name]
    value = getattr(config, hook.setting)
    if isinstance(value, (list, tuple)):
        return [dict(spec) if isinstance(spec, Mapping) else spec for spec in value]
    if value is not None and pieces is None:
        problems.add(name, f"{hook.setting} is a function, not data; give a list of piece specs instead")
    specs = []
    for index, piece in enumerate(pieces or []):
        try:
            specs.append(piece_to_dict(piece))
        except EpibatchError as error:
            problems.add(f"{name}[{index}]", str(error))
    return specs


def to_yaml_text(data: Mapping[str, Any]) -> str:
    """YAML with the keys in the order they are given."""
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)
