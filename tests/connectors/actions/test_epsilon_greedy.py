"""Epsilon-greedy actions, beside their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors import module_to_env
from epibatch.connectors.actions import EpsilonGreedy
from epibatch.core.distributions import mask_logits
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import DefaultQNetwork, RLModuleSpec
from epibatch.env_runner import SingleAgentEnvRunner


def logits(values, epsilon, **call):
    batch = {"action_dist_inputs": torch.tensor(values)}
    return EpsilonGreedy(epsilon=epsilon)(batch=batch, episodes=[], explore=True, **call)["action_dist_inputs"]


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_probabilities_are_those_of_the_definition(epsilon):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50, 5))
    values[rng.random((50, 5)) < 0.3] = -np.inf
    values[:, 2] = np.maximum(values[:, 2], -9.0)
    found = logits(values, epsilon).exp().numpy()
    for row, probabilities in zip(values, found):
        legal = [i for i in range(5) if row[i] > -np.inf]
        expected = [epsilon / len(legal) * (i in legal) + (1 - epsilon) * (i == int(row.argmax())) for i in range(5)]
        np.testing.assert_allclose(probabilities, expected, atol=1e-12)


@pytest.mark.parametrize(("steps", "epsilon"), [(0, 1.0), (50, 0.6), (100, 0.2), (1000, 0.2)])
def test_a_schedule_follows_the_steps_that_were_sampled(steps, epsilon):
    found = logits([[0.0, 1.0]], [[0, 1.0], [100, 0.2]], shared_data={"num_env_steps": steps})
    np.testing.assert_allclose(found.exp().numpy(), [[epsilon / 2, 1 - epsilon / 2]], rtol=1e-6)


def test_a_runner_explores_less_and_less_and_greedy_actions_are_the_best():
    class One(DefaultQNetwork):
        """Prefers action 1 whatever it sees."""

        def _forward(self, batch, **kwargs):
            return {"action_dist_inputs": torch.tensor([[0.0, 1.0]]).repeat(len(batch["obs"]), 1)}

    runner = SingleAgentEnvRunner(
        env="CartPole-v1", module=RLModuleSpec(One), num_envs=4, seed=0,
        module_to_env=[EpsilonGreedy(epsilon=[[0, 1.0], [2000, 0.0]])],
    )  # fmt: skip
    shares = []
    for _ in range(3):
        episodes = runner.sample(num_timesteps=1000)
        actions = np.concatenate([episode.get_actions() for episode in episodes])
        logp = np.concatenate([episode.get_extra_model_outputs("action_logp") for episode in episodes])
        shares.append(float((actions == 0).mean()))
        assert (logp <= 0).all()
    assert shares[0] == pytest.approx(0.375, abs=0.06) and shares[1] == pytest.approx(0.125, abs=0.05)
    assert shares[2] == 0.0
    greedy = runner.sample(num_timesteps=50, explore=False)
    assert all((episode.get_actions() == 1).all() for episode in greedy)
    runner.stop()


@pytest.mark.parametrize("epsilon", [1.5, [[0, 1.0], [10, -0.1]], []])
def test_what_is_no_probability_is_named(epsilon):
    with pytest.raises(ConfigError, match="EpsilonGreedy, epsilon"):
        EpsilonGreedy(epsilon=epsilon)


def test_it_stands_before_the_actions_are_drawn():
    pipeline = module_to_env.default_pipeline(connectors=[EpsilonGreedy()])
    assert [type(piece).__name__ for piece in pipeline][:2] == ["EpsilonGreedy", "GetActions"]


def test_actions_that_a_mask_forbids_are_never_taken():
    mask = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1]])
    values = mask_logits(torch.tensor([[1.0, 9.0, 3.0], [9.0, 1.0, 3.0], [3.0, 2.0, 1.0]]), mask)
    found = EpsilonGreedy(epsilon=0.3)(batch={"action_dist_inputs": values}, episodes=[], explore=True)
    expected = [[0.15, 0.0, 0.85], [0.0, 0.0, 1.0], [0.8, 0.1, 0.1]]
    np.testing.assert_allclose(found["action_dist_inputs"].exp().numpy(), expected, atol=1e-6)
