"""Facts of this process that other processes lack: registered names and spaces, and filters of warnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from epibatch.core.errors import ConfigError
from epibatch.core.registered_spaces import SpaceCodec, register_missing, registered_spaces
from epibatch.core.registry import env_creator, register, register_env, registered_envs, registered_pieces
from epibatch.core.warning_filters import set_warning_filters, warning_filters


@dataclass(frozen=True)
class Registrations:
    """Names and what they stand for, to register them in another process.

    Args:
        envs: Names given to `register_env`, with their functions.
        pieces: Names given to `register`, with their classes.
        gym_specs: The specs of Gymnasium's registry.
        spaces: Classes given to `register_space`, with their functions.
        warning_filters: The filters of warnings. "error" shows the warning there: it could be one of Ray's own.
    """

    envs: dict[str, Callable[..., Any]] = field(default_factory=dict)
    pieces: dict[str, type] = field(default_factory=dict)
    gym_specs: list[EnvSpec] = field(default_factory=list)
    spaces: dict[type, SpaceCodec] = field(default_factory=dict)
    warning_filters: list[Any] = field(default_factory=list)

    def sendable(self, is_picklable: Callable[[Any], bool]) -> Registrations:
        """Return these registrations; what cannot be pickled becomes a function that raises an error when it is used.

        Args:
            is_picklable: True if an object can be sent.
        """

        def kept(name: str, value: Any) -> Any:
            return value if is_picklable(value) else partial(_refuse, name)

        return Registrations(
            envs={name: kept(name, creator) for name, creator in self.envs.items()},
            pieces={name: cls for name, cls in self.pieces.items() if is_picklable(cls)},
            gym_specs=[
                spec if is_picklable(spec) else EnvSpec(spec.id, kept(spec.id, spec)) for spec in self.gym_specs
            ],
            spaces={kind: codec for kind, codec in self.spaces.items() if is_picklable((kind, codec))},
            warning_filters=[item for item in self.warning_filters if is_picklable(item)],
        )

    def apply(self) -> None:
        """Register in this process what it does not know by these names."""
        for name, creator in self.envs.items():
            if name not in registered_envs():
                register_env(name, creator)
        for name, cls in self.pieces.items():
            if name not in registered_pieces():
                register(name)(cls)
        for spec in self.gym_specs:
            gym.registry.setdefault(spec.id, spec)
        register_missing(self.spaces)
        if self.warning_filters:
            set_warning_filters(self.warning_filters)


def registrations() -> Registrations:
    """Return what was registered in this process.

    Examples:
        >>> from epibatch.core.registry import register_env
        >>> register_env("my_env", lambda env_config: None)
        >>> "my_env" in registrations().envs
        True
    """
    return Registrations(
        envs={name: env_creator(name) for name in registered_envs()},
        pieces=registered_pieces(),
        gym_specs=list(gym.registry.values()),
        spaces=registered_spaces(),
        warning_filters=[("default" if kind == "error" else kind, *rest) for kind, *rest in warning_filters()],
    )


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise ConfigError(
        f"environment {name!r} in another process",
        expected="a registered function or class that can be pickled",
        found="one that cannot",
        do="open files and connections inside of the function, when it is called",
    )
