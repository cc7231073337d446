"""Autoreset modes of vector environments, and resetting ended environments by hand."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, EnvironmentContractError, RunnerError, nearest
from epibatch.core.structs import flatten

__all__ = ["AUTORESET_MODES", "autoreset_mode", "gymnasium_mode", "reset_done"]

AUTORESET_MODES = ("next_step", "same_step", "disabled")

Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


def gymnasium_mode(name: Any) -> gym.vector.AutoresetMode:
    """Return Gymnasium's mode for one of this package's names, or for Gymnasium's own ("NextStep").

    Raises:
        ConfigError: there is no such mode.

    Example:
        >>> gymnasium_mode("same_step").value
        'SameStep'
    """
    mode = name
    if isinstance(name, str) and name.lower() in AUTORESET_MODES:
        mode = gym.vector.AutoresetMode[name.upper()]
    try:
        return gym.vector.AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            "autoreset mode",
            expected=f"one of {AUTORESET_MODES}",
            found=repr(name),
            do=nearest(str(name), AUTORESET_MODES),
        ) from error


def autoreset_mode(env: Any) -> str:
    """Return the autoreset mode of a vector environment: "next_step", "same_step" or "disabled".

    Without a mode in its metadata it is "next_step", as with Gymnasium's own wrappers.

    Raises:
        ConfigError: its metadata name a mode that does not exist.
    """
    metadata = getattr(env, "metadata", None) or {}
    return gymnasium_mode(metadata.get("autoreset_mode", gym.vector.AutoresetMode.NEXT_STEP)).name.lower()


def reset_done(env: Any, done: Flags, observations: Any = None) -> tuple[Any, dict[str, Any]]:
    """Reset the ended environments of a vector environment that does not do so itself.

    Args:
        env: The vector environment.
        done: Which ones ended: bool, [N].
        observations: Copies of the step's; those of running environments must be unchanged afterwards.

    Returns:
        The observations of all environments, and the infos of the resets.

    Raises:
        RunnerError: the reset fails.
        EnvironmentContractError: it reset running environments too.
    """
    try:
        fresh, infos = env.reset(options={"reset_mask": np.array(done)})
    except Exception as error:
        raise RunnerError(
            "resetting ended environments",
            expected="a vector environment whose reset takes options={'reset_mask': mask}",
            found=f"{type(error).__name__}: {error}",
            do="use autoreset mode NEXT_STEP or SAME_STEP",
        ) from error
    if observations is not None and not done.all():
        _check_others_unchanged(observations, fresh, ~done)
    return fresh, infos


def _check_others_unchanged(before: Any, after: Any, running: Flags) -> None:
    one, other = flatten(before)[0], flatten(after)[0]
    for old, new in zip(one, other):
        was, now = np.asarray(old)[running], np.asarray(new)[running]
        numbers = was.dtype.kind in "fc" and now.dtype.kind in "fc"
        if not np.array_equal(was, now, equal_nan=numbers):
            raise EnvironmentContractError(
                "resetting ended environments",
                expected="that options={'reset_mask': mask} resets only those, and gives the others' "
                "observations as they were",
                found="other observations of running environments: they were reset as well",
                do="heed the mask in the vector environment's reset, or use autoreset mode NEXT_STEP or SAME_STEP",
            )
