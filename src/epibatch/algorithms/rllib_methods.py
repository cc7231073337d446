"""What to say about a config's methods and settings that are not there, those of RLlib's configs first."""

from __future__ import annotations

from collections.abc import Iterable

from epibatch.core.errors import nearest

__all__ = ["RLLIB_METHODS", "unknown_attribute"]

RLLIB_METHODS: dict[str, str] = {
    "api_stack": "leave it out: there is one stack, with RLModules and connectors",
    "build": "use build_algo()",
    "experimental": "leave it out: nothing is experimental here",
    "exploration": "use env_runners(explore=...)",
    "fault_tolerance": "leave it out: there are no other processes that could fail",
    "framework": "leave it out: networks are always PyTorch's",
    "get_default_rl_module_spec": "use get_rl_module_spec()",
    "offline_data": "not there yet; episodes come from environments",
    "resources": "leave it out: one process samples and learns",
    "rollouts": "use env_runners(...)",
}
"""Methods of RLlib's configs that are not here -> what to do instead."""

_INNER = {
    "all_settings",
    "change",
    "check",
    "check_together",
    "extend_learner_connector",
    "given",
    "overrides_for",
    "places",
}
"""Public methods that configs themselves, algorithms and checkpoints call."""


def unknown_attribute(cls: type, name: str, settings: Iterable[str]) -> str:
    """The message for a method or setting that a config class does not have.

    Args:
        cls: the config class.
        name: what was asked for.
        settings: the names of its settings.

    Example:
        >>> class Config:
        ...     def training(self): ...
        >>> print(unknown_attribute(Config, "rollouts", ["lr"]))
        Config has no method 'rollouts': use env_runners(...). Methods: training
    """
    public = [method for method in dir(cls) if not method.startswith("_") and callable(getattr(cls, method))]
    methods = [method for method in public if method not in _INNER]
    listed = ", ".join(methods)
    if name in RLLIB_METHODS:
        return f"{cls.__name__} has no method {name!r}: {RLLIB_METHODS[name]}. Methods: {listed}"
    known = sorted(settings)
    hint = nearest(name, [*methods, *known]).partition("Known: ")[0]
    return f"{cls.__name__} has no setting or method {name!r}; {hint}Settings: {', '.join(known)}. Methods: {listed}"
