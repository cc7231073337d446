"""Spaces of agents, and single-agent environments side by side."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.core.errors import ConfigError, EnvironmentContractError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.env_runner.multi_agent_base import mark_end
from epibatch.env_runner.multi_agent_env import MultiAgentEnv, make_multi_agent

SMALL, BIG = Discrete(2), Box(0, 1, (3,))


class Lasting(gym.Env):
    """Ends after `steps` steps, terminated or truncated; observes how many were taken, gets the action as reward."""

    def __init__(self, steps=2, terminates=True, render_mode=None, shape=(4, 2, 3)):
        self.steps, self.terminates, self.shape, self.render_mode = steps, terminates, shape, render_mode
        self.observation_space, self.action_space = Discrete(100), Discrete(5)
        self.seeds, self.closed = [], False

    def reset(self, *, seed=None, options=None):
        self.taken = 0
        self.seeds.append(seed)
        return 0, {"options": options}

    def step(self, action):
        self.taken += 1
        ended = self.taken >= self.steps
        return (
            self.taken,
            float(action),
            ended and self.terminates,
            ended and not self.terminates,
            {"taken": self.taken},
        )

    def render(self):
        return np.full(self.shape, self.taken, np.uint8)

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("attributes", "red", "other"),
    [
        ({"observation_spaces": {"red": SMALL}}, SMALL, UnknownNameError),
        ({"observation_space": gym.spaces.Dict(red=SMALL)}, SMALL, gym.spaces.Dict(red=SMALL)),
        ({"observation_space": BIG}, BIG, BIG),
        ({"observation_spaces": {"red": SMALL}, "observation_space": BIG}, SMALL, UnknownNameError),
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
                with pytest.raises(UnknownNameError, match=f"a space for agent '{agent}'"):
                    get(agent)
            else:
                assert get(agent) == space


def test_a_missing_space_suggests_the_nearest_agent():
    env = MultiAgentEnv()
    env.observation_spaces = {"player_1": SMALL}
    with pytest.raises(KeyError, match=r"MultiAgentEnv.observation_spaces[\s\S]*did you mean 'player_1'"):
        env.get_observation_space("player1")


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


@pytest.mark.parametrize(
    ("terminateds", "truncateds", "all_of_them"),
    [
        ({"a": True, "b": True}, {"a": False, "b": False}, (True, False)),
        ({"a": False, "b": False}, {"a": True, "b": True}, (False, True)),
        ({"a": True, "b": False}, {"a": False, "b": True}, (False, True)),
        ({"a": True, "b": True}, {"a": True, "b": False}, (True, False)),
        ({"a": True}, {}, (True, False)),
        ({}, {"b": True}, (False, True)),
        ({}, {}, (True, False)),
    ],
)
def test_the_flag_of_all_makes_no_truncated_agent_a_terminated_one(terminateds, truncateds, all_of_them):
    for ended in (True, False):
        flags = dict(terminateds), dict(truncateds)
        mark_end(*flags, ended=ended)
        assert tuple(flag["__all__"] for flag in flags) == (all_of_them if ended else (False, False))
        own = [{agent: flag for agent, flag in each.items() if agent != "__all__"} for each in flags]
        assert own == [terminateds, truncateds]


# -- side by side ----------------------------------------------------------------------------------


def test_agents_play_their_own_environments():
    env = make_multi_agent(Lasting)({"num_agents": 3, "steps": 2})
    assert (env.possible_agents, env.observation_spaces[2], env.action_spaces[0]) == (
        [0, 1, 2],
        Discrete(100),
        Discrete(5),
    )
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


def test_environments_that_are_truncated_end_truncated():
    env = make_multi_agent(Lasting)({"num_agents": 2, "steps": 1, "terminates": False})
    env.reset()
    assert env.step({0: 0, 1: 0})[2:4] == ({0: False, 1: False, "__all__": False}, {0: True, 1: True, "__all__": True})


@pytest.mark.parametrize("actions", [{}, {5: 0}, {0: 0, 1: 0}])
def test_only_agents_that_have_not_ended_act(actions):
    env = make_multi_agent(Lasting)({"num_agents": 2, "steps": 1})
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
    assert list(seeds[:, 0]) == list(seeds[:, 2]) == [int(s) for s in np.random.SeedSequence(7).generate_state(3)]
    assert list(seeds[:, 1]) == [None] * 3 and len({*seeds[:, 0], *seeds[:, 3]}) == 6


def make_lasting(env_config):
    return Lasting(**env_config)


def test_environments_by_id_registered_name_and_function():
    register_env("side_by_side", make_lasting)
    for env in ("side_by_side", make_lasting, Lasting):
        made = make_multi_agent(env)({"num_agents": 2, "steps": 9})
        assert [one.steps for one in made.envs] == [9, 9]
    with_id = make_multi_agent("CartPole-v1")({"num_agents": 2, "render_mode": "rgb_array"})
    assert with_id.envs[1].spec.max_episode_steps == 500 and with_id.render_mode == "rgb_array"
    with_id.close()


def test_a_config_is_not_changed_and_wrong_ones_are_named():
    config = {"num_agents": 2, "steps": 3}
    made = make_multi_agent(Lasting)
    made(config)
    assert config == {"num_agents": 2, "steps": 3} and made().max_num_agents == 1
    with pytest.raises(ConfigError, match=r"num_agents[\s\S]*'two'"):
        made({"num_agents": "two"})
    with pytest.raises(ConfigError, match=r"Lasting takes[\s\S]*did you mean 'steps'"):
        made({"step": 3})
    with pytest.raises(ConfigError, match="made by <lambda>"):
        make_multi_agent(lambda config: None)()


@pytest.mark.parametrize(("shape", "joined"), [((4, 2, 3), (4, 4, 3)), ((2, 4, 3), (4, 4, 3)), ((4, 4, 3), (4, 8, 3))])
def test_images_are_put_together(shape, joined):
    env = make_multi_agent(Lasting)({"num_agents": 2, "shape": shape, "render_mode": "rgb_array"})
    env.reset()
    env.step({1: 0})
    image = env.render()
    assert image.shape == joined and sorted(np.unique(image)) == [0, 1]
    env.close()
    assert all(one.closed for one in env.envs)


def test_an_id_or_keyword_that_gymnasium_does_not_know():
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v1'"):
        make_multi_agent("CartPol-v1")({})
    with pytest.raises(ConfigError, match=r"keywords that 'CartPole-v1' takes"):
        make_multi_agent("CartPole-v1")({"lenght": 1})
