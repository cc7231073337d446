"""CartPole's laws of motion, to check what was sampled without any of the code that sampled it."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.equality import DifferentValuesError

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


def next_observations(observations: Any, actions: Any) -> Any:
    """Where the cart-pole system is one Euler step later (Barto, Sutton and Anderson 1983).

    Args:
        observations: Position, speed, angle, angular speed: float, [steps, 4].
        actions: 0 pushes to the left, 1 to the right: [steps].
    """
    _, speed, angle, turning = np.asarray(observations, np.float64).T
    push = np.where(np.asarray(actions) == 1, FORCE, -FORCE)
    sine, cosine, mass = np.sin(angle), np.cos(angle), CART + POLE
    pressed = (push + POLE * HALF_LENGTH * turning**2 * sine) / mass
    turned = (GRAVITY * sine - cosine * pressed) / (HALF_LENGTH * (4 / 3 - POLE * cosine**2 / mass))
    moved = pressed - POLE * HALF_LENGTH * turned * cosine / mass
    return observations + SECONDS * np.stack([speed, moved, turning, turned], -1)


def check_dynamics(sampled: dict[str, Any], whose: str, at_least: int) -> None:
    """Every sampled step follows the laws of motion, and both actions were taken.

    Args:
        sampled: `obs`, `actions` and `next_obs`, in flat rows.
        whose: The side, for messages.
        at_least: Steps that there have to be.

    Raises:
        DifferentValuesError: it is otherwise.
    """
    steps = len(sampled["actions"])
    if steps < at_least or set(np.unique(sampled["actions"]).tolist()) != {0, 1}:
        raise DifferentValuesError(f"{whose}: {steps} steps with actions {np.unique(sampled['actions'])}")
    off = np.abs(next_observations(sampled["obs"], sampled["actions"]) - sampled["next_obs"]).max()
    if not off < 1e-5:
        raise DifferentValuesError(f"{whose}: observations are {off} away from where the pole has to be")
