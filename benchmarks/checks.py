"""Checks that two sides made the same tensors, and that sampled steps follow the environment's laws."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.row import OURS

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
KEPT, PUSH = np.float32(0.9), np.array([0.1, -0.2, 0.3, -0.4], np.float32)
DRAWN = ("actions", "actions_for_env", "action_logp")


class DifferentValuesError(ValueError):
    """Two sides of a row do not give the same: their times cannot be compared."""


def flat(columns: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested columns as arrays, under slash-joined names."""
    leaves: dict[str, Any] = {}
    for name, value in columns.items():
        if isinstance(value, Mapping):
            leaves.update(flat(value, f"{prefix}{name}/"))
        else:
            leaves[prefix + name] = np.asarray(value)
    return leaves


def check_same(
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    whose: str,
    but: Collection[str] = (),
    close: Mapping[str, float] | None = None,
    rows: Any = None,
) -> None:
    """Compare columns: names, shapes, types and values.

    Args:
        ours: epibatch's columns, nested as they may be.
        other: The other side's.
        whose: Name of the other side, for the message.
        but: Columns that are compared by other means.
        close: Column to the largest difference that is allowed; all other columns are equal bit for bit.
        rows: Compare the values of these rows only.

    Raises:
        DifferentValuesError: they differ.
    """
    left, right = flat(ours), flat(other)
    faults = [f"only one side has {name}" for name in sorted(left.keys() ^ right.keys()) if name not in but]
    for name in (name for name in left if name in right and name not in but):
        faults += _faults(name, left[name], right[name], (close or {}).get(name, 0.0), rows)
    if faults:
        raise DifferentValuesError(f"epibatch and {whose}: " + "; ".join(faults))


def _faults(name: str, left: Any, right: Any, tolerance: float, rows: Any) -> Iterable[str]:
    if left.shape != right.shape or left.dtype != right.dtype:
        yield f"{name} is {left.dtype} {list(left.shape)}, and {right.dtype} {list(right.shape)}"
        return
    if rows is not None:
        left, right = left[rows], right[rows]
    if tolerance:
        worst = float(np.abs(left.astype(np.float64) - right).max(initial=0.0))
        if not worst <= tolerance:
            yield f"{name} differs by up to {worst:.3g}"
    elif not np.array_equal(left, right):
        yield f"{name} has {int((left != right).sum())} other values"


def check_all_same(outputs: Mapping[str, Any], **how: Any) -> None:
    """Compare every side with epibatch, by `check_same`."""
    for name, output in outputs.items():
        if name != OURS:
            check_same(outputs[OURS], output, whose=name, **how)


def check_acting(logits: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Check a vector step: all is the same but the drawn actions, whose log-probabilities are those of the networks.

    Args:
        logits: What each module gave, a tensor [rows, 2].
        outputs: Of each side `to_module` and `to_env`, each by module.

    Raises:
        DifferentValuesError: it is otherwise.
    """
    expected = {module: column.double().log_softmax(-1).numpy() for module, column in logits.items()}
    for name, output in outputs.items():
        check_same(outputs[OURS]["to_module"], output["to_module"], whose=name)
        for module, step in output["to_env"].items():
            check_same(outputs[OURS]["to_env"][module], step, whose=name, but=DRAWN)
            actions, rows = step["actions"].astype(np.int64), expected[module]
            if actions.shape != (len(rows),) or not np.array_equal(actions, step["actions_for_env"]):
                raise DifferentValuesError(f"{name}, {module}: actions {actions.shape}, or others for the environment")
            if not np.abs(rows[np.arange(len(rows)), actions] - step["action_logp"]).max() < 1e-5:
                raise DifferentValuesError(f"{name}, {module}: log-probabilities of other actions")


# ------------------------------------------------------------------------------------- laws of motion


def next_cartpole(observations: Any, actions: Any) -> Any:
    """Return where the cart-pole system is one Euler step later (Barto, Sutton and Anderson 1983).

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


def next_points(states: Any, actions: Any) -> Any:
    """Return where points are a step later: action 1 pushes them, 0 pushes them the other way.

    Args:
        states: float32 [points, 4].
        actions: [points].
    """
    return KEPT * states + np.where(np.asarray(actions) == 1, 1, -1).astype(np.float32)[:, None] * PUSH


def check_sampled(sampled: Mapping[str, Any], whose: str, at_least: int, law: Any = next_cartpole) -> None:
    """Check that every sampled step follows the law of motion, and that both actions were taken.

    Args:
        sampled: `obs`, `actions` and `next_obs`, in flat rows.
        whose: The side, for messages.
        at_least: Steps that there have to be.
        law: Takes observations and actions, returns the next observations.

    Raises:
        DifferentValuesError: it is otherwise.
    """
    steps, drawn = len(sampled["actions"]), set(np.unique(sampled["actions"]).tolist())
    if steps < at_least or drawn != {0, 1}:
        raise DifferentValuesError(f"{whose}: {steps} steps with actions {drawn}")
    off = np.abs(law(sampled["obs"], sampled["actions"]) - sampled["next_obs"]).max()
    if not off < 1e-5:
        raise DifferentValuesError(f"{whose}: observations are {off} away from where they have to be")
