"""The config of evaluation: that of the training, with what `evaluation_config` overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .other_libraries import setting_advice
from .settings import Problems, check_section, setting_names

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

__all__ = ["EVALUATED", "evaluation_config", "note_overrides"]

EVALUATED = ("environment", "env_runners")
"""What evaluation can do otherwise than the training."""


def note_overrides(
    overrides: Mapping[str, Any],
    config: Any,
    problems: Problems,
    *,
    path: str = "evaluation.evaluation_config",
    sections: tuple[str, ...] = EVALUATED,
) -> None:
    """Note names that cannot be overridden, and values that they cannot have.

    Args:
        overrides: setting -> value.
        config: the config, or its class.
        problems: where to note them.
        path: of the overrides.
        sections: whose settings can be overridden.
    """
    places = config.places()
    known = {name: section for section in sections for name in setting_names(config.sections[section])}
    for name, value in overrides.items():
        where = f"{path}.{name}".removeprefix(".")
        if name in known:
            found = Problems()
            check_section(known[name], config.sections[known[name]], {name: value}, found, places)
            for _, text in found.found:
                problems.add(where, text)
        elif name in places:
            problems.add(where, f"belongs to {places[name]}; here are settings of {' and '.join(sections)}")
        else:
            problems.add(where, f"unknown setting; {setting_advice(str(name), known)}")


def evaluation_config(config: AlgorithmConfig) -> AlgorithmConfig:
    """What evaluation runs with: greedy actions unless told otherwise, and at most one environment per episode.

    `env_config` is merged into that of the training; every other setting replaces the training's. With
    "vector_entry_point" the number of environments is left as it is: what makes them may always make as many.

    Args:
        config: the training's.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=64)
        >>> own = evaluation_config(config.evaluation(evaluation_duration=5))
        >>> own.num_envs_per_env_runner, own.explore
        (5, False)
    """
    places = config.places()
    settings: dict[str, Any] = {"explore": False, **config.evaluation_config}
    if "env_config" in settings:
        settings["env_config"] = {**config.env_config, **settings["env_config"]}
    mode = settings.get("gym_env_vectorize_mode", config.gym_env_vectorize_mode)
    if config.evaluation_duration_unit == "episodes" and mode != "vector_entry_point":
        wanted = settings.get("num_envs_per_env_runner", config.num_envs_per_env_runner)
        settings["num_envs_per_env_runner"] = min(wanted, config.evaluation_duration)
    parts: dict[str, dict[str, Any]] = {section: {} for section in EVALUATED}
    for name, value in settings.items():
        parts[places[name]][name] = value
    own = config.copy().change("evaluation_config", parts)
    own._in_evaluation = True
    return own
