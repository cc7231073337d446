"""The types of settings: what a value may be, and what is said about one that is not."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from epibatch.core.devices import device_name
from epibatch.core.errors import nearest

from .agent_mapping import AgentMapping
from .policy_spec import policies_of, settings_of

__all__ = [
    "AgentsToModules",
    "AutoresetMode",
    "CallbackClasses",
    "CallbackFunctions",
    "Coefficient",
    "Count",
    "Device",
    "Environment",
    "FragmentLength",
    "Fraction",
    "Integer",
    "LOGGER_NAMES",
    "Loggers",
    "ModuleConfig",
    "ModuleSpec",
    "Number",
    "Policies",
    "PoliciesToTrain",
    "Positive",
    "Space",
    "Switch",
    "VectorizeMode",
    "Views",
    "Wrappers",
]

LOGGER_NAMES = ("jsonl", "csv", "tensorboard")
"""Loggers that a config can name."""


def _python_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _enum_value(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _autoreset_name(value: Any) -> Any:
    """Gymnasium's AutoresetMode by the name that files use."""
    return value.name.lower() if isinstance(value, gym.vector.AutoresetMode) else value


def _wrappers(value: Any) -> Any:
    from ..env_runner.env_wrappers import wrapper_problem

    problems = [f"[{i}] {problem}" for i, problem in enumerate(map(wrapper_problem, value)) if problem]
    if problems:
        raise ValueError("; ".join(problems))
    return value


def _callback(value: Any, kind: str) -> Any:
    from ..env_runner.listeners import callback_problem

    problem = callback_problem(value, kind)
    if problem:
        raise ValueError(problem)
    return value


def _fragment_length(value: Any) -> Any:
    value = _python_scalar(value)
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError("expected a positive integer or 'auto'")


def _environment(value: Any) -> Any:
    if isinstance(value, (gym.Env, gym.vector.VectorEnv)):
        raise ValueError("expected an environment's name, class or factory, so that several can be made")
    if value is None or (isinstance(value, str) and value) or callable(value):
        return value
    raise ValueError("expected an environment's name, its class, or a function of env_config")


def _space(value: Any) -> Any:
    if value is None or isinstance(value, gym.Space):
        return value
    raise ValueError("expected a gymnasium Space")


def _module_spec(value: Any) -> Any:
    if value is None or callable(getattr(value, "build", None)):
        return value
    raise ValueError("expected an RLModuleSpec")


def _agents_to_modules(value: Any) -> Any:
    if isinstance(value, Mapping):
        return AgentMapping(value)
    if value is None or callable(value):
        return value
    raise ValueError("expected a function (agent_id, episode, **kwargs) -> module id, or a table of agents or patterns")


def _policies(value: Any) -> Any:
    return None if value is None else policies_of(value)


def _policies_to_train(value: Any) -> Any:
    if value is None or callable(value):
        return value
    ids = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
    if not isinstance(ids, (list, tuple)) or not all(isinstance(each, str) for each in ids):
        raise ValueError("expected module ids, or a function (module_id, batch) -> bool")
    return list(ids)


def _views(value: Any) -> Any:
    from ..connectors.views.view import as_views

    return as_views({} if value is None else value, "view_requirements")


def _logger_list(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise ValueError("expected a list such as [jsonl, csv]")
    for logger in value:
        if isinstance(logger, str) and logger not in LOGGER_NAMES:
            raise ValueError(
                f"expected names of loggers or objects with a method log(results); {nearest(logger, LOGGER_NAMES)}"
            )
        if isinstance(logger, type) or not (isinstance(logger, str) or callable(getattr(logger, "log", None))):
            raise ValueError("expected names of loggers or objects with a method log(results)")
    if any(logger in value[:i] for i, logger in enumerate(value)):
        raise ValueError("expected each logger once")
    return list(value)


Integer = Annotated[int, BeforeValidator(_python_scalar), Field(lt=2**63)]
Positive = Annotated[Integer, Field(ge=1)]
Count = Annotated[Integer, Field(ge=0)]
Number = Annotated[float, BeforeValidator(_python_scalar)]
Coefficient = Annotated[Number, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Switch = Annotated[bool, BeforeValidator(_python_scalar)]
ModuleConfig = Annotated[dict[str, Any], BeforeValidator(settings_of)]
AutoresetMode = Annotated[Literal["next_step", "same_step", "disabled"] | None, BeforeValidator(_autoreset_name)]
VectorizeMode = Annotated[Literal["sync", "async", "vector_entry_point"], BeforeValidator(_enum_value)]
Environment = Annotated[Any, AfterValidator(_environment)]
Wrappers = Annotated[list[Any], AfterValidator(_wrappers)]
Space = Annotated[Any, AfterValidator(_space)]
CallbackClasses = Annotated[Any, AfterValidator(partial(_callback, kind="class"))]
CallbackFunctions = Annotated[Any, AfterValidator(partial(_callback, kind="function"))]
FragmentLength = Annotated[Any, AfterValidator(_fragment_length)]
ModuleSpec = Annotated[Any, AfterValidator(_module_spec)]
Device = Annotated[Any, AfterValidator(device_name)]
AgentsToModules = Annotated[Any, AfterValidator(_agents_to_modules)]
Policies = Annotated[Any, AfterValidator(_policies)]
PoliciesToTrain = Annotated[Any, AfterValidator(_policies_to_train)]
Views = Annotated[Any, AfterValidator(_views)]
Loggers = Annotated[list[Any], BeforeValidator(_logger_list)]
