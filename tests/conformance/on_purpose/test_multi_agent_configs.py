"""Differences on purpose of configs of several agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError
from oracle.libraries import RLLIB
from oracle.probes import Raises, probe

SPACES = (gym.spaces.Box(-9.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2))
TABLE = {"a": "red", "b": "blue"}


def by_agent(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return TABLE[agent_id]


def config_of(library: Any, policies: Any = ("red", "blue"), **settings: Any) -> Any:
    return library.PPOConfig().multi_agent(policies=policies, policy_mapping_fn=by_agent, **settings)


def learner_batch(library: Any, config: Any) -> Any:
    """What PPO's learner pipeline makes of an episode that pays each agent 1 in each of its 3 steps, and ends."""
    observation, action = (gym.spaces.Dict(dict.fromkeys(TABLE, space)) for space in SPACES)
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
    for t in range(3):
        episode.add_env_step(
            rows,
            dict.fromkeys(TABLE, 0),
            dict.fromkeys(TABLE, 1.0),
            {},
            terminateds={"__all__": t == 2},
            truncateds={"__all__": False},
            extra_model_outputs=dict.fromkeys(TABLE, extra),
        )
    return pipeline(rl_module=modules, batch={}, episodes=[episode.to_numpy()], shared_data={})


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


@probe("unknown-modules", ours=Raises(ConfigError, "no module 'rad'; did you mean 'red'"), theirs="went on")
def test_settings_of_a_module_that_is_not_there(library: Any) -> Any:
    config_of(library).rl_module(algorithm_config_overrides_per_module={"rad": {"lr": 0.5}}).validate()
    return "went on"


@probe("unknown-modules", ours=Raises(ConfigError, "'rad' for agent 'a'"), theirs="went on")
def test_a_mapping_to_a_module_that_is_not_there(library: Any) -> Any:
    config = config_of(library)
    config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "rad" if agent_id == "a" else "blue")
    both = gym.spaces.Dict(a=SPACES[0], b=SPACES[0]), gym.spaces.Dict(a=SPACES[1], b=SPACES[1])
    config.build_env_to_module_connector(env=None, spaces={"__env__": both, "__env_single__": both})
    return "went on"
