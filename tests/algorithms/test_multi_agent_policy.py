from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import Policy, PPOConfig
from epibatch.core.errors import (
    CheckpointError,
    ColumnError,
    EpisodeError,
    EpisodeStateError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.registry import register_env, registered_envs
from epibatch.env_runner import MultiAgentEnv

AGENTS = ("a", "b", "c")
STACK = {"piece": "frame_stacking", "num_frames": 3}
PIECES = {  # env-to-module and learner
    "plain": ([], []),
    "frames": ([STACK], [STACK]),
    "rewards": (["prev_actions_prev_rewards"], []),
}


class Turns(MultiAgentEnv):
    """Random observations of random agents, 9 steps; b ends after 4. It keeps what it returned and was given."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(-9.0, 9.0, (2, 1), np.float32))
        self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(np.float32([-3.0]), np.float32([1.0])))

    def _observed(self, agents):
        return {a: self.np_random.normal(size=(2, 1)).astype(np.float32) for a in agents}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.actions = 0, []
        self.record = [(self._observed(AGENTS), {})]
        return self.record[0]

    def step(self, action_dict):
        self.t += 1
        self.actions.append({a: np.array(action) for a, action in action_dict.items()})
        living = [a for a in AGENTS if a != "b" or self.t <= 4]
        here = living if self.t in (4, 9) else [a for a in living if self.np_random.random() < 0.6]
        rewards = {a: float(self.np_random.normal()) for a in living}
        flags = {"__all__": self.t == 9, **({"b": True} if self.t == 4 else {})}
        self.record.append((self._observed(here), rewards, flags, {}, {}))
        return self.record[-1]


def build(pieces="plain", network=None):
    if "turns" not in registered_envs():
        register_env("turns", Turns)
    return (
        PPOConfig()
        .environment("turns")
        .env_runners(env_to_module_connector=PIECES[pieces][0])
        .learners(learner_connector=PIECES[pieces][1])
        .training(train_batch_size=20, minibatch_size=16, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4], **(network or {})})
        .multi_agent(policies=["x", "y"], policy_mapping_fn={"a": "x", "*": "y"})
        .debugging(seed=2)
        .build_algo()
    )


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
def test_acts_as_the_runner_does(pieces, network, tmp_path):
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
    algo.stop()


def test_what_it_is_given_stays_as_it_is():
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
    algo.stop()


def test_no_step_of_the_training_is_touched():
    algo, other = build(), build()
    replay_obs = {a: np.zeros((2, 1), np.float32) for a in AGENTS}
    algo.act(replay_obs, explore=True)
    one, two = algo.train(), other.train()
    assert one["learners"]["x"] == two["learners"]["x"]
    algo.stop()
    other.stop()


def test_what_does_not_fit():
    algo = build()
    policy, obs = algo.get_policy(), {a: np.zeros((2, 1), np.float32) for a in AGENTS}
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
    algo.stop()


def test_rewards_that_a_piece_reads_must_be_given():
    algo = build("rewards")
    obs = {a: np.zeros((2, 1), np.float32) for a in AGENTS}
    _, state = algo.act(obs)
    with pytest.raises(ColumnError, match=r"(?s)in MultiAgentPolicy\.act:.*NaN"):
        algo.act(obs, state)
    algo.act(obs, state, rewards=dict.fromkeys(AGENTS, 1.0))
    algo.stop()


def test_new_modules_make_a_new_policy():
    algo = build()
    before = algo.get_policy()
    algo.add_module("z", new_agent_to_module_mapping_fn={"a": "z", "b": "x", "c": "y"})
    assert algo.get_policy() is not before
    assert repr(algo.get_policy()) == "MultiAgentPolicy(x, y, z)"
    algo.stop()


def test_a_checkpoint_with_a_mapping_function_needs_the_config(tmp_path):
    algo = build()
    algo.config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "x")
    algo.save_to_path(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="policy_mapping_fn: function is code"):
        Policy.from_checkpoint(tmp_path / "saved")
    policy = Policy.from_checkpoint(tmp_path / "saved", config=algo.config)
    assert list(policy.act({"a": np.zeros((2, 1), np.float32)})[0]) == ["a"]
    algo.stop()
