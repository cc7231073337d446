"""The default pieces of both libraries' pipelines, by their names."""

from __future__ import annotations

from typing import Any

from oracle.libraries import Library

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
