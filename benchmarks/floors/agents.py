"""Several agents in plain dicts and lists: a batch per module, a vector step, a growing episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.columns import Episode
from benchmarks.floors.learner import Batch, stateless
from benchmarks.floors.vector_step import Sample

Agents = Mapping[str, Sequence[str]]


def by_module(columns: Sequence[tuple[str, Episode]], modules: Sequence[str]) -> dict[str, Batch]:
    """A train batch for each module: a concatenation per column.

    Args:
        columns: For each episode and agent the module and what was recorded.
        modules: All of them.
    """
    return {module: stateless([own for name, own in columns if name == module]) for module in modules}


def by_inversion(generator: np.random.Generator) -> Sample:
    """Categorical actions and their log-probabilities in NumPy, as they are usually written."""

    def sample(logits: Any) -> tuple[Any, Any]:
        given = logits.numpy()
        top = given.max(1, keepdims=True)
        sums = np.exp(given - top).cumsum(1)
        total = sums[:, -1]
        drawn = generator.random(len(sums), dtype=np.float32) * total
        actions = (drawn[:, None] > sums[:, :-1]).sum(1)
        return actions, (np.take_along_axis(given, actions[:, None], 1) - top)[:, 0] - np.log(total)

    return sample


def vector_step(
    observations: Sequence[Mapping[str, Any]], logits: Mapping[str, Any], agents: Agents, sample: Sample
) -> dict[str, Any]:
    """A vector step around the networks: rows from dicts by agent, and actions as dicts by agent.

    Args:
        observations: By agent, for each environment.
        logits: What each network gave, [rows, 2], in the order of environments and agents.
        agents: Module to its agents.
        sample: Makes actions.
    """
    to_module = {
        module: torch.from_numpy(np.stack([rows[agent] for rows in observations for agent in own]))
        for module, own in agents.items()
    }
    actions: list[dict[str, int]] = [{} for _ in observations]
    log_probs: list[dict[str, float]] = [{} for _ in observations]
    for module, own in agents.items():
        drawn, given = (iter(column.tolist()) for column in sample(logits[module]))
        for each, each_log_prob in zip(actions, log_probs):
            for agent in own:
                each[agent] = next(drawn)
                each_log_prob[agent] = next(given)
    return {"to_module": to_module, "actions": actions, "action_logp": log_probs, "logits": logits}


def grown(first: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """A list per agent and column, appended to at every step.

    Args:
        first: Reset observations by agent.
        steps: What `add_env_step` takes, step by step.
    """
    names = ("actions", "rewards", "action_logp", "action_dist_inputs", "vf_preds")
    lists: dict[str, dict[str, list[Any]]] = {
        agent: {"obs": [row], **{name: [] for name in names}} for agent, row in first.items()
    }
    for step in steps:
        observations, actions, rewards = step["observations"], step["actions"], step["rewards"]
        for agent, own in lists.items():
            outputs = step["extra_model_outputs"][agent]
            own["obs"].append(observations[agent])
            own["actions"].append(actions[agent])
            own["rewards"].append(rewards[agent])
            own["action_logp"].append(outputs["action_logp"])
            own["action_dist_inputs"].append(outputs["action_dist_inputs"])
            own["vf_preds"].append(outputs["vf_preds"])
    return lists
