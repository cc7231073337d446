"""A config's methods, their signatures and docstrings, made of the models of its sections."""

from __future__ import annotations

import inspect
import keyword
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from epibatch.core.settings import SettingsModel

from .settings import AlgorithmSettings

METHODS = {"stopping" if section == "stop" else section: section for section in AlgorithmSettings.sections()}
"""Method of a config -> the section that it sets."""

_POSITIONAL = ("env", "callbacks_class")
_ALSO = {
    "training": {
        "model": ("rl_module", "model_config"),
        "learner_connector": ("learners", "learner_connector"),
        "add_default_connectors_to_learner_pipeline": ("learners", "add_default_connectors_to_learner_pipeline"),
    },
    "rl_module": {"algorithm_config_overrides_per_module": ("multi_agent", "algorithm_config_overrides_per_module")},
}
"""Method -> keywords that it takes of other sections, and adds to what is there: keyword -> section and setting."""

_RAISES = "ConfigError: unknown settings or values that do not fit, all of them in one message."


def _keywords(settings: type[AlgorithmSettings], method: str) -> Iterator[tuple[str, FieldInfo]]:
    sections = settings.sections()
    model = sections[METHODS[method]]
    names = [*model.names(), *(name for name in model.spellings() if name not in model.names())]
    for name in names:
        if name.isidentifier() and not keyword.iskeyword(name):
            yield name, model.model_fields[model.spellings()[name]]
    for name, (section, setting) in _ALSO.get(method, {}).items():
        yield name, sections[section].model_fields[sections[section].spellings()[setting]]


def signature_of(settings: type[AlgorithmSettings], method: str) -> Signature:
    """The signature of a method: a keyword for every setting of its section.

    Args:
        settings: Of the config.
        method: One of `METHODS`.
    """
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for name, field in _keywords(settings, method):
        kind = Parameter.POSITIONAL_OR_KEYWORD if name in _POSITIONAL else Parameter.KEYWORD_ONLY
        default = ... if field.default_factory is not None else field.default
        parameters.append(Parameter(name, kind, default=default, annotation=type_text(field.annotation)))
    return Signature(parameters)


def section_method(settings: type[AlgorithmSettings], method: str) -> Callable[..., Any]:
    """A method of a config that changes a section, with a typed keyword and an explanation for every setting.

    Args:
        settings: Of the config.
        method: One of `METHODS`.
    """
    section, also = METHODS[method], _ALSO.get(method, {})
    model = settings.sections()[section]
    positional = [name for name in _POSITIONAL if name in model.names()]

    def set_section(self: Any, *first: Any, **keywords: Any) -> Any:
        if len(first) > len(positional):
            raise TypeError(f"{method}() takes settings by keyword, and {len(first)} were given without one")
        twice = [name for name in positional[: len(first)] if name in keywords]
        if twice:
            raise TypeError(f"{method}() got multiple values for {', '.join(twice)}")
        parts: dict[str, dict[str, Any]] = {section: dict(zip(positional, first), **keywords)}
        for name in [name for name in also if name in keywords]:
            owner, setting = also[name]
            value = parts[section].pop(name)
            earlier = getattr(self, setting) if isinstance(value, Mapping) else None
            parts.setdefault(owner, {})[setting] = {**earlier, **value} if isinstance(earlier, Mapping) else value
        return self.change(method, parts)

    arguments = [_argument(name, field.description or "") for name, field in _keywords(settings, method)]
    summary = inspect.cleandoc(model.__doc__ or "")
    set_section.__name__ = set_section.__qualname__ = method
    set_section.__doc__ = "\n".join([summary, "", "Args:", *arguments, "", "Raises:", f"    {_RAISES}", ""])
    set_section.is_generated = True  # type: ignore[attr-defined]
    set_section.__signature__ = signature_of(settings, method)  # type: ignore[attr-defined]
    return set_section


def _argument(name: str, description: str) -> str:
    """A line of a docstring's arguments, wrapped so that it fits a stub."""
    return textwrap.fill(f"{name}: {description}", 108, initial_indent=" " * 4, subsequent_indent=" " * 8)


def type_text(annotation: Any) -> str:
    """A type as it is written in a stub, without what pydantic checks beside it.

    Examples:
        >>> type_text(Annotated[int, "at least 1"] | None)
        'int | None'
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(args[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_text, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if annotation in (None, type(None), ...):
        return "..." if annotation is ... else "None"
    if isinstance(annotation, list):  # the arguments of a Callable
        return f"[{', '.join(map(type_text, annotation))}]"
    if isinstance(origin or annotation, type) and issubclass(origin or annotation, SettingsModel):
        return "dict[str, Any]"
    name = (origin or annotation).__name__
    name = "gym.Space" if name == "Space" else name
    return f"{name}[{', '.join(map(type_text, args))}]" if args else name


def describe_settings(settings: type[AlgorithmSettings], word: str = "") -> list[str]:
    """Return a line for each setting: `section.name: type = default  what it sets`, from the models.

    Args:
        settings: The model of an algorithm's settings.
        word: Part of the name, the section or the description; "" for all settings.

    Examples:
        >>> from epibatch.algorithms import PPOConfig
        >>> describe_settings(PPOConfig.model, "num_epochs")
        ['training.num_epochs: int = 30  Passes through each batch.']
    """
    lines = []
    for section, model in settings.sections().items():
        for name in model.names():
            field, default = model.model_fields[model.spellings()[name]], model.default_of(name)
            what, value = " ".join((field.description or "").split()), getattr(default, "__name__", repr(default))
            lines.append(f"{section}.{name}: {type_text(field.annotation)} = {value}  {what}".rstrip())
    return [line for line in lines if word.lower() in line.lower()]
