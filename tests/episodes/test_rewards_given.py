"""Rewards as environments and people give them: numbers, arrays of one entry, vectors, and text."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import learner
from epibatch.connectors.rewards import LineariseRewards
from epibatch.core.errors import ColumnError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

FORMS = [
    lambda reward: np.array([reward]),
    lambda reward: np.array([[reward]], np.float32),
    lambda reward: np.array(reward),
    lambda reward: np.float32(reward),
    lambda reward: [reward],
    lambda reward: torch.tensor([reward]),
    lambda reward: torch.tensor(reward, requires_grad=True),
]


class Critic(torch.nn.Linear):
    def compute_values(self, batch, embeddings=None):
        return self(batch["obs"]).squeeze(-1)


def stepped(rewards):
    episode = SingleAgentEpisode(id_="e")
    episode.add_env_reset(np.zeros(4, np.float32))
    for t, reward in enumerate(rewards):
        episode.add_env_step(np.zeros(4, np.float32), 0, reward, terminated=t == len(rewards) - 1)
    return episode


def given(rewards):
    count = len(rewards)
    columns = {"observations": np.zeros((count + 1, 4), np.float32), "actions": np.zeros(count, np.int64)}
    return SingleAgentEpisode(id_="e", **columns, rewards=rewards, terminated=True, len_lookback_buffer=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("made", [stepped, given])
def test_a_reward_of_one_entry_is_a_number(made, form):
    plain = [1.0, 0.5, -2.0]
    episode = made([form(reward) for reward in plain])
    assert episode.get_rewards().tolist() == plain and episode.get_rewards(-1) == -2.0
    pipeline = learner.default_pipeline(gamma=0.9)
    found, expected = (pipeline(rl_module=Critic(4, 1), batch={}, episodes=[one]) for one in (episode, made(plain)))
    torch.testing.assert_close(found["rewards"], expected["rewards"])
    torch.testing.assert_close(found["advantages"].shape, expected["advantages"].shape)


def test_forms_may_change_from_step_to_step():
    assert stepped([form(float(i)) for i, form in enumerate(FORMS)]).get_rewards().tolist() == [*map(float, range(7))]


def test_a_column_array_of_one_entry_per_row_is_numbers():
    assert given(np.array([[1.0], [2.0]], np.float32)).get_rewards().tolist() == [1.0, 2.0]


def test_vectors_stay_vectors():
    for made in (stepped, given):
        episode = made([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
        assert episode.get_rewards().tolist() == [[1.0, 2.0], [3.0, 4.0]]
        pipeline = learner.default_pipeline(connectors=[LineariseRewards(weights=[1.0, 0.5])], advantages=False)
        assert pipeline(rl_module=None, batch={}, episodes=[episode])["rewards"].tolist() == [2.0, 5.0]
    numbers = LineariseRewards(weights=[2.0]).transform(stepped([np.array([1.0]), np.array([3.0])]).get_rewards())
    assert numbers.tolist() == [2.0, 6.0]


def test_advantages_of_vectors_name_the_rewards():
    episode = stepped([np.array([1.0, 2.0])] * 2)
    with pytest.raises(ColumnError, match=r"column 'rewards'\n.*shape \[3\]\n.*shape \[3, 2\]\n.*LineariseRewards"):
        learner.default_pipeline()(rl_module=Critic(4, 1), batch={}, episodes=[episode])


@pytest.mark.parametrize("text", ["1.0", b"1", np.array(["2"]), np.str_("1.0"), np.array(["1", "2"])])
def test_text_is_refused_where_it_is_given(text):
    with pytest.raises(ColumnError, match=r"a step's reward\n.*expected: a number"):
        stepped([1.0, text])
    with pytest.raises(ColumnError, match=r"a step's reward\n.*expected: a number"):
        given([1.0, text])
    episode = stepped([1.0])
    assert len(episode) == 1


@pytest.mark.parametrize("wrong", [None, {"a": 1.0}, [[1], [2, 3]], [None], object(), np.array([None]), 1j])
@pytest.mark.parametrize("made", [stepped, given])
def test_what_is_no_number_is_refused_where_it_is_given(made, wrong):
    with pytest.raises(ColumnError, match=r"a step's reward\n.*expected: a number"):
        made([1.0, wrong])


def test_a_tuple_of_numbers_is_a_vector():
    assert stepped([(1.0, 2.0), (3.0, 4.0)]).get_rewards().tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_refused_step_leaves_the_episode_as_it_was():
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    with pytest.raises(ColumnError):
        episode.add_env_step(1, 0, "1.0")
    episode.add_env_step(1, 0, np.array([1.0]))
    assert episode.get_rewards().tolist() == [1.0] and len(episode) == 1


def test_agents_rewards_are_numbers_too():
    space = gym.spaces.Discrete(9)
    episode = MultiAgentEpisode(observation_space=gym.spaces.Dict(a=space, b=space))
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 0, "b": 0}, {"a": np.array([1.0]), "b": np.array([0.5])})
    assert episode.pending_rewards == {"b": 0.5}
    episode.add_env_step({"a": 2, "b": 1}, {"a": 0}, {"a": np.array([2.0]), "b": np.array([0.5])})
    assert {agent: rewards.tolist() for agent, rewards in episode.get_rewards().items()} == {
        "a": [1.0, 2.0],
        "b": [1.0],
    }
    with pytest.raises(ColumnError, match="a step's reward"):
        episode.add_env_step({"a": 3}, {"a": 0}, {"a": "1.0"})


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_advantages_that_are_no_numbers_name_the_step(standardize, wrong):
    episodes = [given([1.0, 1.0]), given([1.0, wrong, 0.0])]
    pipeline = learner.default_pipeline(standardize_advantages=standardize)
    with pytest.raises(ColumnError, match=rf"column 'rewards', .*chunk 1.*, step 1\n.*\n  found: +{wrong}"):
        pipeline(rl_module=Critic(4, 1), batch={}, episodes=episodes)
    critic = Critic(4, 1)
    torch.nn.init.constant_(critic.bias, float("nan"))
    with pytest.raises(ColumnError, match=r"Critic\.compute_values, .*chunk 0.*, step 0\n.*\n  found: +nan"):
        pipeline(rl_module=critic, batch={}, episodes=episodes[:1])


def test_advantages_whose_sum_is_too_large_are_numbers():
    critic = Critic(4, 1)
    torch.nn.init.zeros_(critic.bias)
    pipeline = learner.default_pipeline(gamma=0.0, standardize_advantages=False)
    batch = pipeline(rl_module=critic, batch={}, episodes=[given([3e38, 3e38, 3e38])])
    torch.testing.assert_close(batch["advantages"][:3], torch.full((3,), 3e38))


@pytest.mark.filterwarnings("ignore:overflow")
def test_returns_that_are_too_large_are_named():
    episodes = [given([1.0]), given([3e38, 3e38])]
    with pytest.raises(ColumnError, match=r"column 'value_targets', .*chunk 1.*, step 0\n.*\n  found: +inf"):
        learner.default_pipeline(gamma=1.0, lambda_=1.0)(rl_module=Critic(4, 1), batch={}, episodes=episodes)


def test_a_module_whose_name_has_rewards_in_it_is_named_with_its_value():
    class Seesrewards(Critic):
        pass

    critic = Seesrewards(4, 1)
    torch.nn.init.constant_(critic.bias, float("nan"))
    with pytest.raises(ColumnError, match=r"Seesrewards\.compute_values[\s\S]*found: +nan"):
        learner.default_pipeline()(rl_module=critic, batch={}, episodes=[given([1.0])])
