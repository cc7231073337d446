"""Policies of several agents act as the runner does, with the modules of their agents."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import Policy
from epibatch.core.errors import (
    CheckpointError,
    ColumnError,
    EpisodeError,
    EpisodeStateError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.registry import register_env
from epibatch.env_runner import MultiAgentEnv
from fixture_configs import cart_pole, learned
from fixture_envs import TurnsEnv

AGENTS = ("a", "b", "c")
ZEROS = {a: np.zeros((2, 1), np.float32) for a in AGENTS}
STACK = {"piece": "frame_stacking", "num_frames": 3}
PIECES = {  # env-to-module and learner
    "plain": ([], []),
    "frames": ([STACK], [STACK]),
    "rewards": (["prev_actions_prev_rewards"], []),
}


class Turns(TurnsEnv):
    """Keeps what it returned and was given."""

    def __init__(self, config=None):
        box, actions = gym.spaces.Box(-9.0, 9.0, (2, 1), np.float32), gym.spaces.Box(np.float32([-3]), np.float32([1]))
        spaces = {"observation_spaces": dict.fromkeys(AGENTS, box), "action_spaces": dict.fromkeys(AGENTS, actions)}
        super().__init__({**spaces, "lengths": (9, 9)})

    def reset(self, *, seed=None, options=None):
        self.record, self.actions = [super().reset(seed=seed)], []
        return self.record[0]

    def step(self, action_dict):
        self.actions.append({agent: np.array(action) for agent, action in action_dict.items()})
        self.record.append(super().step(action_dict))
        return self.record[-1]


@pytest.fixture
def build(built):
    def algorithm(pieces="plain", network=None):
        to_module, learning = PIECES[pieces]
        config = cart_pole("turns", train_batch_size=20, minibatch_size=16).debugging(seed=2)
        config.env_runners(env_to_module_connector=to_module).learners(learner_connector=learning)
        config.rl_module(model_config={"fcnet_hiddens": [4], **(network or {})})
        return built(config.multi_agent(policies=["x", "y"], policy_mapping_fn={"a": "x", "*": "y"}))

    register_env("turns", Turns)
    return algorithm


LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 3}


def replayed(policy, env, **options):
    """The policy's actions for what an environment returned, and the last state."""
    actions, state = policy.act(env.record[0][0], **options)
    found = [actions]
    for obs, rewards, terminateds, truncateds, infos in env.record[1:]:
        told = {"rewards": rewards, "terminateds": terminateds, "truncateds": truncateds, "infos": infos}
        actions, state = policy.act(obs, state, **told, **options)
        found.append(actions)
    return found, state


@pytest.mark.parametrize(("pieces", "network"), [("plain", {}), ("frames", LSTM), ("rewards", LSTM)])
def test_acts_as_the_runner_does(pieces, network, tmp_path, build):
    algo = build(pieces, network)
    algo.train()
    algo.env_runner.sample(num_episodes=1, explore=False)
    (env,) = algo.env_runner.env.envs
    algo.save_to_path(tmp_path / "saved")
    for policy in (algo.get_policy(), Policy.from_checkpoint(tmp_path / "saved")):
        found, state = replayed(policy, env)
        assert (len(found), found[-1], state.is_done, state.is_terminated) == (10, {}, True, True)
        for actions, expected in zip(found, env.actions):
            assert actions.keys() == expected.keys()
            for agent in expected:
                np.testing.assert_array_equal(actions[agent], expected[agent])
                assert actions[agent].dtype == np.float32


def test_what_it_is_given_stays_as_it_is(build):
    algo = build("frames", LSTM)
    policy = algo.get_policy()
    obs = {a: np.full((2, 1), i, np.float32) for i, a in enumerate(AGENTS)}
    _, state = policy.act(obs)
    one, after = policy.act({"a": obs["b"]}, state)
    other, _ = policy.act({"a": obs["b"]}, state)
    np.testing.assert_array_equal(one["a"], other["a"])
    assert list(one) == ["a"]
    assert repr(after) == "MultiAgentPolicyState(step 1)"
    policy.seed(4)
    drawn, _ = policy.act(obs, explore=True)
    policy.seed(4)
    again, _ = policy.act(obs, explore=True)
    for agent in AGENTS:
        np.testing.assert_array_equal(drawn[agent], again[agent])


def test_no_step_of_the_training_is_touched(build):
    algo, other = build(), build()
    algo.act(ZEROS, explore=True)
    one, two = algo.train(), other.train()
    assert learned(one) == learned(two)


def test_what_does_not_fit(build):
    algo = build()
    policy, obs = algo.get_policy(), ZEROS
    with pytest.raises(SpaceError, match=r"(?s)in MultiAgentPolicy\.act:.*shape \(2, 1\)"):
        policy.act({"a": np.zeros(5, np.float32)})
    with pytest.raises(EpisodeError, match="a dict by agent"):
        policy.act(obs["a"])
    with pytest.raises(UnknownNameError, match=r"found: +one of int 3"):
        policy.act({**obs, 3: obs["a"]})
    _, state = policy.act(obs)
    with pytest.raises(UnknownNameError, match=r"in MultiAgentPolicy.act:[\s\S]*one of str 'A'"):
        policy.act({**obs, "A": obs["a"]}, state)
    with pytest.raises(EpisodeStateError, match="one of another policy"):
        build().get_policy().act(obs, state)
    with pytest.raises(EpisodeStateError, match=r"found: +int"):
        policy.act(obs, 3)
    _, state = policy.act(obs, state, terminateds={"__all__": True})
    assert (state.is_done, state.is_terminated) == (True, True)
    with pytest.raises(EpisodeStateError, match="of an episode that has ended"):
        policy.act(obs, state)


def test_rewards_that_a_piece_reads_must_be_given(build):
    algo = build("rewards")
    _, state = algo.act(ZEROS)
    with pytest.raises(ColumnError, match=r"(?s)in MultiAgentPolicy\.act:.*NaN"):
        algo.act(ZEROS, state)
    algo.act(ZEROS, state, rewards=dict.fromkeys(AGENTS, 1.0))


def test_new_modules_make_a_new_policy(build):
    algo = build()
    before = algo.get_policy()
    algo.add_module("z", new_agent_to_module_mapping_fn={"a": "z", "b": "x", "c": "y"})
    assert algo.get_policy() is not before
    assert repr(algo.get_policy()) == "MultiAgentPolicy(x, y, z)"


def test_a_checkpoint_with_a_mapping_function_needs_the_config(tmp_path, build):
    algo = build()
    algo.config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "x")
    algo.save_to_path(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="policy_mapping_fn: function is code"):
        Policy.from_checkpoint(tmp_path / "saved")
    policy = Policy.from_checkpoint(tmp_path / "saved", config=algo.config)
    assert list(policy.act({"a": np.zeros((2, 1), np.float32)})[0]) == ["a"]


class Named(MultiAgentEnv):
    """Agents of any names, all of which act in each of four steps."""

    def __init__(self, agents):
        super().__init__()
        self.agents = self.possible_agents = agents
        self.observation_spaces = dict.fromkeys(agents, gym.spaces.Box(-9.0, 9.0, (2,), np.float32))
        self.action_spaces = dict.fromkeys(agents, gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: space.sample() for agent, space in self.observation_spaces.items()}, {}

    def step(self, action_dict):
        self.t += 1
        obs = {agent: space.sample() for agent, space in self.observation_spaces.items()}
        return obs, dict.fromkeys(action_dict, 1.0), {"__all__": self.t == 4}, {}, {}


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (list(np.array(["red", "blue"])), ["red", "blue"]),
        (list(np.arange(2)), ["0", "1"]),
        ([("red", 0), ("blue", np.int64(1))], ["('red', 0)", "('blue', 1)"]),
        ([0, "one", None, 2.5], ["0", "one", "None", "2.5"]),
    ],
)
def test_agents_of_any_names_are_saved_and_act_from_a_checkpoint(tmp_path, built, agents, names):
    config = cart_pole(lambda _: Named(agents)).env_runners(env_to_module_connector=["mean_std_filter"])
    algo = built(config.multi_agent(policies=[np.str_("p")]))
    results = algo.train()["env_runners"]
    assert sorted(results["agent_episode_returns_mean"]) == sorted(results["num_agent_steps_sampled"]) == sorted(names)
    algo.save_to_path(tmp_path / "saved")
    policy = Policy.from_checkpoint(tmp_path / "saved")
    obs = {agent: np.float32([i, -i]) for i, agent in enumerate(agents)}
    expected, found = algo.act(obs)[0], policy.act(obs)[0]
    assert list(expected) == list(found) == agents and expected == found
