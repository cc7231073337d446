"""An algorithm's checkpoint: its state, and the config as data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError, nearest
from epibatch.core.registry import plain_data
from epibatch.core.restoring import restoring

from .config_io import config_to_dict
from .pipelines import PIPELINES
from .saved_checkpoints import read_newest

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

__all__ = [
    "CONFIGS",
    "config_class",
    "config_data",
    "config_from_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

CONFIGS: dict[str, str] = {"ppo": "epibatch.algorithms.ppo:PPOConfig"}
"""The name of an algorithm -> its config class."""


def config_class(algorithm: str) -> type[AlgorithmConfig]:
    """The config class of an algorithm's name.

    Raises:
        ConfigError: no algorithm has this name.
    """
    if algorithm not in CONFIGS:
        raise ConfigError(
            "algorithm", expected="a known algorithm", found=repr(algorithm), do=nearest(str(algorithm), CONFIGS)
        )
    module, _, name = CONFIGS[algorithm].partition(":")
    found: type[AlgorithmConfig] = getattr(importlib.import_module(module), name)
    return found


def config_data(
    config: AlgorithmConfig, env: Any, spaces: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """The config as data, or None and the reasons.

    The pieces that functions in the config make are expressed as data too, so a config with
    `lambda env, spaces, device: FrameStacking(num_frames=4)` needs no function to be restored.
    """
    arguments = {
        "env_to_module": (env, spaces, None),
        "module_to_env": (env, spaces),
        "learner": spaces["__episodes__"],
    }
    pieces = {name: config.user_pieces(name, arguments[name], env) for name in PIPELINES}
    try:
        return config_to_dict(config.settings, f"{type(config).__name__} as data", pieces), None
    except ConfigError as error:
        return None, str(error)


def config_from_checkpoint(path: Path, description: Mapping[str, Any], *, allow_imports: bool) -> AlgorithmConfig:
    """Rebuild the config that a checkpoint describes.

    Raises:
        CheckpointError: the config is not all data, or a piece in it cannot be found.
    """
    if description["config"] is None:
        raise CheckpointError(
            f"checkpoint {path}",
            expected="the original config, because part of it is code that no checkpoint stores",
            found=str(description["not_data"]).replace("\n", "\n            "),
            do="pass it: Algorithm.from_checkpoint(path, config=config), or "
            "config.build_algo() and then restore_from_path(path)",
        )
    try:
        with restoring(f"checkpoint {path}", "config"):
            cls = config_class(str(description["algorithm"]))
            return cls.from_dict(plain_data(description["config"]), allow_imports=allow_imports)
    except EpibatchError as error:
        raise CheckpointError(
            f"checkpoint {path}",
            expected="a config that can be rebuilt here",
            found=str(error).replace("\n", "\n            "),
            do="register what is missing, allow imports, or pass the original config",
        ) from error


def write_checkpoint(path: Path, description: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint folder; one that is there already stays loadable until the new one is complete.

    Args:
        path: the folder.
        description: `algorithm`, `config` and `not_data`.
        state: nested dicts and lists of arrays, numbers and strings.

    Raises:
        CheckpointError: the folder holds something else, or the state something that is no data.
    """
    return save_state(path, {"description": dict(description), "state": dict(state)})


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The description and the state of a checkpoint.

    Args:
        path: the checkpoint's folder, or that of a run, whose newest whole one is read.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it is not an algorithm's.
    """
    content = read_newest(path, load_state)
    description = content.get("description") if isinstance(content, dict) else None
    parts = {"algorithm", "config", "not_data"}
    if not isinstance(description, dict) or not parts <= description.keys() or "state" not in content:
        raise CheckpointError(
            f"checkpoint {path}",
            expected="the checkpoint of an algorithm",
            found="the state of something else",
            do="give the folder that Algorithm.save_to_path returned",
        )
    return description, content["state"]
