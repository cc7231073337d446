"""More choices than the environment has."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import ProjectDiscreteActions
from epibatch.connectors.env_to_module import PrevActionsPrevRewards, default_pipeline
from epibatch.core.errors import ConfigError, PipelineError, SpaceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector

Discrete = gym.spaces.Discrete


def back(piece, choices):
    return piece.changed(piece.paths[0], np.array(choices), piece.inverse)


@pytest.mark.parametrize(("outside", "expected"), [("modulo", [5, 6, 7, 5, 6, 7, 5]), ("last", [5, 6, 7, 7, 7, 7, 7])])
def test_what_becomes_of_each_choice(outside, expected):
    piece = ProjectDiscreteActions(None, Discrete(3, start=5), num_actions=7, outside=outside)
    assert piece.action_space == Discrete(7)
    assert back(piece, range(7)).tolist() == expected
    own = piece.changed(piece.paths[0], np.array([5, 6, 7]), piece.transform)
    assert own.tolist() == [0, 1, 2] and back(piece, own).tolist() == [5, 6, 7]


def test_random_actions_are_all_alike_and_legal_choices_stay():
    piece = ProjectDiscreteActions(None, Discrete(4), num_actions=6, outside="random")
    piece.seed(1)
    drawn = back(piece, np.tile(np.arange(6), 4000)).reshape(4000, 6)
    assert (drawn[:, :4] == np.arange(4)).all()
    np.testing.assert_allclose(np.bincount(drawn[:, 4:].ravel()) / 8000, [0.25] * 4, atol=0.02)
    again = ProjectDiscreteActions(None, Discrete(4), num_actions=6, outside="random")
    again.set_state(piece.get_state())
    assert (back(again, [5] * 20) == back(piece, [5] * 20)).all()


class Few(gym.Env):
    """Two actions; any other one is an error."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), Discrete(2, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 1.0, False, self.np_random.random() < 0.1, {}


@pytest.mark.parametrize("outside", ["modulo", "last", "random"])
def test_no_illegal_choice_reaches_the_environment(outside):
    made = PPOConfig().environment(lambda _: Few()).debugging(seed=0)
    piece = ProjectDiscreteActions(num_actions=9, outside=outside)
    made = made.env_runners(num_envs_per_env_runner=4, env_to_module_connector=lambda env, spaces, device: piece)
    runner = SingleAgentEnvRunner(config=made)
    stored = [episode.get_actions() for episode in runner.sample(num_timesteps=400)]
    assert set(np.concatenate(stored).tolist()) == set(range(9))
    drawn = [episode.get_actions() for episode in runner.sample(num_timesteps=80, random_actions=True)]
    assert set(np.concatenate(drawn).tolist()) == {0, 1}
    runner.stop()


@pytest.mark.parametrize(
    ("keywords", "space", "error", "said"),
    [
        ({"num_actions": 0}, None, ConfigError, "at least 1"),
        ({"num_actions": 2}, Discrete(3), SpaceError, "num_actions=3 or more"),
        ({"num_actions": 2}, gym.spaces.Box(0, 1, (2,)), SpaceError, "columns='actions/gear'"),
    ],
)
def test_what_cannot_be_meant_is_named(keywords, space, error, said):
    with pytest.raises(error, match=said):
        ProjectDiscreteActions(None, space, **keywords).action_space  # noqa: B018
    with pytest.raises(SpaceError, match="the environment's action space"):
        ProjectDiscreteActions(num_actions=3).inverse(np.array([1]))


def test_as_data_and_by_contract():
    piece = ProjectDiscreteActions(num_actions=5, outside="last")
    assert build_piece(piece_to_dict(piece)) == piece
    check_connector(piece, sides="env_to_module", skip={"writes": "actions are there only behind a module"})


def test_previous_actions_before_it_are_refused_when_the_pipeline_is_built():
    """Episodes hold what the module chose, so PrevActionsPrevRewards has to see the larger space."""
    spaces = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3)
    pieces = [ProjectDiscreteActions(num_actions=5), PrevActionsPrevRewards()]
    pipeline = default_pipeline(*spaces, connectors=pieces)
    episode = SingleAgentEpisode(observation_space=spaces[0], action_space=pipeline.action_space)
    episode.add_env_reset(np.zeros(2, np.float32))
    episode.add_env_step(np.zeros(2, np.float32), 4, 1.0)
    batch = pipeline(rl_module=None, batch={}, episodes=[episode], shared_data={})
    assert batch["obs"]["prev_n_actions"].tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]]
    with pytest.raises(PipelineError, match=r"Discrete\(5\)\n  found: +Discrete\(3\).*\n.*before PrevActions"):
        default_pipeline(*spaces, connectors=[PrevActionsPrevRewards(), ProjectDiscreteActions(num_actions=5)])
    with pytest.raises(PipelineError, match="before PrevActions"):
        pipeline.insert_after(PrevActionsPrevRewards, ProjectDiscreteActions(num_actions=7))
    assert len(pipeline) == 7  # as before


@pytest.mark.parametrize("piece", [PrevActionsPrevRewards(n_prev_actions=0), PrevActionsPrevRewards()])
def test_previous_steps_before_a_piece_that_keeps_the_choices_stay_allowed(piece):
    same = ProjectDiscreteActions(num_actions=3 if piece.n_prev_actions else 5)
    default_pipeline(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3), connectors=[piece, same])
