"""The PPO loop written by hand computes what epibatch's PPO computes, so that their times are of the same work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.floors.ppo import BarePPO

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.columns import Columns
from epibatch.core.distributions import TorchCategorical
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.episodes import SingleAgentEpisode
from epibatch.learner import PPOLoss, PPOSettings

STEPS = 300


@pytest.fixture
def bare():
    return BarePPO(3, steps=STEPS, minibatch_size=64, epochs=2)


def episodes_of(rollout):
    """The rollout's episodes; the last one goes on."""
    start, chunks = 0, []
    for stop in (np.flatnonzero(rollout["cut"]) + 1).tolist():
        rows = slice(start, stop)
        ended = bool(rollout["terminated"][stop - 1])
        chunks.append(
            SingleAgentEpisode(
                observations=[*rollout["obs"][rows], rollout["next_obs"][stop - 1]],
                actions=list(rollout["actions"][rows]),
                rewards=list(rollout["rewards"][rows]),
                extra_model_outputs={
                    Columns.ACTION_LOGP: list(rollout["logp"][rows]),
                    Columns.ACTION_DIST_INPUTS: list(rollout["logits"][rows]),
                },
                terminated=ended,
                truncated=not ended and stop < STEPS,
                len_lookback_buffer=0,
            )
        )
        start = stop
    return chunks


def test_a_rollout_is_cartpole(bare):
    rollout = bare.collect()
    assert rollout["cut"][-1] and 5 < rollout["cut"].sum() < 60
    going_on = ~rollout["cut"][:-1]
    np.testing.assert_array_equal(rollout["obs"][1:][going_on], rollout["next_obs"][:-1][going_on])
    assert not (rollout["obs"][1:] == rollout["next_obs"][:-1]).all(1)[~going_on].any()
    assert np.abs(rollout["obs"][1:][~going_on]).max() <= 0.05  # where CartPole begins
    lengths = np.diff(np.flatnonzero(rollout["cut"]), prepend=-1)
    assert list(bare.returns) == lengths[: len(bare.returns)].tolist()
    logp = torch.log_softmax(torch.from_numpy(rollout["logits"]), -1).numpy()
    np.testing.assert_allclose(rollout["logp"], logp[np.arange(STEPS), rollout["actions"]], rtol=1e-5)
    bare.collect()
    assert bare.returns[len(lengths) - 1] > lengths[-1]  # the episode that was cut went on


def test_the_batch_is_epibatchs(bare):
    rollout = bare.collect()
    found = bare.batch(rollout)
    config = PPOConfig().environment(
        observation_space=bare.loop.env.single_observation_space, action_space=bare.loop.env.single_action_space
    )
    pipeline = config.build_learner_connector(config.observation_space, config.action_space)
    config.extend_learner_connector(pipeline)
    network = bare.value

    class Net(TorchRLModule, ValueFunctionAPI):
        def setup(self):
            self.network = network

        def _forward(self, batch, **kwargs):
            return {}

        def compute_values(self, batch, embeddings=None):
            return self.network(batch["obs"])[:, 0]

    spec = RLModuleSpec(module_class=Net, observation_space=config.observation_space, action_space=config.action_space)
    module = spec.build().as_multi_rl_module()
    batch = pipeline(rl_module=module, batch={}, episodes=episodes_of(rollout), shared_data={})["default_policy"]
    rows = batch["loss_mask"]
    for name, own in {"obs": "obs", "actions": "actions", "action_logp": "logp"}.items():
        torch.testing.assert_close(batch[name][rows], found[own])
    torch.testing.assert_close(batch["advantages"][rows], found["advantages"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch["value_targets"][rows], found["targets"], rtol=1e-4, atol=1e-4)


def test_the_loss_is_epibatchs(bare):
    rows = bare.batch(bare.collect())
    rows["logp"] = rows["logp"] + 0.4 * torch.randn(STEPS)  # so that something is clipped
    loss, divergence = bare.loss(rows)
    outputs = {"action_dist_inputs": bare.policy(rows["obs"]), "vf_preds": bare.value(rows["obs"])[:, 0]}
    names = {"actions": "actions", "action_logp": "logp", "action_dist_inputs": "logits", "advantages": "advantages"}
    batch = {**{name: rows[own] for name, own in names.items()}, "value_targets": rows["targets"]}
    expected, metrics = PPOLoss(PPOSettings())(batch, outputs, TorchCategorical, {"kl_coeff": bare.kl_coeff})
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(divergence, metrics["mean_kl"])


def test_an_iteration_learns_from_every_step_in_every_epoch(bare):
    before = [parameter.clone() for parameter in bare.policy.parameters()]
    seen = []
    loss = bare.loss
    bare.loss = lambda rows: seen.append(rows["obs"]) or loss(rows)
    assert 9 < bare.iteration() < 60
    assert [len(rows) for rows in seen] == [64, 64, 64, 64, 44] * 2
    assert len({tuple(row.tolist()) for rows in seen[:5] for row in rows}) == STEPS
    assert all(not torch.equal(old, new) for old, new in zip(before, bare.policy.parameters()))
