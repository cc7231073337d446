"""Batches of several agents in plain layouts and back, and groups of chunks put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.connectors._engine.call import PipelineCall
from epibatch.connectors._engine.layouts import to_columns, to_plain
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import BatchLayoutError, ColumnError
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import MultiAgentEpisode

MODULES = {"x": "m", "y": "n", "z": "m"}


def game(id_: str = "e") -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: MODULES[agent_id])
    episode.add_env_reset(observations={"z": 0.0, "y": 10.0, "x": 20.0})
    for t in (1.0, 2.0):
        rewards = {"z": t, "y": 10 + t, "x": 20 + t}
        episode.add_env_step(rewards, dict.fromkeys("zyx", 0), rewards)
    return episode


class Piece(ConnectorV2):
    """A plain piece around a function of the batch and the episodes."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        return self.function(batch, episodes) or batch


def run(*pieces: Any, episodes: Any = None) -> Any:
    return LearnerConnectorPipeline(connectors=list(pieces))(episodes=episodes or [game()], batch={})


def rows() -> list[Any]:
    return [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]


def test_plain_pieces_see_keys_of_three_parts_in_the_order_of_agents() -> None:
    seen: dict[str, Any] = {}
    run(*rows(), Piece(lambda batch, episodes: seen.update(batch)))
    assert list(seen["rewards"]) == [("e", "z", "m"), ("e", "y", "n"), ("e", "x", "m")]
    (items,) = seen["rewards"]["e", "y", "n"]
    assert isinstance(items, BatchedNdArray)
    assert items.tolist() == [11.0, 12.0]


def test_what_a_plain_piece_adds_by_agent_is_a_column_of_its_module() -> None:
    def add(batch: Any, episodes: Any) -> None:
        for part in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            ConnectorV2.add_n_batch_items(batch, "twice", 2 * part.get_rewards(), len(part), part)
        batch["note"] = "mine"

    found = run(*rows(), Piece(add), AgentToModuleMapping(as_learner_connector=True), BatchIndividualItems())
    assert found["m"]["twice"].tolist() == [2.0, 4.0, 42.0, 44.0]
    assert found["n"]["twice"].tolist() == [22.0, 24.0]
    assert found["note"] == "mine", "what belongs to no module travels along"


def test_what_a_plain_piece_changes_by_module_stays_changed() -> None:
    def double(batch: Any, episodes: Any) -> None:
        batch["m"]["rewards"] = [2 * item for item in batch["m"]["rewards"]]

    found = run(*rows(), AgentToModuleMapping(as_learner_connector=True), Piece(double), BatchIndividualItems())
    assert found["m"]["rewards"].tolist() == [2.0, 4.0, 42.0, 44.0]
    assert found["n"]["rewards"].tolist() == [11.0, 12.0]


def test_lost_rows_are_named() -> None:
    def lose(batch: Any, episodes: Any) -> None:
        batch["m"]["rewards"] = batch["m"]["rewards"][:1]

    with pytest.raises(
        ColumnError, match=r"column 'rewards' of module 'm'[\s\S]*expected: 4 rows[\s\S]*found: +2 rows"
    ):
        run(*rows(), AgentToModuleMapping(as_learner_connector=True), Piece(lose), BatchIndividualItems())


def test_keys_that_are_nobodys_are_named() -> None:
    def stray(batch: Any, episodes: Any) -> None:
        batch["rewards"]["e", "w", "m"] = [1.0]

    with pytest.raises(BatchLayoutError, match=r"such as \('e', 'z', 'm'\)[\s\S]*\('e', 'w', 'm'\)"):
        run(*rows(), Piece(stray), AgentToModuleMapping(as_learner_connector=True))


def test_there_and_back() -> None:
    call = PipelineCall(rl_module=None, episodes=[game(), game("f")], training=True)
    rng = np.random.default_rng(0)
    plain = {
        "c": {chunk.key: list(rng.normal(size=int(rng.integers(0, 3)))) for chunk in call.chunks},
        "d": {call.chunks[0].key: [np.zeros((2, 3)).view(BatchedNdArray)]},
        "other": 3,
    }
    back = to_plain(to_columns(plain, call), call)
    assert {key: list(items) for key, items in back["c"].items()} == plain["c"]
    assert back["d"][call.chunks[0].key][0].shape == (2, 3)
    assert back["other"] == 3
