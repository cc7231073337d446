"""The registry: names of pieces, pieces as data, and names of environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epibatch.core.built_in_pieces import BUILT_IN_PIECES
from epibatch.core.errors import RegistryError, UnknownNameError, nearest
from epibatch.core.piece_names import piece_class, piece_entries, piece_name, register, snake_case, unregister
from epibatch.core.piece_offers import ENTRY_POINT_GROUP, PieceEntry
from epibatch.core.piece_specs import PieceSpec, build_piece, piece_to_dict, plain_data, spec_problems

__all__ = [
    "BUILT_IN_PIECES",
    "ENTRY_POINT_GROUP",
    "PieceEntry",
    "PieceSpec",
    "build_piece",
    "env_creator",
    "piece_class",
    "piece_entries",
    "piece_name",
    "piece_to_dict",
    "plain_data",
    "register",
    "register_env",
    "registered_envs",
    "snake_case",
    "spec_problems",
    "unregister",
]

_env_creators: dict[str, Callable[..., Any]] = {}


def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Give an environment factory a name that `PPOConfig.environment` and YAML files can use.

    Args:
        name: the name; a name that exists already is replaced, so that a notebook cell can run twice.
        env_creator: called with the `env_config` dict, returns a `gymnasium.Env`.

    Raises:
        RegistryError: the name is empty or the factory is not callable.

    Example:
        >>> register_env("tiny", lambda env_config: "an env")
        >>> env_creator("tiny")({})
        'an env'
    """
    if not isinstance(name, str) or not name or not callable(env_creator):
        raise RegistryError(
            "register_env",
            expected="a name and a function of env_config that returns an environment",
            found=f"{name!r} and {type(env_creator).__name__}",
            do='call register_env("my_env", lambda env_config: MyEnv(**env_config))',
        )
    _env_creators[name] = env_creator


def env_creator(name: str) -> Callable[..., Any]:
    """The factory that was registered for an environment name.

    Raises:
        UnknownNameError: nothing was registered under this name.
    """
    if name not in _env_creators:
        raise UnknownNameError(
            f"environment {name!r}",
            expected="a name given to register_env",
            found="no such environment",
            do=nearest(str(name), _env_creators),
        )
    return _env_creators[name]


def registered_envs() -> list[str]:
    """The names given to `register_env`, sorted."""
    return sorted(_env_creators)
