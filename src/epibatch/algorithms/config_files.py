"""Configs as nested dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from epibatch.core.errors import ConfigError, EpibatchError, nearest
from epibatch.core.piece_specs import piece_to_dict, plain_data
from epibatch.core.registry import registered_envs

from .agent_mapping import AgentMapping
from .module_specs import check_model_config
from .pipelines import PIPELINES, check_hook
from .policy_spec import PolicySpec
from .settings import Problems, default_of, setting_names

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

__all__ = ["config_from_dict", "config_to_dict"]

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
            where,
            expected="sections such as environment and training",
            found=found,
            do="write a mapping, for example `environment: {env: CartPole-v1}`",
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
    _check_env(parts.get("environment"), "environment", problems, allow_imports)
    evaluated = parts.get("evaluation", {}).get("evaluation_config")
    _check_env(evaluated, "evaluation.evaluation_config", problems, allow_imports)
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


def _check_env(settings: Any, section: str, problems: Problems, allow_imports: bool) -> None:
    """Note environments that import a module: `module:Env-v0`, also where Gymnasium's wrapper of old ones gets it."""
    if not isinstance(settings, Mapping):
        return
    config = settings.get("env_config")
    inner = config.get("env_id") if isinstance(config, Mapping) else None
    for name, env in {"env": settings.get("env"), "env_config.env_id": inner}.items():
        if isinstance(env, str) and ":" in env and env not in registered_envs() and not allow_imports:
            problems.add(
                f"{section}.{name}",
                f"{env!r} imports the module before the colon, which runs code; allow it with allow_imports=True "
                "(on the command line: --allow-imports), or import the module and register its environments first",
            )


def _check_network(settings: Mapping[str, Any], problems: Problems) -> None:
    model_config = settings.get("model_config", settings.get("model_config_dict"))
    if isinstance(model_config, Mapping) and settings.get("rl_module_spec") is None:
        check_model_config(model_config, problems)


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
            if isinstance(value, AgentMapping):
                value = value.table
            if name == "view_requirements":
                value = {each: view.to_dict() for each, view in value.items()}
            if name == "policies":
                values[name] = _policies_data(value, f"{section}.{name}", problems)
            else:
                values[name] = _data_of(value, f"{section}.{name}", problems)
        if values:
            data[section] = values
    for name in PIPELINES:
        specs = _pipeline_data(config, name, (pieces or {}).get(name), problems)
        if specs:
            data[name] = specs
    problems.raise_if_any(f"{type(config).__name__} as data")
    return data


def _data_of(value: Any, path: str, problems: Problems) -> Any:
    try:
        return plain_data(value)
    except TypeError as error:
        problems.add(path, f"{str(error).removeprefix('a ')} is code, not data")
        return None


def _policies_data(policies: Mapping[str, PolicySpec], path: str, problems: Problems) -> Any:
    """Ids alone if there is no more to say; else what each is given."""
    given = {each: spec.given() for each, spec in policies.items()}
    if not any(given.values()):
        return list(given)
    return {
        each: {name: _data_of(value, f"{path}.{each}.{name}", problems) for name, value in own.items()}
        for each, own in given.items()
    }


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
