from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import PipelineError, UnknownNameError
from epibatch.env_runner import make_multi_agent


class Counted(ConnectorV2):
    """Puts how many observations it has seen into the observation, unless frozen."""

    seen, frozen = 0, False

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.seen += not self.frozen
            self.add_batch_item(batch, "obs", np.full(3, self.seen, np.float32), episode)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]

    def freeze(self):
        self.frozen = True


def states(algo):
    runner = algo.env_runner
    return [pipeline.get_state() for pipeline in runner.pipelines.values()]


def test_newest_weights_and_statistics(case_config):
    config = case_config("mlp").env_runners(env_to_module_connector=lambda env, spaces, device: [Counted()])
    algo = config.debugging(check_first_update="off").build_algo()  # the learner sees other observations
    policy = algo.get_policy()
    assert policy is algo.get_policy()
    for _ in range(3):
        seen = algo.env_runner.pipelines["env_to_module"]["counted"].seen
        with torch.no_grad():
            expected = algo.env_runner.module.forward_inference({"obs": torch.full((1, 3), float(seen))})
        _, state = policy.act(np.zeros(3))
        np.testing.assert_array_equal(state._outputs["action_dist_inputs"], expected["action_dist_inputs"])
        assert policy.steps == algo.env_runner.num_env_steps_sampled_lifetime
        algo.train()
    algo.stop()


@pytest.mark.parametrize("use", ["get_policy", "evaluate"])
def test_pipelines_that_were_edited(algorithm, use):
    algo = algorithm("mlp")
    algo.env_runner.pipelines["env_to_module"].prepend(Counted())
    with pytest.raises(PipelineError, match=r"(?s)env_to_module.*that trains: counted, add_obs.*give the config"):
        getattr(algo, use)()


def test_a_restored_algorithm(case_config, tmp_path):
    algo = case_config("mlp").env_runners(env_to_module_connector=lambda env, spaces, device: [Counted()]).build_algo()
    state = algo.get_state()
    state["env_runner"]["env_to_module_connector"] = {"counted": {"seen": 7}}
    _, before = algo.act(np.zeros(3))
    algo.set_state(state)
    _, after = algo.act(np.zeros(3))
    assert not np.array_equal(before._outputs["action_dist_inputs"], after._outputs["action_dist_inputs"])
    algo.stop()


def test_acting_does_not_change_the_training(case_config):
    results = []
    for acts in (False, True):
        algo = case_config("lstm", num_envs=2).build_algo()
        for _ in range(3):
            if acts:
                for _ in range(20):
                    algo.act(np.zeros((4, 3)), explore=True)
            algo.train()
        weights = algo.get_module().get_state()
        results.append((weights, states(algo)))
        algo.stop()
    (one, draws), (other, other_draws) = results
    assert all(np.array_equal(one[name], other[name]) for name in one)
    np.testing.assert_array_equal(draws[1]["get_actions"]["generator"], other_draws[1]["get_actions"]["generator"])


def test_a_seed_holds_until_the_statistics_change(algorithm):
    algo = algorithm("box")
    algo.train()
    policy = algo.get_policy()
    draws = []
    for _ in range(2):
        policy.seed(9)
        draws.append([policy.act(np.zeros(3), explore=True)[0] for _ in range(3)])
    np.testing.assert_array_equal(draws[0], draws[1])


def test_ids_and_options_that_are_none(case_config):
    algo = case_config("mlp").build_algo()
    assert algo.get_policy("default_policy") is algo.get_policy()
    with pytest.raises(UnknownNameError, match=r"get_module\('default_policy'\)"):
        algo.get_policy("main")
    with pytest.raises(UnknownNameError, match="did you mean 'explore'"):
        algo.act(np.zeros(3), explor=True)
    algo.stop()


def test_of_several_modules_one_policy_acts():
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    algo = config.multi_agent(policies=["main"]).build_algo()
    with pytest.raises(UnknownNameError, match=r"(?s)with the modules main.*found: +'main'.*get_module\('main'\)"):
        algo.get_policy("main")
    with pytest.raises(UnknownNameError, match="did you mean 'rewards'"):
        algo.act({0: np.zeros(4)}, reward={})
    algo.stop()
