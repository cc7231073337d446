"""Functions of rows and of episodes as pieces."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.authoring import ColumnTransform, EpisodeTransform, column_function, episode_function
from epibatch.core.errors import ConfigError, EpisodeError, PieceError, PieceOutputError, PipelineError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import played


def _back(y, factor):
    return y / factor


@column_function("rewards", inverse=_back, monotonic=True)
def scaled(x, factor: float = 0.5):
    """Multiplies."""
    return x * factor


@episode_function
def penalised(episode, penalty: float = 1.0):
    episode.set_rewards(new_data=episode.get_rewards() - penalty)


def episode(id_="e", steps=3):
    return played(list(range(steps + 1)), [1] * steps, id_=id_)


def rewards_of(*pieces, episodes=None):
    """The rewards in a train batch of PPO's with these pieces; of the rewards 1 and 2 by default."""
    pipeline = PPOConfig().learners(learner_connector=lambda o, a: list(pieces)).build_learner_connector()
    return pipeline(episodes=episodes or [played([0, 1, 2], [1.0, 2.0])])["rewards"].tolist()


def test_a_function_of_rows():
    assert rewards_of(scaled()) == [0.5, 1.0]
    assert rewards_of(scaled(factor=3.0)) == [3.0, 6.0]
    assert scaled.__doc__ == "Multiplies."
    assert scaled(factor=4.0).inverse(np.array([8.0])).tolist() == [2.0]


def test_a_function_of_episodes():
    assert rewards_of(penalised(), scaled(factor=2.0)) == [0.0, 2.0]


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


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: scaled(factor="x"), ConfigError, r"scaled\.factor"),
        (lambda: scaled(faktor=2.0), PieceError, "did you mean 'factor'"),
        (lambda: scaled(2.0), PieceError, "give parameters by name"),
        (lambda: column_function(lambda x: x), PieceError, '@column_function\\("rewards"\\)'),
        (lambda: column_function("rewards")(lambda: None), PieceError, "write def scaled"),
        (lambda: column_function("rewards")(lambda x, *rest: x), PieceError, "write def scaled"),
        (lambda: column_function("rewards")(lambda x, **rest: x), PieceError, "write def scaled"),
        (lambda: column_function("rewards")(int), PieceError, "write def scaled"),
    ],
)
def test_parameters_and_functions_are_checked(call, error, match):
    with pytest.raises(error, match=match):
        call()


class Countdown(EpisodeTransform):
    """Adds to each reward the number of steps that follow in its chunk, times a weight."""

    weight: float = 1.0

    def transform_episode(self, episode):
        left = np.arange(len(episode))[::-1]
        episode.set_rewards(new_data=episode.get_rewards() + self.weight * left)


def test_each_episode_is_written_to_and_the_batch_shows_it():
    one = episode(steps=3)
    assert rewards_of(Countdown(weight=0.5), episodes=[one, episode("f", 1)]) == [2.0, 1.5, 1.0, 1.0]
    assert one.get_rewards().tolist() == [2.0, 1.5, 1.0]


def test_a_chunk_counts_its_own_steps():
    whole = episode(steps=4)
    rest = whole.cut(len_lookback_buffer=2)
    rest.add_env_step(9, 0, 1.0)
    assert rewards_of(Countdown(), episodes=[whole, rest]) == [4.0, 3.0, 2.0, 1.0, 1.0]
    empty = SingleAgentEpisode(observations=[1])
    assert Countdown()(rl_module=None, batch={}, episodes=[empty]) == {}


def test_each_agents_episode_comes_by_itself():
    seen = []

    class Note(EpisodeTransform):
        def transform_episode(self, episode):
            seen.append((episode.agent_id, episode.module_id, len(episode)))

    both = MultiAgentEpisode(id_="m", agent_to_module_mapping_fn=lambda agent, episode: f"of_{agent}")
    both.add_env_reset(observations={"a": 0, "b": 0})
    both.add_env_step(observations={"a": 1, "b": 1}, actions={"a": 0, "b": 0}, rewards={"a": 1.0, "b": 2.0})
    both.add_env_step(observations={"b": 2}, actions={"b": 0}, rewards={"b": 2.0})
    Note()(rl_module=None, batch={}, episodes=[both])
    assert seen == [("a", "of_a", 1), ("b", "of_b", 2)]


class Does(EpisodeTransform):
    """Does what a function does."""

    function: Any

    def transform_episode(self, episode):
        return self.function(episode)


def fail(episode):
    raise ValueError("no")


def replace(episode):
    episode.rewards = [1.0] * len(episode)


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda episode: episode, PieceOutputError, "return nothing"),
        (fail, ValueError, r"piece 0 \(Does\)[\s\S]*episode 'walk'[\s\S]*no"),
        (lambda episode: episode.set_rewards(new_data=[1.0]), IndexError, "episode 'walk'"),
        (replace, EpisodeError, r"episode 'walk', column 'rewards'[\s\S]*episode\.set_rewards\(new_data="),
    ],
)
def test_errors_name_the_episode_once(function, error, match):
    with pytest.raises(error, match=match) as raised:
        rewards_of(Does(function=function), episodes=[episode("walk")])
    assert str(raised.value).count("episode 'walk'") <= 1


def test_writing_after_a_piece_that_took_the_rewards_is_refused():
    class Tenfold(ColumnTransform):
        columns = "rewards"

        def transform(self, x):
            return 10 * x

    with pytest.raises(PipelineError, match=r"piece 1 \(Countdown\)[\s\S]*'rewards'[\s\S]*move Countdown before"):
        rewards_of(Tenfold(), Countdown())
    assert rewards_of(Countdown(), Tenfold(), episodes=[episode(steps=2)]) == [20.0, 10.0]
