"""Faults of learners: the pieces that algorithms add, and minibatches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from faults.minibatches import minibatches
from oracle.libraries import RLLIB
from oracle.probes import Raises, probe, tried

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
ALGORITHMS = ("ppo", "marwil", "bc", "dqn", "sac", "cql", "iql")


def learner_pipelines(library: Any, *, defaults: bool = True) -> dict[str, Any]:
    """The learner pipeline that each algorithm's config builds, or the error that it raises."""
    pipelines = {}
    for name in ALGORITHMS if library is RLLIB else ("ppo",):
        config = getattr(library.module(f"algorithms.{name}"), f"{name.upper()}Config")()
        if not defaults:
            config.learners(add_default_connectors_to_learner_pipeline=False)
        pipelines[name] = tried(lambda config=config: config.build_learner_connector(BOX, BOX))
    return pipelines


@probe(
    "O30",
    ours={},
    theirs={
        "cql": ["AddNextObservationsFromEpisodesToTrainBatch"],
        "iql": ["AddNextObservationsFromEpisodesToTrainBatch"],
    },
)
def test_no_algorithm_adds_a_piece_twice(library: Any) -> Any:
    names = {
        name: Counter(type(piece).__name__ for piece in pipeline.connectors)
        for name, pipeline in learner_pipelines(library).items()
    }
    return {
        name: [piece for piece, count in counts.items() if count > 1]
        for name, counts in names.items()
        if counts.most_common(1)[0][1] > 1
    }


WITHOUT_NEIGHBOUR = Raises(ValueError, "Can not find connector with name or type", "insert_after")


@probe("O30", ours={}, theirs={"sac": WITHOUT_NEIGHBOUR, "cql": WITHOUT_NEIGHBOUR})
def test_algorithms_do_without_the_default_pieces(library: Any) -> Any:
    pipelines = learner_pipelines(library, defaults=False)
    return {name: pipeline for name, pipeline in pipelines.items() if isinstance(pipeline, Exception)}


@probe("O31", ours=[[0] * 8], theirs="no columns")
def test_a_minibatch_has_at_least_one_sequence(library: Any) -> Any:
    """The first one, of two sequences of eight steps in minibatches of four."""
    batch = {"x": torch.tensor([[0] * 8, [1] * 8]), "seq_lens": torch.tensor([8, 8])}
    return minibatches(library, {"m": batch}, 4)["m"][0]


@probe(
    "O31",
    ours={"few": [[0, 1]], "many": [[0, 1], [2, 3], [4, 5]]},
    theirs={"few": [[0, 1], [0, 1], [0, 1]], "many": [[0, 1], [2, 3], [4, 5]]},
)
def test_modules_with_fewer_rows_are_not_repeated(library: Any) -> Any:
    return minibatches(library, {"few": {"x": torch.arange(2)}, "many": {"x": torch.arange(6)}}, 2)
