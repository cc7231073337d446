"""A vector step around a network: its input from N observations, actions from its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.columns import Array

Sample = Callable[[Any], "tuple[Array, Array]"]


def by_inversion(generator: np.random.Generator) -> Sample:
    """Categorical actions and their log-probabilities in NumPy, from the inverse of the distribution function."""

    def sample(logits: Any) -> tuple[Array, Array]:
        below = logits.numpy()
        below = below - np.maximum.reduce(below, 1, keepdims=True)
        sums = np.add.accumulate(np.exp(below), 1)
        total = sums[:, -1]
        drawn = generator.random(len(sums), dtype=np.float32) * total
        actions = np.add.reduce(drawn[:, None] > sums[:, :-1], 1)
        return actions, below[np.arange(len(actions)), actions] - np.log(total)

    return sample


def by_multinomial(logits: Any) -> tuple[Array, Array]:
    """The same with torch."""
    log_probs = torch.log_softmax(logits, -1)
    actions = torch.multinomial(log_probs.exp(), 1)
    return actions[:, 0].numpy(), log_probs.gather(-1, actions)[:, 0].numpy()


def stack(rows: Sequence[Array]) -> Array:
    """As it is usually written."""
    return np.stack(rows)


def concatenate(rows: Sequence[Array]) -> Array:
    """The same rows at a third of the time."""
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)


def step(observations: Any, logits: Any, sample: Sample) -> dict[str, Any]:
    """Without recurrence.

    Args:
        observations: [N, ...].
        logits: What the network gave, [N, 2].
        sample: Makes actions.
    """
    actions, log_probs = sample(logits)
    return {
        "to_module": {"obs": torch.from_numpy(observations)},
        "to_env": {
            "actions": actions,
            "actions_for_env": actions,
            "action_logp": log_probs,
            "action_dist_inputs": logits.numpy(),
        },
    }


def recurrent_step(
    observations: Any, states: Mapping[str, Any], outputs: Mapping[str, Any], sample: Sample
) -> dict[str, Any]:
    """With a time axis of length 1, and states that go in and come out.

    Args:
        observations: [N, ...].
        states: Name to [N, size], as the last step left them.
        outputs: What the network gave: `logits` [N, 1, 2] and `state_out`, name to [N, size].
        sample: Makes actions.
    """
    done = step(observations[:, None], outputs["logits"][:, 0], sample)
    done["to_module"]["state_in"] = {name: torch.as_tensor(own) for name, own in states.items()}
    done["to_env"]["state_out"] = {name: own.numpy() for name, own in outputs["state_out"].items()}
    return done
