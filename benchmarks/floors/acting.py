"""A vector step around networks: their input from N observations, actions from their outputs, for one agent or many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.floors.learner import FRAMES
from benchmarks.workloads import Array, Order

Sample = Callable[[Any], "tuple[Array, Array]"]


def by_inversion(generator: np.random.Generator) -> Sample:
    """Return what draws actions in NumPy, with log-probabilities, from the inverse of the distribution function."""

    def sample(logits: Any) -> tuple[Array, Array]:
        below = logits.numpy()
        below = below - np.maximum.reduce(below, 1, keepdims=True)
        sums = np.add.accumulate(np.exp(below), 1)
        total = sums[:, -1]
        drawn = generator.random(len(sums), dtype=np.float32) * total
        actions = np.add.reduce(drawn[:, None] > sums[:, :-1], 1)
        return actions, below[np.arange(len(actions)), actions] - np.log(total)

    return sample


def by_usual_inversion(generator: np.random.Generator) -> Sample:
    """Return the same as it is usually written."""

    def sample(logits: Any) -> tuple[Any, Any]:
        given = logits.numpy()
        top = given.max(1, keepdims=True)
        sums = np.exp(given - top).cumsum(1)
        total = sums[:, -1]
        drawn = generator.random(len(sums), dtype=np.float32) * total
        actions = (drawn[:, None] > sums[:, :-1]).sum(1)
        return actions, (np.take_along_axis(given, actions[:, None], 1) - top)[:, 0] - np.log(total)

    return sample


def by_multinomial(logits: Any) -> tuple[Array, Array]:
    """Draw actions, with log-probabilities, in torch."""
    log_probs = torch.log_softmax(logits, -1)
    actions = torch.multinomial(log_probs.exp(), 1)
    return actions[:, 0].numpy(), log_probs.gather(-1, actions)[:, 0].numpy()


def stack(rows: Sequence[Array]) -> Array:
    """Stack rows as it is usually written."""
    return np.stack(rows)


def concatenate(rows: Sequence[Array]) -> Array:
    """Stack rows in a third of the time."""
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)


def stack_frames_first(frames: Sequence[Sequence[Any]]) -> Array:
    """Return stacks [N, 84, 84, 4] of the last four frames of each environment, a view with the stack's axis first."""
    rows = np.concatenate([frame for own in frames for frame in own])
    return np.moveaxis(rows.reshape(len(frames), FRAMES, *frames[0][0].shape[:-1]), 1, -1)


Step = tuple[dict[str, Any], dict[str, Any]]
"""What goes into the networks, and what the environments get."""


def step(observations: Any, logits: Any, sample: Sample) -> Step:
    """Take a step without recurrence.

    Args:
        observations: [N, ...].
        logits: What the network gave, [N, 2].
        sample: Makes actions.
    """
    actions, log_probs = sample(logits)
    to_env = {"actions": actions, "actions_for_env": actions, "action_logp": log_probs}
    to_env["action_dist_inputs"] = logits.numpy()
    return {"obs": torch.from_numpy(observations)}, to_env


def recurrent_step(
    observations: Any, states: Mapping[str, Any], logits: Any, states_out: Mapping[str, Any], sample: Sample
) -> Step:
    """Take a step with a time axis of length 1, and states that go in and come out.

    Args:
        observations: [N, ...].
        states: Name to [N, size], as the last step left them.
        logits: What the network gave, [N, 1, 2].
        states_out: What the network gave, name to [N, size].
        sample: Makes actions.
    """
    to_module, to_env = step(observations[:, None], logits[:, 0], sample)
    to_module["state_in"] = {name: torch.as_tensor(column) for name, column in states.items()}
    to_env["state_out"] = {name: column.numpy() for name, column in states_out.items()}
    return to_module, to_env


def vector_step(
    observations: Sequence[Mapping[str, Any]], logits: Mapping[str, Any], agents: Order, sample: Sample
) -> Step:
    """Take a step of several agents: rows from dicts by agent, and actions as dicts by agent.

    Args:
        observations: By agent, for each environment.
        logits: What each network gave, [rows, 2], in the order of environments and agents.
        agents: Module to its agents.
        sample: Makes actions.
    """
    to_module = {
        module: {"obs": torch.from_numpy(np.stack([rows[agent] for rows in observations for agent in names]))}
        for module, names in agents.items()
    }
    actions: list[dict[str, int]] = [{} for _ in observations]
    log_probs: list[dict[str, float]] = [{} for _ in observations]
    for module, names in agents.items():
        drawn, drawn_log_probs = (iter(column.tolist()) for column in sample(logits[module]))
        for by_agent, log_probs_by_agent in zip(actions, log_probs):
            for agent in names:
                by_agent[agent] = next(drawn)
                log_probs_by_agent[agent] = next(drawn_log_probs)
    to_env = {"actions": actions, "actions_for_env": actions, "action_logp": log_probs, "action_dist_inputs": logits}
    return to_module, to_env
