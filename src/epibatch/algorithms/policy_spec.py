"""Own settings of one of several modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields
from typing import Annotated, Any

import gymnasium as gym
from pydantic import AfterValidator, BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from epibatch.core.errors import ConfigError, nearest
from epibatch.core.settings import Expected, expect, reported

__all__ = ["PolicySpec", "policies_of", "settings_of"]


def settings_of(value: Any) -> Any:
    """Settings as a dict: those of a mapping or of a dataclass such as `DefaultModelConfig`, none for None."""
    if value is None:
        return {}
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return dict(value) if isinstance(value, Mapping) else value


def _with_build(value: Any) -> Any:
    expect(value is None or callable(getattr(value, "build", None)), "an RLModuleSpec")
    return value


def _error(name: str, expected: str, value: Any) -> ConfigError:
    if not expected and name not in PolicySpec.__pydantic_fields__:  # type: ignore[attr-defined]
        names = [each.name for each in fields(PolicySpec)]
        return ConfigError("PolicySpec", expected=f"some of {', '.join(names)}", found=name, do=nearest(name, names))
    found = repr(value)
    if name == "policy_class":
        found = f"{getattr(value, '__name__', value)}, a class of RLlib's old stack"
    return ConfigError(f"PolicySpec.{name}", expected=expected, found=found, do="see PolicySpec")


Space = Annotated[gym.Space[Any] | None, Expected("a gymnasium Space")]
Settings = Annotated[Mapping[Any, Any], BeforeValidator(settings_of), Expected("a mapping of settings")]
_NO_CLASS = "None; a custom network is rl_module_spec=RLModuleSpec(module_class=...)"


@reported(_error)
@dataclass(frozen=True, config=ConfigDict(strict=True, arbitrary_types_allowed=True, extra="forbid"))
class PolicySpec:
    """Own spaces, network and settings of one of several modules; all are optional.

    Args:
        policy_class: Must stay None; custom networks are `rl_module_spec`. It exists for ported code.
        observation_space: Its observation space; default: that of its agents, after the env-to-module pieces.
        action_space: Its action space; default: that of its agents.
        config: Settings of its own, such as `{"lr": 1e-4}`.
        model_config: Settings of its network, on top of the config's.
        rl_module_spec: Its network.

    Raises:
        ConfigError: `policy_class` is given, or something is of another type.

    Examples:
        >>> PolicySpec(config={"lr": 0.01})
        PolicySpec(config={'lr': 0.01})
    """

    policy_class: Annotated[None, Expected(_NO_CLASS)] = None
    observation_space: Space = None
    action_space: Space = None
    config: Settings = field(default_factory=dict)
    model_config: Settings = field(default_factory=dict)
    rl_module_spec: Annotated[Any, AfterValidator(_with_build)] = None

    def given(self) -> dict[str, Any]:
        """Return the settings that were given, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != {}}

    def __repr__(self) -> str:
        return f"PolicySpec({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"


def policies_of(value: Any) -> dict[str, PolicySpec]:
    """A config's policies in one form.

    Args:
        value: Ids; or id -> None, PolicySpec, its fields as a mapping, an RLModuleSpec, or RLlib's four-tuple. Ids in
            a set are sorted.

    Raises:
        ConfigError: it is none of these; all that is wrong in one message.

    Examples:
        >>> policies_of({"blue", "red"}) == policies_of({"blue": None, "red": {}})
        True
    """
    if isinstance(value, str) or not isinstance(value, Collection) or not len(value):
        raise ConfigError(f"expected module ids, such as [red, blue], or a mapping of them; found {value!r}")
    ids = sorted(value, key=str) if isinstance(value, (set, frozenset)) else list(value)
    errors = [f"expected module ids of text, found {key!r}" for key in ids if not isinstance(key, str) or not key]
    errors += [f"{key} is given twice" for i, key in enumerate(ids) if key in ids[:i]]
    policies = {}
    for key in ids if not errors else ():
        try:
            policies[str(key)] = _spec_of(value[key] if isinstance(value, Mapping) else None)
        except ConfigError as error:
            errors.append(f"{key}: {error}")
    if errors:
        raise ConfigError("; ".join(errors))
    return policies


def _spec_of(value: Any) -> PolicySpec:
    if value is None or isinstance(value, PolicySpec):
        return value or PolicySpec()
    if callable(getattr(value, "build", None)):
        return PolicySpec(rl_module_spec=value)
    if isinstance(value, Mapping):
        names = [each.name for each in fields(PolicySpec)]
        unknown = [name for name in value if name not in names]
        if unknown:
            raise ConfigError("; ".join(f"unknown setting {name!r}; {nearest(str(name), names)}" for name in unknown))
        return PolicySpec(**value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 4:
        return PolicySpec(*value)
    raise ConfigError(f"expected None, a PolicySpec, a mapping of its fields or an RLModuleSpec, found {value!r}")
