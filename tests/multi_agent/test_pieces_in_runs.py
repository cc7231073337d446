"""Agents of different spaces share a module in whole runs: the environment gets no action that is not its agent's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import ColumnError
from epibatch.core.registry import register_env
from epibatch.core.rl_module import MultiRLModuleSpec, RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnv

SEEN = {"scout": Box(-9, 9, (3,)), "tank": Box(-9, 9, (1,))}
BOXES = {"scout": Box(-2, 2, (3,)), "tank": Box(0, 1, (1,))}
CHOICES = {"scout": Discrete(5), "tank": Discrete(2, start=1)}


class Game(MultiAgentEnv):
    """Refuses actions that are not the agent's."""

    def __init__(self, actions: dict[str, Any]) -> None:
        super().__init__()
        self.possible_agents = list(SEEN)
        self.observation_spaces, self.action_spaces = SEEN, actions

    def observe(self) -> dict[str, Any]:
        return {agent: np.full(space.shape, self.t, np.float32) for agent, space in SEEN.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observe(), {}

    def step(self, action: dict[str, Any]) -> Any:
        for agent, own in action.items():
            assert self.action_spaces[agent].contains(own), (agent, own)
        self.t += 1
        return self.observe(), dict.fromkeys(action, 1.0), {"__all__": self.t >= 7}, {"__all__": False}, {}


class Masked(TorchRLModule):
    """Draws allowed actions evenly."""

    heeds = True

    def setup(self) -> None:
        self.value = torch.nn.Linear(5, 1)

    def _forward(self, batch: Any, **_: Any) -> Any:
        mask = batch["obs"]["action_mask"]
        legal = mask.bool() if self.heeds else torch.ones_like(mask).bool()
        return {"action_dist_inputs": (0 * self.value.bias + torch.zeros(legal.shape)).masked_fill(~legal, -1e9)}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.value(batch["obs"]["observations"]).squeeze(-1)


class Careless(Masked):
    heeds = False


def config(actions: dict[str, Any], module: Any = None) -> PPOConfig:
    register_env(f"shared_{id(actions)}", lambda _: Game(actions))
    acting = [{"piece": name} for name in ("pad_observations", "agent_indicator", "pad_actions")]
    others = {"piece": "add_other_agents_from_episodes_to_batch", "agent_ids": ["scout", "tank"]}
    out = (
        PPOConfig()
        .environment(f"shared_{id(actions)}")
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, episode, **_: "shared")
        .env_runners(env_to_module_connector=[*acting, others], module_to_env_connector=["cut_padded_actions"])
        .training(learner_connector=[others], train_batch_size=60, minibatch_size=30, num_epochs=1)
        .debugging(seed=0)
    )
    if module is not None:
        spec = MultiRLModuleSpec(rl_module_specs={"shared": RLModuleSpec(module_class=module)})
        out = out.rl_module(rl_module_spec=spec)
    return out


@pytest.mark.slow
def test_boxes_in_a_run_with_the_default_network() -> None:
    algo = config(BOXES).build_algo()
    for _ in range(2):
        algo.train()
    module = algo.get_module("shared")
    assert module.observation_space.shape == (5,)
    assert module.action_space == algo.env_runner.get_spaces()["__episodes__"][1]["tank"]
    (episode,) = algo.env_runner.sample(num_episodes=1)
    assert {agent: own.get_actions(0).shape for agent, own in episode.agent_episodes.items()} == {
        "scout": (3,),
        "tank": (3,),
    }
    assert episode.get_observations(0)["tank"].tolist() == [0, 0, 0, 0, 1]
    batch = algo.pipelines["learner"](rl_module=algo.learner.module, episodes=[episode], shared_data={})["shared"]
    assert batch["other_obs"].shape == (16, 1, 5) and batch["other_obs_mask"].all()
    algo.stop()


def test_choices_in_a_run_with_a_module_that_heeds_the_mask() -> None:
    algo = config(CHOICES, Masked).build_algo()
    algo.train()
    assert algo.get_module("shared").action_space == Discrete(5)
    episodes = algo.env_runner.sample(num_timesteps=100)
    taken = {agent: np.concatenate([one.agent_episodes[agent].get_actions() for one in episodes]) for agent in SEEN}
    assert set(taken["scout"].tolist()) == {0, 1, 2, 3, 4} and set(taken["tank"].tolist()) == {1, 2}
    algo.stop()


def test_a_module_that_does_not_is_stopped() -> None:
    algo = config(CHOICES, Careless).build_algo()
    with pytest.raises(ColumnError, match=r"CutPaddedActions[\s\S]*agent 'tank'[\s\S]*action_mask"):
        algo.train()
    algo.stop()
