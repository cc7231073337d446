"""Configs learn from data sets as from the list of their episodes, and name them in files of settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from epibatch.algorithms import AlgorithmConfig, BCConfig
from epibatch.core.errors import ConfigError
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import read_episodes, write_episodes


@pytest.fixture
def episodes():
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(12, 11, 2)).astype(np.float32)
    return [
        SingleAgentEpisode(
            observations=rows,
            actions=(rows[:-1, 0] > 0).astype(int),
            rewards=np.zeros(10),
            truncated=True,
            len_lookback_buffer=0,
        )
        for rows in observations
    ]


def losses_of(source):
    config = BCConfig().offline_data(input_=source).training(lr=0.01, train_batch_size=70).debugging(seed=0)
    algo = config.build_algo()
    results = [algo.train() for _ in range(3)]
    algo.stop()
    return [r["learners"]["default_policy"]["policy_loss"] for r in results], algo.get_module().observation_space


def test_a_data_set_and_its_path_are_learned_from_as_the_list_is(tmp_path, episodes):
    write_episodes(episodes, tmp_path / "data")
    expected = losses_of(episodes)
    assert losses_of(str(tmp_path / "data")) == expected
    assert losses_of(read_episodes(tmp_path / "data")) == expected
    assert losses_of(read_episodes(episodes)) == expected


def test_a_path_is_in_the_file_of_settings(tmp_path, episodes):
    write_episodes(episodes, tmp_path / "data")
    config = BCConfig.from_dict({"offline_data": {"input": str(tmp_path / "data")}})
    assert len(config.input_) == 12
    again = AlgorithmConfig.from_yaml(config.to_yaml())
    assert again.input_.path == tmp_path / "data"
    assert len(BCConfig().offline_data(input_=again.input_.shard(0, 3)).input_) == 4


def test_a_path_of_something_else_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"offline_data\.input_: expected recorded episodes(.|\n)*missing") as error:
        BCConfig().offline_data(input_=tmp_path / "missing")
    assert f"found nothing; look at the path; a relative one begins at {Path.cwd()}\n" in str(error.value)
