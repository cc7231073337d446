"""A fixed opponent in a game of turns, and a rule that acts in some steps: neither's steps are trained."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnv


class Nim(MultiAgentEnv):
    """Seven stones; both take one or two in turn, and who takes the last one wins."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["me", "other"]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(0, 7, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.stones, self.turn = 7, 0
        return self.seen("me"), {}

    def seen(self, *agents):
        return {agent: np.array([self.stones], np.float32) for agent in agents}

    def step(self, action_dict):
        ((agent, action),) = action_dict.items()
        assert agent == self.agents[self.turn]
        self.stones = max(0, self.stones - 1 - action)
        self.turn = 1 - self.turn
        over = self.stones == 0
        observations = self.seen(*self.agents) if over else self.seen(self.agents[self.turn])
        rewards = {name: 1.0 if name == agent else -1.0 for name in self.agents} if over else {}
        return observations, rewards, {"__all__": over}, {"__all__": False}, {}


class TakesOne(TorchRLModule):
    """Always takes one stone; it has a weight, which training would change."""

    def setup(self):
        self.weight = torch.nn.Parameter(torch.ones(1))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.weight * torch.tensor([[9.0, -9.0]]).expand(len(batch["obs"]), 2)}


def test_a_fixed_opponent_takes_its_turns_and_is_not_trained():
    config = (
        PPOConfig()
        .environment(Nim)
        .env_runners(num_envs_per_env_runner=2)
        .multi_agent(
            policies={"me": {"model_config": {"fcnet_hiddens": [4]}}, "other": RLModuleSpec(module_class=TakesOne)},
            policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id,
            policies_to_train=["me"],
        )
        .training(train_batch_size=60, minibatch_size=20, num_epochs=1)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    results = algo.train()
    assert set(results["learners"]) - {"__all_modules__"} == {"me"}
    assert torch.equal(algo.get_module("other").weight, torch.ones(1))
    episodes = algo.env_runner.sample(num_episodes=8)
    for episode in episodes:
        mine, others = episode.agent_episodes["me"], episode.agent_episodes["other"]
        assert set(others.get_actions().tolist()) == {0} and mine.get_return() == -others.get_return()
    shared_data = {"policies_to_train": ["me"]}
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes, shared_data=shared_data)
    assert set(batch) == {"me"}
    assert batch["me"]["loss_mask"].sum() == sum(len(episode.agent_episodes["me"]) for episode in episodes)
    algo.stop()


class Opening(ConnectorV2):
    """The first three actions of an episode are 0, with probability 1."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        opens = {episode.id_: episode.t < 3 for episode in episodes}

        def switch(values, episode_id, agent_id, module_id):
            return (np.int64(0), np.float32(0.0)) if opens[episode_id] else values

        self.foreach_batch_item_change_in_place(batch, ["actions", "action_logp"], switch)
        for episode in episodes:
            self.add_batch_item(batch, "opening", opens[episode.id_], single_agent_episode=episode)
        return batch


class LearnTheRest(ConnectorV2):
    """Leaves the opening out of the loss."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in episodes:
            own = ~episode.get_extra_model_outputs("opening")
            self.add_n_batch_items(batch, "loss_mask", own, len(episode), single_agent_episode=episode)
        return batch


def test_an_action_set_by_a_rule_has_its_own_log_probability_and_no_loss():
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=2, module_to_env_connector=lambda env: Opening())
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .training(
            train_batch_size=60, minibatch_size=20, num_epochs=1, learner_connector=lambda *spaces: LearnTheRest()
        )
        .debugging(seed=0)
    )
    algo = config.build_algo()
    algo.train()
    episodes = algo.env_runner.sample(num_timesteps=80)
    own = 0
    for episode in episodes:
        opening = np.arange(episode.t_started, episode.t) < 3
        actions, logp = episode.get_actions(), episode.get_extra_model_outputs("action_logp")
        logits = torch.from_numpy(episode.get_extra_model_outputs("action_dist_inputs"))
        of_module = torch.log_softmax(logits, -1).numpy()[np.arange(len(episode)), actions]
        np.testing.assert_allclose(logp, np.where(opening, 0.0, of_module), rtol=1e-5)
        assert not actions[opening].any()
        own += int((~opening).sum())
    batch = algo.learner.connector(rl_module=algo.get_module(), batch={}, episodes=episodes)
    assert batch["loss_mask"].sum() == own < sum(map(len, episodes))
    assert not batch["opening"][batch["loss_mask"]].any()
    algo.stop()
