"""Plain functions as pieces."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.authoring import column_function, episode_function
from epibatch.core.errors import ConfigError, PieceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import SingleAgentEpisode


def _back(y, factor):
    return y / factor


@column_function("rewards", inverse=_back, monotonic=True)
def scaled(x, factor: float = 0.5):
    """Multiplies."""
    return x * factor


@episode_function
def penalised(episode, penalty: float = 1.0):
    episode.set_rewards(new_data=episode.get_rewards() - penalty)


def batch_of(*pieces):
    pipeline = PPOConfig().learners(learner_connector=lambda o, a: list(pieces)).build_learner_connector()
    rows = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0]}
    return pipeline(rl_module=None, batch={}, episodes=[SingleAgentEpisode(**rows, len_lookback_buffer=0)])


def test_a_function_of_rows():
    assert batch_of(scaled())["rewards"].tolist() == [0.5, 1.0]
    assert batch_of(scaled(factor=3.0))["rewards"].tolist() == [3.0, 6.0]
    assert scaled.__doc__ == "Multiplies."
    assert scaled(factor=4.0).inverse(np.array([8.0])).tolist() == [2.0]


def test_a_function_of_episodes():
    assert batch_of(penalised(), scaled(factor=2.0))["rewards"].tolist() == [0.0, 2.0]


def test_parameters_are_checked():
    with pytest.raises(ConfigError, match=r"scaled\.factor"):
        scaled(factor="x")
    with pytest.raises(PieceError, match="did you mean 'factor'"):
        scaled(faktor=2.0)
    with pytest.raises(PieceError, match="give parameters by name"):
        scaled(2.0)


def test_they_are_data_and_pickle():
    data = piece_to_dict(scaled(factor=2.0))
    assert data == {"piece": f"{__name__}:scaled", "factor": 2.0}
    assert build_piece(data, allow_imports=True) == scaled(factor=2.0)
    assert pickle.loads(pickle.dumps(scaled(factor=2.0))) == scaled(factor=2.0)


def test_a_function_of_the_space():
    def halves(space, factor):
        return gym.spaces.Box(space.low * factor, space.high * factor, dtype=space.dtype.type)

    @column_function("obs", output_space=halves)
    def smaller(x, factor: float = 0.5):
        return x * np.float32(factor)

    assert smaller(gym.spaces.Box(-2, 2, (1,))).observation_space == gym.spaces.Box(-1, 1, (1,))


def test_the_column_is_needed():
    with pytest.raises(PieceError, match='@column_function\\("rewards"\\)'):
        column_function(lambda x: x)


@pytest.mark.parametrize("function", [lambda: None, lambda x, *rest: x, lambda x, **rest: x, int])
def test_functions_without_a_first_parameter_are_refused(function):
    with pytest.raises(PieceError, match="write def scaled"):
        column_function("rewards")(function)
