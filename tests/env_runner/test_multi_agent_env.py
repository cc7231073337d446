"""Spaces of agents, and single-agent environments side by side."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, EnvironmentContractError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, make_multi_agent
from fixture_envs import CountingEnv

SMALL, BIG = Discrete(2), Box(0, 1, (3,))


class Lasting(CountingEnv):
    """A `CountingEnv` whose reward is the action; notes its seeds, and draws images of a shape."""

    def __init__(self, length=2, ends="terminated", render_mode=None, shape=(4, 2, 3)):
        super().__init__(length, ends)
        self.render_mode, self.shape = render_mode, shape
        self.seeds, self.closed = [], False

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return super().reset(seed=seed)[0], {"options": options}

    def step(self, action):
        observation, _, *rest, _ = super().step(action)
        return observation, float(action), *rest, {"taken": self.steps}

    def render(self):
        return np.full(self.shape, self.steps, np.uint8)

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("attributes", "red", "other"),
    [
        ({"observation_spaces": {"red": SMALL}}, SMALL, UnknownNameError),
        ({"observation_space": gym.spaces.Dict(red=SMALL)}, SMALL, gym.spaces.Dict(red=SMALL)),
        ({"observation_space": BIG}, BIG, BIG),
        ({"observation_spaces": {"red": SMALL}, "observation_space": BIG}, SMALL, UnknownNameError),
        ({"observation_spaces": {"redd": SMALL}}, UnknownNameError, UnknownNameError),
        ({}, UnknownNameError, UnknownNameError),
    ],
)
def test_an_agent_has_its_own_space_or_that_of_all(attributes, red, other):
    env = MultiAgentEnv()
    for name, value in attributes.items():
        setattr(env, name, value)
        setattr(env, name.replace("observation", "action"), value)
    for agent, space in {"red": red, "blue": other}.items():
        for get in (env.get_observation_space, env.get_action_space):
            if space is UnknownNameError:
                with pytest.raises(UnknownNameError, match=rf"_spaces\n.*a space for agent '{agent}'") as caught:
                    get(agent)
                assert ("did you mean 'redd'" in str(caught.value)) == ("redd" in str(attributes) and agent == "red")
            else:
                assert get(agent) == space


def test_agents_of_a_class_are_lists_of_the_object():
    class Named(MultiAgentEnv):
        agents = ("a", "b")

    one, other = Named(), Named()
    one.agents.append("c")
    assert (one.agents, one.possible_agents, other.agents) == (["a", "b", "c"], ["a", "b"], ["a", "b"])
    assert (one.num_agents, one.max_num_agents, MultiAgentEnv().num_agents) == (3, 2, 0)


def test_reset_seeds_the_random_numbers():
    class Drawing(MultiAgentEnv):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return {"a": self.np_random.random()}, {}

    env = Drawing()
    drawn = [env.reset(seed=seed)[0]["a"] for seed in (3, None, 3, 4)]
    assert drawn[0] == drawn[2] == np.random.default_rng(3).random() and len(set(drawn)) == 3


def test_a_class_without_step_says_so():
    with pytest.raises(NotImplementedError, match=r"MultiAgentEnv\.step"):
        MultiAgentEnv().step({})


# -- side by side ----------------------------------------------------------------------------------


def test_agents_play_their_own_environments():
    env = make_multi_agent(Lasting)({"num_agents": 3, "length": 2})
    assert env.possible_agents == [0, 1, 2]
    assert (env.observation_spaces[2].shape, env.action_spaces[0]) == ((1,), Discrete(2))
    assert env.reset(options={"x": 1}) == ({0: 0, 1: 0, 2: 0}, {agent: {"options": {"x": 1}} for agent in range(3)})
    assert env.step({0: 4, 2: 1}) == (
        {0: 1, 2: 1},
        {0: 4.0, 2: 1.0},
        {0: False, 2: False, "__all__": False},
        {0: False, 2: False, "__all__": False},
        {0: {"taken": 1}, 2: {"taken": 1}},
    )
    assert env.step({0: 0, 2: 0})[2] == {0: True, 2: True, "__all__": False} and env.agents == [1]
    env.step({1: 0})
    assert env.step({1: 0})[2:4] == ({1: True, "__all__": True}, {1: False, "__all__": False})
    assert env.agents == []
    env.reset()
    assert env.agents == [0, 1, 2]
    env = make_multi_agent(Lasting)({"num_agents": 2, "length": 1, "ends": "truncated"})
    env.reset()
    assert env.step({0: 0, 1: 0})[2:4] == ({0: False, 1: False, "__all__": False}, {0: True, 1: True, "__all__": True})


@pytest.mark.parametrize("actions", [{}, {5: 0}, {0: 0, 1: 0}])
def test_only_agents_that_have_not_ended_act(actions):
    env = make_multi_agent(Lasting)({"num_agents": 2, "length": 1})
    env.reset()
    env.step({0: 0})
    with pytest.raises(EnvironmentContractError, match=r"some of the agents \[1\]"):
        env.step(actions)
    env.step({1: 0})
    with pytest.raises(EnvironmentContractError, match="reset the environment first"):
        env.step({0: 0})


def test_seeds_of_agents_are_independent_and_repeatable():
    env = make_multi_agent(Lasting)({"num_agents": 3})
    for seed in (7, None, 7, 8):
        env.reset(seed=seed)
    seeds = np.array([one.seeds for one in env.envs], object)
    assert list(seeds[:, 0]) == list(seeds[:, 2])
    assert list(seeds[:, 1]) == [None] * 3 and len({*seeds[:, 0], *seeds[:, 3]}) == 6


def make_lasting(env_config):
    return Lasting(**env_config)


def test_environments_by_id_registered_name_and_function():
    register_env("side_by_side", make_lasting)
    for env in ("side_by_side", make_lasting, Lasting):
        made = make_multi_agent(env)({"num_agents": 2, "length": 9})
        assert [one.length for one in made.envs] == [9, 9]
    with_id = make_multi_agent("CartPole-v1")({"num_agents": 2, "render_mode": "rgb_array"})
    assert with_id.envs[1].spec.max_episode_steps == 500 and with_id.render_mode == "rgb_array"
    with_id.close()


def test_a_config_is_not_changed():
    config = {"num_agents": 2, "length": 3}
    made = make_multi_agent(Lasting)
    made(config)
    assert config == {"num_agents": 2, "length": 3} and made().max_num_agents == 1


@pytest.mark.parametrize(
    ("env", "config", "error", "message"),
    [
        (Lasting, {"num_agents": "two"}, ConfigError, r"num_agents[\s\S]*'two'"),
        (Lasting, {"lenght": 3}, ConfigError, r"Lasting takes[\s\S]*did you mean 'length'"),
        (lambda config: None, None, ConfigError, "made by <lambda>"),
        ("CartPol-v1", {}, UnknownNameError, "did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"lenght": 1}, ConfigError, r"keywords that 'CartPole-v1' takes"),
    ],
)
def test_wrong_environments_and_configs_are_named(env, config, error, message):
    with pytest.raises(error, match=message):
        make_multi_agent(env)(config)


@pytest.mark.parametrize(("shape", "joined"), [((4, 2, 3), (4, 4, 3)), ((2, 4, 3), (4, 4, 3)), ((4, 4, 3), (4, 8, 3))])
def test_images_are_put_together(shape, joined):
    env = make_multi_agent(Lasting)({"num_agents": 2, "shape": shape, "render_mode": "rgb_array"})
    env.reset()
    env.step({1: 0})
    image = env.render()
    assert image.shape == joined and sorted(np.unique(image)) == [0, 1]
    env.close()
    assert all(one.closed for one in env.envs)


class OneKind(MultiAgentEnv):
    """Environments of even numbers are played by agent `small`, the others by `big`; each agent has its own spaces."""

    possible_agents = ("small", "big")

    def __init__(self, env_config):
        super().__init__()
        self.observation_spaces = self.action_spaces = {"small": SMALL, "big": BIG}
        self.agent = self.possible_agents[env_config.vector_index % 2]

    def observe(self):
        return {self.agent: self.t % 2 if self.agent == "small" else np.full(3, self.t / 4, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def step(self, action_dict):
        assert self.action_spaces[self.agent].contains(action_dict[self.agent])
        self.t += 1
        return self.observe(), {self.agent: 1.0}, {"__all__": self.t == 4}, {}, {}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_of_different_spaces_step_in_one_runner(mode):
    config = (
        PPOConfig()
        .environment(OneKind)
        .multi_agent(policies={"small", "big"}, policy_mapping_fn={"small": "small", "big": "big"})
    )
    runner = MultiAgentEnvRunner(config=config.env_runners(num_envs_per_env_runner=4, gym_env_vectorize_mode=mode))
    episodes = runner.sample(num_episodes=8)
    seen = [(agent, rows) for episode in episodes for agent, rows in episode.get_observations(slice(None)).items()]
    runner.stop()
    assert [agent for agent, _ in seen].count("small") == 4 == len(seen) - 4
    for agent, rows in seen:
        assert np.asarray(rows).tolist() == ([0, 1, 0, 1, 0] if agent == "small" else [[t / 4] * 3 for t in range(5)])
