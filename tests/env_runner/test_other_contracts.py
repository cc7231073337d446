"""Environments of the forms of OpenML, SMACv2 and Meltingpot: bandits, squads with masks, worlds seen in images."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from epibatch.algorithms import PPOConfig
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner


class Rows(gym.Env):
    """A data set as a bandit: an episode is one row, and the reward is 1 for its class."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.row, {}

    def step(self, action):
        return self.row, float(action == (self.row[0] > 0)), True, False, {}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_episodes_of_one_step_are_a_bandit(mode):
    config = PPOConfig().environment(Rows).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=8, gym_env_autoreset_mode=mode)
    algo = config.training(train_batch_size=64, minibatch_size=64, num_epochs=1).build_algo()
    episodes = algo.env_runner.sample(num_episodes=40)
    assert [(len(episode), episode.is_terminated) for episode in episodes] == [(1, True)] * 40
    rewards = [episode.get_return() for episode in episodes]
    assert rewards == [float(e.get_actions(0) == (e.get_observations(0)[0] > 0)) for e in episodes]
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)["default_policy"]
    assert batch["value_targets"][batch["loss_mask"]].tolist() == pytest.approx(rewards)
    algo.stop()


class Squad(MultiAgentEnv):
    """Unit i falls in step 2 + i, or at the end, in step 4; the legal actions change, others are an error."""

    def __init__(self, config):
        super().__init__()
        self.agents = self.possible_agents = ["unit_0", "unit_1", "unit_2"]
        self.action_space = Discrete(4)
        self.observation_space = Dict(action_mask=MultiBinary(4), own=Box(0, 9, (2,)), state=Box(0, 9, (3,)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.standing = 0, list(self.agents)
        return self.seen(), {}

    def seen(self):
        state = np.float32([self.t, len(self.standing), 1])
        self.legal = {unit: np.roll([1, 1, 0, 0], self.t + i).astype(np.int8) for i, unit in enumerate(self.agents)}
        rows = {unit: np.float32([i, self.t]) for i, unit in enumerate(self.agents)}
        return {u: {"action_mask": self.legal[u], "own": rows[u], "state": state} for u in self.standing}

    def step(self, actions):
        assert [*actions] == self.standing and all(self.legal[unit][action] for unit, action in actions.items())
        self.t += 1
        seen = self.seen()
        fallen = {unit: self.t == min(2 + int(unit[-1]), 4) for unit in self.standing}
        self.standing = [unit for unit in self.standing if not fallen[unit]]
        return seen, 0.5, {**fallen, "__all__": not self.standing}, {}, {}


def several(env, **model):
    config = PPOConfig().environment(env).rl_module(model_config={"fcnet_hiddens": [8], **model}).debugging(seed=0)
    config.multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode: "shared")
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    return config.env_runners(num_envs_per_env_runner=4)


@pytest.mark.parametrize("how", ["exploring", "greedy", "random"])
def test_a_squad_with_legal_actions_a_state_for_the_critic_and_one_reward_for_all(how):
    config = several(Squad, obs_groups={"actor": ["own"], "critic": ["state"]})
    config.env_runners(env_to_module_connector=lambda env, spaces, device: "action_mask")
    runner = MultiAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=8, explore=how != "greedy", random_actions=how == "random")
    for episode in episodes:
        assert {agent: len(part) for agent, part in episode.agent_episodes.items()} == {
            "unit_0": 2, "unit_1": 3, "unit_2": 4
        }  # fmt: skip
        assert all(part.is_terminated for part in episode.agent_episodes.values())
        assert episode.get_return() == 0.5 * (2 + 3 + 4)
    runner.stop()
    if how == "exploring":
        algo = config.build_algo()
        assert np.isfinite(algo.train()["learners"]["shared"]["total_loss"])
        algo.stop()


class World(MultiAgentEnv):
    """Two players see an image and what they carry; a world of fixed length is truncated for both at once."""

    def __init__(self, config):
        super().__init__()
        self.agents = self.possible_agents = ["player_0", "player_1"]
        self.observation_space = Dict(RGB=Box(0, 255, (40, 40, 3), np.uint8), INVENTORY=Box(0, 9, (3,), np.float64))
        self.action_space = Discrete(8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def seen(self):
        return {
            player: {"RGB": np.full((40, 40, 3), 10 * self.t + i, np.uint8), "INVENTORY": np.full(3, float(self.t))}
            for i, player in enumerate(self.agents)
        }

    def step(self, actions):
        self.t += 1
        rewards = {player: float(action == i) for i, (player, action) in enumerate(actions.items())}
        return self.seen(), rewards, {"__all__": False}, {"__all__": self.t == 5}, {}


def test_worlds_seen_in_images_by_several_players():
    algo = several(World).build_algo()
    episodes = algo.env_runner.sample(num_episodes=4)
    for episode in episodes:
        for i, player in enumerate(["player_0", "player_1"]):
            part = episode.agent_episodes[player]
            seen = part.get_observations()
            assert seen["RGB"].dtype == np.uint8 and seen["INVENTORY"].dtype == np.float64
            assert seen["RGB"][:, 7, 9, 2].tolist() == [10 * t + i for t in range(6)]
            assert part.get_rewards().tolist() == [float(action == i) for action in part.get_actions()]
            assert part.is_truncated and not part.is_terminated
    assert np.isfinite(algo.train()["learners"]["shared"]["total_loss"])
    algo.stop()
