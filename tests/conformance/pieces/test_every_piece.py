"""Which built-in pieces are held beside RLlib's by a property, and which have no counterpart there."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from epibatch.core.registry import built_in_pieces, counterparts, piece_class, snake_case
from oracle.libraries import RLLIB
from oracle.pieces import PPO, TO_ENV, TO_MODULE

BY_THEMSELVES = {"FlattenObservations", "FrameStacking", "MeanStdFilter", "PrevActionsPrevRewards"}
ELSEWHERE = {  # held beside RLlib's item by item, or probe by probe, not by a property
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AgentToModuleMapping",  # and the way back: multi_agent/test_pipelines_of_agents.py
    "ComputeReturnsToGo",
    "ModuleToAgentUnmapping",
    "SingleAgentObservationPreprocessor",
    "WriteObservationsToEpisodes",
}
WITHOUT_COUNTERPART = {
    "AddOtherAgentsFromEpisodesToBatch",
    "AgentIndicator",
    "BurnIn",
    "CutPaddedActions",
    "JaggedSequences",
    "PackSequences",
    "PadActions",
    "PadObservations",
    "PrevActionsPrevRewardsLearner",
    "RandomSubsequences",
    "StackAgents",
    "TrajectoryViews",
    "UnstackAgents",
}
ROOMS = {"actions", "authoring", "columns", "images", "observations", "rewards", "sequences", "views"}  # RLlib has none


def is_in_a_room_of_our_own(path: str) -> bool:
    """Whether a piece lies where RLlib has no pieces."""
    return path.split(".")[2] in ROOMS


def theirs() -> set[str]:
    """Names of all pieces in RLlib's packages."""
    common = [RLLIB.module("connectors.common"), RLLIB.module("connectors.common.frame_stacking")]
    packages = [*common, RLLIB.env_to_module, RLLIB.module_to_env, RLLIB.learner]
    return {name for package in packages for name in dir(package)}


def test_every_piece_with_a_counterpart_is_held_beside_it() -> None:
    pieces = built_in_pieces()
    ours = {piece_class(name).__name__ for name in pieces if not is_in_a_room_of_our_own(pieces[name])}
    held = {*TO_MODULE, *TO_ENV, *PPO, *BY_THEMSELVES}
    assert held <= ours and ours - held <= ELSEWHERE | WITHOUT_COUNTERPART
    assert {name for name in ours if name not in theirs()} == WITHOUT_COUNTERPART & ours


def test_pieces_in_rooms_of_our_own_have_no_counterpart() -> None:
    own = {path.rpartition(":")[2] for path in built_in_pieces().values() if is_in_a_room_of_our_own(path)}
    assert own and own & theirs() == set()


def test_those_by_themselves_have_their_property() -> None:
    here = Path(__file__)
    others = [path for path in here.parent.glob("test_*.py") if path != here]
    text = "".join(path.read_text(encoding="utf-8") for path in others)
    assert all(f', "{name}"' in text or f".{name}" in text for name in BY_THEMSELVES)


PACKAGES = ("common", "env_to_module", "module_to_env", "learner")
NAMES = sorted({own for name in built_in_pieces() for own in counterparts(piece_class(name)).get("RLlib", ())})


@pytest.mark.parametrize("name", NAMES)
def test_it_is_there(name):
    for room in PACKAGES:
        for place in (f"ray.rllib.connectors.{room}", f"ray.rllib.connectors.{room}.{snake_case(name)}"):
            try:
                if hasattr(import_module(place), name):
                    return
            except ModuleNotFoundError:
                continue
    pytest.fail(f"RLlib has no connector {name}")
