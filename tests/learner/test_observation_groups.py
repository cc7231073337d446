"""Groups of observations, with masks and without, in storage, minibatches and default networks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.core import MaskedColumn
from epibatch.core.rl_module import (
    DefaultActorCritic,
    DefaultGRUActorCritic,
    RLModuleSpec,
    TorchRLModule,
    ValueFunctionAPI,
)
from epibatch.learner import RolloutStorage

T, N = 6, 5
Box, Dict = gym.spaces.Box, gym.spaces.Dict
PAIR = Dict(value=Box(-99, 99, (2,)), mask=gym.spaces.Discrete(2))
SPACE = Dict(policy=Box(-99, 99, (1,)), critic=Box(-99, 99, (3,)), ref=PAIR, critic_ref=PAIR, rnd=Box(-99, 99, (1,)))
GROUPS = {"actor": ["policy", "ref"], "critic": ["policy", "critic", "ref", "critic_ref"]}


def observations(numbers):
    """Parts that all follow from one number per row; two in three rows have no reference."""
    rows = numbers.float()[:, None]
    ref = MaskedColumn(rows.expand(-1, 2), numbers % 3 == 0)
    parts = {"policy": rows, "critic": rows.expand(-1, 3) + 0.5, "ref": ref, "rnd": -rows}
    return {**parts, "critic_ref": MaskedColumn(rows.expand(-1, 2) * 2, numbers % 2 == 0)}


def filled():
    storage = RolloutStorage(T, N)
    for t in range(T):
        numbers = t * N + torch.arange(N)
        ends = torch.zeros(N, dtype=torch.bool)
        ends[1] = t == 3
        columns = {"obs": observations(numbers), "number": numbers, "rewards": torch.ones(N), "terminateds": ends}
        storage.add_step({**columns, "state_in": {"h": torch.full((N, 4), float(t))}})
    return storage


@pytest.mark.parametrize("shuffle", ["once", "epoch"])
def test_values_and_masks_of_a_step_stay_together(shuffle):
    storage, seen = filled(), []
    for minibatch in storage.minibatches(size=8, epochs=2, shuffle=shuffle):
        expected = observations(minibatch["number"])
        assert type(minibatch["obs"]["ref"]) is MaskedColumn
        torch.testing.assert_close(minibatch["obs"], expected, rtol=0, atol=0)
        seen += minibatch["number"].tolist()
    assert sorted(seen) == sorted(2 * list(range(T * N)))


def test_groups_that_no_step_has_take_no_memory():
    sizes = {}
    for name in (None, *SPACE.spaces):
        storage = RolloutStorage(T, N)
        obs = observations(torch.arange(N))
        obs.pop(name, None)
        storage.add_step({"obs": obs})
        assert name is None or name not in storage["obs"]
        sizes[name] = storage.nbytes
    floats = {"policy": 1, "critic": 3, "ref": 2, "critic_ref": 2, "rnd": 1}
    for name, size in floats.items():
        mask = N * (T + 1) if "ref" in name else 0
        assert sizes[None] - sizes[name] == 4 * size * N * (T + 1) + mask


def module_of(cls):
    config = {"fcnet_hiddens": [8], "lstm_cell_size": 4, "obs_groups": GROUPS}
    return cls(observation_space=SPACE, action_space=gym.spaces.Discrete(2), model_config=config)


def test_default_networks_take_what_minibatches_give():
    module, dense = module_of(DefaultActorCritic), {}
    for minibatch in filled().minibatches(size=15):
        rows = minibatch["number"].float()[:, None]
        ref, critic_ref = (rows % 3 == 0).float(), (rows % 2 == 0).float()
        dense["actor"] = torch.cat([rows, rows * ref, rows * ref, ref], -1)
        extra = [rows + 0.5] * 3
        two = 2 * rows * critic_ref
        dense["critic"] = torch.cat([rows, *extra, rows * ref, rows * ref, ref, two, two, critic_ref], -1)
        torch.testing.assert_close(module.forward_train(minibatch)["action_dist_inputs"], module.pi(dense["actor"]))
        torch.testing.assert_close(module.compute_values(minibatch), module.vf(dense["critic"])[:, 0])


def test_recurrent_networks_take_sequences_of_groups():
    module = module_of(DefaultGRUActorCritic)
    (batch,) = filled().minibatches(unit="sequences", max_seq_len=4, shuffle=None)
    assert batch["obs"]["ref"].mask.shape == batch["loss_mask"].shape
    assert not batch["obs"]["ref"].mask[~batch["loss_mask"]].any()
    values = module.compute_values(batch)
    for row, length in enumerate(batch["seq_lens"].tolist()):  # each sequence by itself, without its padding
        alone = {"obs": observations(batch["number"][row, :length]), "state_in": {"h": batch["state_in"]["h"][row]}}
        alone = torch.utils._pytree.tree_map(lambda leaf: leaf[None], alone)
        torch.testing.assert_close(module.compute_values(alone)[0], values[row, :length])


class Advised(TorchRLModule, ValueFunctionAPI):
    """A policy beside which a teacher advises the left on odd observations."""

    def setup(self):
        self.pi, self.vf = torch.nn.Linear(1, 2), torch.nn.Linear(1, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["obs"])}

    def _forward_exploration(self, batch, **kwargs):
        odd = batch["obs"][:, 0] % 2 == 1
        return {**self._forward(batch), "advice": MaskedColumn(torch.zeros(len(odd), 1), odd)}

    def _forward_train(self, batch, **kwargs):
        self.batches.append(batch)
        return self._forward(batch)

    def compute_values(self, batch, embeddings=None):
        return self.vf(batch["obs"]).squeeze(-1)


class Counting(gym.Env):
    observation_space, action_space = Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 7, False, {}


def test_a_masked_output_of_a_module_comes_into_the_train_batch():
    Advised.batches = []
    config = PPOConfig().environment(lambda env_config: Counting()).env_runners(num_envs_per_env_runner=2)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Advised))
    algo = config.training(train_batch_size=40, minibatch_size=16, num_epochs=1).build_algo()
    algo.train()
    algo.stop()
    for batch in Advised.batches:
        assert type(batch["advice"]) is MaskedColumn
        assert torch.equal(batch["advice"].mask, batch["obs"][:, 0] % 2 == 1)
    assert sum(len(batch["advice"].value) for batch in Advised.batches) >= 40
