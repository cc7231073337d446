"""Networks without weights and the default pieces, the same in both libraries."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.distributions import distribution_for
from oracle.compare import leaves
from oracle.libraries import EPIBATCH, Library


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
            lead = 2 if self.model_config["state"] else 1
            parts = [x.double().reshape(*x.shape[:lead], -1).sum(-1) for x in leaves(batch["obs"])]
            return sum(parts).float() * 0.1

        def get_exploration_action_dist_cls(self) -> Any:
            return distribution(library, self.action_space)

        get_inference_action_dist_cls = get_exploration_action_dist_cls
        get_train_action_dist_cls = get_exploration_action_dist_cls

    return Module


def distribution(library: Library, space: gym.Space[Any]) -> Any:
    """The class that a library itself takes for an action space."""
    if library is EPIBATCH:
        return distribution_for(space)
    return library.module("core.models.catalog").Catalog._get_dist_cls_from_action_space(space, framework="torch")


def build_module(
    library: Library,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    state: int = 0,
    max_seq_len: int = 20,
    multi: bool = False,
    cls: Any = None,
    **settings: Any,
) -> Any:
    """A module of a library; with `multi` inside a MultiRLModule as `default_policy`, as a Learner holds it."""
    spec = library.RLModuleSpec(
        module_class=cls or module_class(library),
        observation_space=observation_space,
        action_space=action_space,
        model_config={"state": state, "max_seq_len": max_seq_len, **settings},
    )
    return library.MultiRLModule(rl_module_specs={"default_policy": spec}) if multi else spec.build()


LEARNER = (
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
)
"""Those of a learner pipeline, in order."""

PPO = ("AddOneTsToEpisodesAndTruncate", *LEARNER, "GeneralAdvantageEstimation")

TO_MODULE = (
    "AddObservationsFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
)
"""Those of an env-to-module pipeline."""

TO_ENV = (
    "GetActions",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
    "RemoveSingleTsTimeRankFromBatch",
    "NormalizeAndClipActions",
    "ListifyDataForVectorEnv",
)
"""Those of a module-to-env pipeline."""


def pieces_of(library: Library, side: str, *names: str, **settings: dict[str, Any]) -> list[Any]:
    """New pieces of a library, in this order.

    Args:
        library: whose.
        side: `learner`, `env_to_module` or `module_to_env`.
        *names: of the pieces.
        **settings: of a piece, by its name; those for one of two sides know theirs.
    """
    two_sided = {"as_learner_connector": True} if side == "learner" else {}
    own = {**dict.fromkeys(TO_MODULE[:3], two_sided), **settings}
    return [getattr(getattr(library, side), name)(**own.get(name, {})) for name in names]
