"""A column of hashes, the same on both sides."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.columns import HashColumns
from epibatch.connectors.columns.hash_columns import hashed_rows
from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
from epibatch.core.errors import ColumnError
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector


@pytest.mark.parametrize("recorded", [False, True])
def test_equal_observations_have_equal_hashes_wherever_they_are(nested, recorded):
    episodes = nested.recorded(6) if recorded else [nested.episode(6), nested.episode(6, "f")]
    batch = nested.train([HashColumns(columns=["obs/info/gear"], to="key")], episodes)
    keys = batch["key"]
    assert keys.dtype == np.int64 and keys.tolist() == hashed_rows([np.arange(6) % 5], "t").tolist() * 2
    assert keys[0] == keys[5] and len(set(keys[:5].tolist())) == 5
    assert set(batch) == {"obs", "actions", "rewards", "terminateds", "truncateds", "vf_preds", "key"}
    for t in range(6):
        acting, _ = nested.act([HashColumns(columns=["obs/info/gear"], to="key")], [nested.episode(t)])
        assert acting["key"].tolist() == [keys[t]]


def test_several_columns_are_one_row(nested):
    piece = HashColumns(columns=["obs", "actions"])
    batch = nested.train([piece], [nested.episode(4), nested.episode(4, "f")])
    assert batch["hash"][:4].tolist() == batch["hash"][4:].tolist()
    assert len(set(batch["hash"].tolist())) == 4
    other = nested.train([HashColumns()], [nested.episode(4)])
    assert not set(other["hash"].tolist()) & set(batch["hash"].tolist())


def test_a_name_that_is_taken(nested):
    with pytest.raises(ColumnError, match="choose another name"):
        nested.train([], [nested.episode(2)], behind=[HashColumns(to="rewards")])


def test_by_contract(nested):
    check_connector(HashColumns(), spaces=nested.space)
    check_connector(HashColumns(columns="obs"), spaces=gym.spaces.Box(0, 255, (3, 3), np.uint8))


@pytest.mark.parametrize("form", [np.str_, np.array, np.bytes_, lambda text: text.encode()])
def test_text_is_hashed_in_whatever_type_it_comes(form):
    texts = ["a", "bb", "a", "cc"]

    def hashes(rows):
        episode = SingleAgentEpisode(observations=rows, actions=[0] * 3, rewards=[0.0] * 3, len_lookback_buffer=0)
        pipeline = LearnerConnectorPipeline(connectors=[HashColumns(columns="obs"), BatchIndividualItems()])
        return pipeline(episodes=[episode])["hash"].tolist()

    plain = hashes([text.encode() for text in texts] if isinstance(form("a"), bytes) else texts)
    assert hashes([form(text) for text in texts]) == plain
    assert plain[0] == plain[2] != plain[1]
