"""V-trace beside RLlib's, on the same numbers."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.connectors.learner import VTrace, default_pipeline
from epibatch.core.distributions import TorchCategorical
from epibatch.episodes import SingleAgentEpisode
from oracle.libraries import RLLIB

VTRACE = RLLIB.module("algorithms.impala.torch.vtrace_torch_v2").vtrace_torch
BOX, ACTIONS = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(2)


class Entries(nn.Module):
    """The value of an observation is its first entry, the logits are the others."""

    def compute_values(self, batch, embeddings=None):
        return batch["obs"][..., 0]

    def forward_train(self, batch):
        return {"action_dist_inputs": batch["obs"][..., 1:]}

    def get_train_action_dist_cls(self):
        return TorchCategorical


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rho", "pg_rho"), [(1.0, 1.0), (0.6, 2.0), (np.inf, np.inf)])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_vtrace_is_rllibs(gamma, rho, pg_rho, seed):
    rng, steps, count = np.random.default_rng(seed), 40, 5
    rewards, before = rng.normal(size=(steps, count)), np.log(rng.uniform(0.1, 1, (steps, count)))
    obs, actions = rng.normal(size=(steps + 1, count, 3)).astype(np.float32), rng.integers(0, 2, (steps, count))
    ends = np.zeros((steps, count), bool)
    ends[-1] = rng.random(count) < 0.5  # after ends within a chunk RLlib needs a further row
    now = torch.from_numpy(obs[:-1, :, 1:]).log_softmax(-1).gather(-1, torch.from_numpy(actions)[..., None])[..., 0]
    tensors = {
        "target_action_log_probs": now, "behaviour_action_log_probs": before, "rewards": rewards,
        "discounts": gamma * ~ends, "values": obs[:-1, :, 0], "bootstrap_values": obs[-1, :, 0],
    }  # fmt: skip
    clips = [None if clip == np.inf else clip for clip in (rho, pg_rho)]
    targets, advantages = VTRACE(
        **{name: torch.as_tensor(array) for name, array in tensors.items()},
        clip_rho_threshold=clips[0], clip_pg_rho_threshold=clips[1],
    )  # fmt: skip
    episodes = [
        SingleAgentEpisode(
            observations=obs[:, i], actions=actions[:, i], rewards=rewards[:, i], terminated=bool(ends[-1, i]),
            extra_model_outputs={"action_logp": before[:, i]}, len_lookback_buffer=0,
        )
        for i in range(count)
    ]  # fmt: skip
    pipeline = default_pipeline(BOX, ACTIONS)
    pipeline.remove("GeneralAdvantageEstimation")
    pipeline.append(VTrace(gamma=gamma, clip_rho_threshold=rho, clip_pg_rho_threshold=pg_rho))
    batch = pipeline(rl_module=Entries(), batch={}, episodes=episodes)
    for name, expected in (("advantages", advantages), ("value_targets", targets)):
        rows = expected.T.reshape(-1)
        made, scale = batch[name][batch["loss_mask"]], rows.abs().max()
        np.testing.assert_allclose(made / scale, rows / scale, rtol=0, atol=1e-6)
