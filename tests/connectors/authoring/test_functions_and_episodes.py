"""Functions of rows and of episodes as pieces."""

from __future__ import annotations

import pickle

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


class Countdown(EpisodeTransform):
    """Adds to each reward the number of steps that follow in its chunk, times a weight."""

    weight: float = 1.0

    def transform_episode(self, episode):
        left = np.arange(len(episode))[::-1]
        episode.set_rewards(new_data=episode.get_rewards() + self.weight * left)


def episode(id_="e", steps=3):
    return played(list(range(steps + 1)), [1] * steps, id_=id_)


def transformed(piece, episodes):
    pipeline = PPOConfig().learners(learner_connector=lambda o, a: piece).build_learner_connector()
    return pipeline(rl_module=None, batch={}, episodes=episodes)


def test_each_episode_is_written_to_and_the_batch_shows_it():
    one = episode(steps=3)
    batch = transformed(Countdown(weight=0.5), [one, episode("f", 1)])
    assert batch["rewards"].tolist() == [2.0, 1.5, 1.0, 1.0]
    assert one.get_rewards().tolist() == [2.0, 1.5, 1.0]


def test_a_chunk_counts_its_own_steps():
    whole = episode(steps=4)
    rest = whole.cut(len_lookback_buffer=2)
    rest.add_env_step(9, 0, 1.0)
    assert transformed(Countdown(), [whole, rest])["rewards"].tolist() == [4.0, 3.0, 2.0, 1.0, 1.0]


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


def test_chunks_without_steps_are_left_out():
    empty = SingleAgentEpisode(observations=[1])
    assert Countdown()(rl_module=None, batch={}, episodes=[empty]) == {}


def test_returning_something_is_an_error():
    class Returns(EpisodeTransform):
        def transform_episode(self, episode):
            return episode

    with pytest.raises(PieceOutputError, match="return nothing"):
        transformed(Returns(), [episode()])


def test_errors_name_the_episode():
    class Fails(EpisodeTransform):
        def transform_episode(self, episode):
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"piece 0 \(Fails\)[\s\S]*episode 'walk'[\s\S]*no"):
        transformed(Fails(), [episode("walk")])


def test_an_error_of_a_setter_names_the_episode_once():
    class TooMany(EpisodeTransform):
        def transform_episode(self, episode):
            episode.set_rewards(new_data=[1.0])

    with pytest.raises(IndexError) as raised:
        transformed(TooMany(), [episode("walk")])
    assert str(raised.value).count("episode 'walk'") == 1


def test_a_list_in_the_place_of_a_column_is_named():
    class Replaces(EpisodeTransform):
        def transform_episode(self, episode):
            episode.rewards = [1.0] * len(episode)

    with pytest.raises(EpisodeError, match=r"episode 'walk', column 'rewards'[\s\S]*episode\.set_rewards\(new_data="):
        transformed(Replaces(), [episode("walk")])


def test_writing_behind_a_piece_that_took_the_rewards_is_refused():
    class Tenfold(ColumnTransform):
        columns = "rewards"

        def transform(self, x):
            return 10 * x

    hook = [Tenfold(), Countdown()]
    config = PPOConfig().learners(learner_connector=lambda o, a: hook)
    with pytest.raises(PipelineError, match=r"piece 1 \(Countdown\)[\s\S]*'rewards'[\s\S]*move Countdown before"):
        config.build_learner_connector()
    fine = PPOConfig().learners(learner_connector=lambda o, a: [Countdown(), Tenfold()]).build_learner_connector()
    assert fine(rl_module=None, batch={}, episodes=[episode(steps=2)])["rewards"].tolist() == [20.0, 10.0]
