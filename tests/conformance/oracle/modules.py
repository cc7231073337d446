"""Networks without weights, the same in both libraries: what pipelines ask of a module."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np

from oracle.libraries import Library


@cache
def module_class(library: Library) -> Any:
    """An RLModule with `model_config["state"]` entries of recurrent state and values that follow from obs."""

    class Module(library.TorchRLModule, library.ValueFunctionAPI):  # type: ignore[misc]
        def setup(self) -> None:
            pass

        def get_initial_state(self) -> Any:
            size = self.model_config["state"]
            return {"h": np.full(size, -1, np.float32), "c": np.full(size, 2, np.float32)} if size else {}

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            leaves = flat_tensors(batch["obs"])
            lead = 2 if self.model_config["state"] else 1
            return sum(x.double().reshape(*x.shape[:lead], -1).sum(-1) for x in leaves).float() * 0.1

        def get_exploration_action_dist_cls(self) -> Any:
            return distribution(library, self.action_space)

        get_inference_action_dist_cls = get_exploration_action_dist_cls
        get_train_action_dist_cls = get_exploration_action_dist_cls

    return Module


def flat_tensors(struct: Any) -> list[Any]:
    """The leaves of a nested observation."""
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in flat_tensors(struct[key])]
    if isinstance(struct, (tuple, list)):
        return [leaf for part in struct for leaf in flat_tensors(part)]
    return [struct]


def distribution(library: Library, space: gym.Space[Any]) -> Any:
    """The distribution class of a flat action space that RLlib has one for."""
    if isinstance(space, gym.spaces.Box):
        return library.TorchDiagGaussian
    if isinstance(space, gym.spaces.MultiDiscrete):
        return library.TorchMultiCategorical.get_partial_dist_cls(input_lens=[int(n) for n in space.nvec])
    return library.TorchCategorical


def build_module(
    library: Library,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    state: int = 0,
    max_seq_len: int = 20,
    multi: bool = False,
) -> Any:
    """A module of a library; with `multi` inside a MultiRLModule as `default_policy`, as a Learner holds it."""
    spec = library.RLModuleSpec(
        module_class=module_class(library),
        observation_space=observation_space,
        action_space=action_space,
        model_config={"state": state, "max_seq_len": max_seq_len},
    )
    return library.MultiRLModule(rl_module_specs={"default_policy": spec}) if multi else spec.build()
