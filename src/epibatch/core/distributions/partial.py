"""Distribution classes with some of their arguments fixed."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import ConfigError, SpaceError, nearest

if TYPE_CHECKING:
    from epibatch.core.distributions.distribution import Distribution

__all__ = ["partial_class"]


def partial_class(parent: type[Distribution], fixed: Mapping[str, Any]) -> type[Distribution]:
    """A subclass of `parent` with keywords of `from_logits` and `required_input_dim` fixed.

    Args:
        parent: a distribution class.
        fixed: the keywords; `space` is the space that the subclass is for.

    Raises:
        ConfigError: a keyword that neither method takes.
    """
    build = parent.from_logits.__func__  # type: ignore[attr-defined]
    measure = parent.required_input_dim
    for_build, for_measure = _taken(build, fixed), _taken(measure, fixed)
    for_measure.pop("space", None)
    _refuse_unknown(parent, fixed, {*for_build, *for_measure, "space"})

    def from_logits(cls: Any, /, logits: Any, **kwargs: Any) -> Any:
        if kwargs:
            _refuse_fixed(parent.__name__, kwargs, fixed)
        return build(cls, logits, **for_build, **kwargs)

    def required_input_dim(space: Any, **kwargs: Any) -> Any:
        if "space" in fixed and space != fixed["space"]:
            raise SpaceError(
                f"{parent.__name__}.required_input_dim of a class made for one space",
                expected=fixed["space"],
                found=space,
                do="make a class for this space: distribution_for(space)",
            )
        _refuse_fixed(parent.__name__, kwargs, fixed)
        return measure(space, **for_measure, **kwargs)

    body = {
        "__slots__": (),
        "__doc__": parent.__doc__,
        "__module__": parent.__module__,
        "from_logits": classmethod(from_logits),
        "required_input_dim": staticmethod(required_input_dim),
    }
    made: type[Distribution] = types.new_class(parent.__name__, (parent,), exec_body=lambda names: names.update(body))
    return made


def _refuse_unknown(parent: type[Distribution], fixed: Mapping[str, Any], used: set[str]) -> None:
    unknown = [key for key in fixed if key not in used]
    if unknown:
        methods = (parent.from_logits, parent.required_input_dim)
        known = {name for method in methods for name in inspect.signature(method).parameters}
        raise ConfigError(
            f"{parent.__name__}.get_partial_dist_cls",
            expected="keywords of its from_logits or required_input_dim",
            found=", ".join(unknown),
            do=nearest(unknown[0], known - {"logits"}),
        )


def _taken(function: Callable[..., Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keywords that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(fixed)
    return {key: value for key, value in fixed.items() if key in parameters}


def _refuse_fixed(name: str, kwargs: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    twice = [key for key in kwargs if key in fixed]
    if twice:
        raise ConfigError(
            f"{name} with fixed arguments",
            expected="other keywords than those that were fixed",
            found=", ".join(twice),
            do="leave them out, or make another class with get_partial_dist_cls",
        )
