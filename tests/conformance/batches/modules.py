"""Networks without weights whose recurrent states have any layout."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from batches.chunks import STATES, states
from epibatch.core.distributions import distribution_for
from oracle.libraries import Library
from oracle.modules import flat_tensors, module_class


@cache
def _class(library: Library) -> Any:
    class Module(module_class(library)):  # type: ignore[misc]
        def get_initial_state(self) -> Any:
            return states(STATES[self.model_config["layout"]], lambda shape: np.full(shape, -1.5, np.float32))

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            rewards = batch["rewards"]
            parts = [x.double().reshape(*rewards.shape, -1).mean(-1) for x in flat_tensors(batch["obs"])]
            return (sum(parts) * 0.01).float()

    return Module


def built(library: Library, spaces: Any, layout: str, max_seq_len: int = 20, *, multi: bool = False) -> Any:
    """A module; with `multi` inside a MultiRLModule as `default_policy`, as a Learner holds it.

    Args:
        library: whose.
        spaces: of observations and actions.
        layout: of its state, a name in `STATES`.
        max_seq_len: steps of a sequence.
        multi: whether it is one of several modules.
    """
    spec = library.RLModuleSpec(
        module_class=_class(library),
        observation_space=spaces[0],
        action_space=spaces[1],
        model_config={"state": 1 if layout else 0, "layout": layout, "max_seq_len": max_seq_len},
    )
    return library.MultiRLModule(rl_module_specs={"default_policy": spec}) if multi else spec.build()


@cache
def _acting_class(library: Library) -> Any:
    class ActingModule(_class(library)):  # type: ignore[misc]
        def get_exploration_action_dist_cls(self) -> Any:
            return distribution(library, self.action_space)

        get_inference_action_dist_cls = get_exploration_action_dist_cls

    return ActingModule


def distribution(library: Library, space: Any) -> Any:
    """The class that a library itself takes for an action space."""
    if library.name == "epibatch":
        return distribution_for(space)
    return library.module("core.models.catalog").Catalog._get_dist_cls_from_action_space(space, framework="torch")


def acting_module(library: Library, spaces: Any, layout: str) -> Any:
    """A module whose distributions are those that the library takes for the action space."""
    spec = library.RLModuleSpec(
        module_class=_acting_class(library),
        observation_space=spaces[0],
        action_space=spaces[1],
        model_config={"state": 1 if layout else 0, "layout": layout, "max_seq_len": 20},
    )
    return spec.build()
