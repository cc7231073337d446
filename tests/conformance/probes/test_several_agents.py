"""Differences on purpose of environments and configs of several agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo

from epibatch.core.errors import ConfigError, EnvironmentContractError
from oracle.libraries import RLLIB
from oracle.makers import both_spaces, run
from oracle.probes import Raises, plain, probe, tried

SPACES = (gym.spaces.Box(-9.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2))
TABLE = {"a": "red", "b": "blue"}


def by_agent(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return TABLE[agent_id]


def of_agents(space: Any) -> Any:
    """The space of both agents."""
    return gym.spaces.Dict(dict.fromkeys(TABLE, space))


def config_of(library: Any, policies: Any = ("red", "blue"), **settings: Any) -> Any:
    return library.PPOConfig().multi_agent(policies=policies, policy_mapping_fn=by_agent, **settings)


def learner_batch(library: Any, config: Any) -> Any:
    """What PPO's learner pipeline makes of an episode that pays each agent 1 in each of its 3 steps, and ends."""
    observation, action = map(of_agents, SPACES)
    modules = config.get_multi_rl_module_spec(spaces=dict.fromkeys(("red", "blue"), SPACES)).build()
    if library is RLLIB:
        learner = config.build_learner(spaces={"__env_single__": (observation, action), "red": SPACES, "blue": SPACES})
        pipeline, modules = learner._learner_connector, learner.module
    else:
        pipeline = config.build_learner_connector(observation, action)
        config.extend_learner_connector(pipeline)
    rows = {agent: np.zeros(1, np.float32) for agent in TABLE}
    episode = library.MultiAgentEpisode(
        observation_space=observation, action_space=action, agent_to_module_mapping_fn=by_agent
    )
    episode.add_env_reset(observations=rows, infos={})
    extra = {"action_logp": np.float32(-0.5), "action_dist_inputs": np.zeros(2, np.float32)}
    step: dict[str, Any] = {"actions": dict.fromkeys(TABLE, 0), "rewards": dict.fromkeys(TABLE, 1.0), "infos": {}}
    step.update(observations=rows, extra_model_outputs=dict.fromkeys(TABLE, extra))
    for t in range(3):
        episode.add_env_step(**step, terminateds={"__all__": t == 2})
    return run(pipeline, [episode.to_numpy()], rl_module=modules)


@probe("module-discounts", ours=[1.75, 2.97], theirs=[2.97, 2.97])
def test_a_discount_of_a_modules_own(library: Any) -> Any:
    """The first step's value target, which is its discounted return, of both modules; red discounts by 0.5."""
    config = config_of(library)
    config.rl_module(algorithm_config_overrides_per_module={"red": {"gamma": 0.5}})
    batch = learner_batch(library, config)
    return [round(float(batch[module_id]["value_targets"][0]), 3) for module_id in ("red", "blue")]


@probe("policy-settings", ours=0.5, theirs=5e-5)
def test_settings_in_the_spec_of_a_policy(library: Any) -> Any:
    """The learning rate that a module gets."""
    config = config_of(library, {"red": (None, None, None, {"lr": 0.5}), "blue": (None, None, None, {})})
    return config.get_config_for_module("red").lr


@probe(
    "unknown-modules",
    ours=[Raises(ConfigError, "no module 'rad'; did you mean 'red'"), Raises(ConfigError, "'rad' for agent 'a'")],
    theirs=["went on", "went on"],
)
def test_settings_of_and_a_mapping_to_a_module_that_is_not_there(library: Any) -> Any:
    def settings() -> str:
        config_of(library).rl_module(algorithm_config_overrides_per_module={"rad": {"lr": 0.5}}).validate()
        return "went on"

    def mapping() -> str:
        config = config_of(library)
        config.multi_agent(policy_mapping_fn=lambda agent_id, *_, **__: "rad" if agent_id == "a" else "blue")
        config.build_env_to_module_connector(env=None, spaces=both_spaces(*map(of_agents, SPACES)))
        return "went on"

    return [tried(settings), tried(mapping)]


SPACE = gym.spaces.Discrete(9)


def told(library: Any, *steps: Any) -> Any:
    """An environment of agent a, and b where steps speak of it, that returns them one after the other."""

    class Told(library.MultiAgentEnv):
        def __init__(self) -> None:
            super().__init__()
            self.agents = self.possible_agents = ["a", "b"] if "'b'" in repr(steps) else ["a"]
            self.observation_spaces = self.action_spaces = dict.fromkeys(self.agents, SPACE)
            self.render_mode, self.resets, self.left = None, 0, list(steps)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.resets += 1
            return dict.fromkeys(self.agents, 0), {}

        def step(self, action_dict: Any) -> Any:
            return self.left.pop(0)

    return Told()


def together(library: Any, env: Any) -> Any:
    """A vector environment of one."""
    if library is RLLIB:
        return library.module("env.vector.sync_vector_multi_agent_env").SyncVectorMultiAgentEnv([lambda: env])
    return library.module("env_runner").VectorMultiAgentEnv([lambda: env])


@probe("agent-seeds", ours=2, theirs=1)
def test_agents_side_by_side_begin_differently(library: Any) -> Any:
    env = library.make_multi_agent("CartPole-v1")({"num_agents": 2})
    return len({tuple(plain(row)) for row in env.reset(seed=0)[0].values()})


@probe("agents-truncated", ours=[False, True], theirs=[True, True])
def test_agents_side_by_side_that_are_all_truncated(library: Any) -> Any:
    limited = library.make_multi_agent(lambda config: gym.make("CartPole-v1", max_episode_steps=1))
    env = limited({"num_agents": 2})
    env.reset()
    _, _, terminateds, truncateds, _ = env.step({0: 0, 1: 0})
    return [terminateds["__all__"], truncateds["__all__"]]


@probe("ended-agents", ours=Raises(EnvironmentContractError, r"some of the agents \[1\]"), theirs=[0])
def test_an_agent_that_acts_after_its_end(library: Any) -> Any:
    lengths = iter([1, 9])
    made = library.make_multi_agent(lambda config: gym.make("CartPole-v1", max_episode_steps=next(lengths)))
    env = made({"num_agents": 2})
    env.reset()
    env.step({0: 0, 1: 0})
    return list(env.step({0: 0})[0])


@probe("reset-step", ours=[{}, {"__all__": False}], theirs=[{"a": 0.0}, {"a": False, "__all__": False}])
def test_the_step_that_resets(library: Any) -> Any:
    envs = together(library, told(library, ({"a": 1}, {}, {"__all__": True}, {}, {})))
    envs.reset()
    envs.step([{"a": 0}])
    _, rewards, terminateds, *_ = envs.step([{"a": 0}])
    return [rewards[0], terminateds[0]]


@probe("last-agent", ours=2, theirs=1)
def test_agents_that_end_one_by_one(library: Any) -> Any:
    one, other = ({"a": flag, "b": not flag, "__all__": False} for flag in (True, False))
    env = told(library, ({"a": 1, "b": 1}, {}, one, {}, {}), ({"b": 2}, {}, other, {}, {}), ({}, {}, other, {}, {}))
    envs = together(library, env)
    envs.reset()
    for _ in range(3):
        envs.step([{}])
    return env.resets


@probe("agent-checks", ours=Raises(EnvironmentContractError, r"rewards\['nobody'\]"), theirs={"nobody": 1.0})
def test_a_reward_for_an_agent_that_does_not_exist(library: Any) -> Any:
    envs = together(library, told(library, ({"a": 1}, {"nobody": 1.0}, {"__all__": False}, {}, {})))
    envs.reset()
    return envs.step([{"a": 0}])[1][0]


class Parting(pettingzoo.ParallelEnv):
    """One agent terminates in the step in which the other is truncated."""

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self.observation_spaces = self.action_spaces = dict.fromkeys(self.possible_agents, SPACE)

    def observation_space(self, agent: Any) -> Any:
        return SPACE

    action_space = observation_space

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        here, self.agents = self.agents, []
        infos = {agent: {} for agent in here}
        return dict.fromkeys(here, 1), dict.fromkeys(here, 0.0), {"a": True, "b": False}, {"a": False, "b": True}, infos


@probe("pettingzoo-ends", ours=[False, True], theirs=[False, False])
def test_agents_that_end_differently_in_one_step(library: Any) -> Any:
    env = library.ParallelPettingZooEnv(Parting())
    env.reset()
    _, _, terminateds, truncateds, _ = env.step({"a": 0, "b": 0})
    return [terminateds["__all__"], truncateds["__all__"]]


@probe("pettingzoo-infos", ours={"player_1": {}}, theirs={})
def test_infos_of_the_first_player(library: Any) -> Any:
    return library.PettingZooEnv(pettingzoo.make("aec", "classic/tictactoe-v3")).reset()[1]


@probe("pettingzoo-render", ours=[60, 60, 3], theirs=Raises(TypeError, "positional argument"))
def test_drawing_a_game(library: Any) -> Any:
    game = pettingzoo.make("aec", "classic/tictactoe-v3", render_mode="rgb_array", screen_height=60)
    env = library.PettingZooEnv(game)
    env.render_mode = "rgb_array"
    env.reset()
    return list(np.shape(env.render()))
