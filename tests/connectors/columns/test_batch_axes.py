"""Several leading axes of a train batch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from epibatch.algorithms import PPOConfig
from epibatch.connectors.columns import BatchAxes
from epibatch.connectors.learner import default_pipeline
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module import DefaultActorCritic, DefaultLSTMActorCritic
from fixture_pieces import played

OBS, ACT = Dict({"a": Box(-9, 9, (3,)), "b": Discrete(4)}), Discrete(2)


def episodes_of(lengths, space=OBS):
    rng = np.random.default_rng(0)
    space.seed(0)
    return [
        played(
            [space.sample() for _ in range(length + 1)],
            actions=list(rng.integers(2, size=length)),
            rewards=list(rng.normal(size=length)),
            id_=str(i),
            observation_space=space,
            action_space=ACT,
        )
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(("sizes", "shape"), [([3, -1], (3, 4)), ([3, 2, 2], (3, 2, 2)), ([-1], (12,)), ((12,), (12,))])
def test_rows_are_those_of_the_flat_batch(sizes, shape):
    pipeline = default_pipeline(OBS, ACT, advantages=False)
    episodes = episodes_of([4, 4, 4])
    flat = pipeline(rl_module=None, batch={}, episodes=episodes)
    pipeline.append(BatchAxes(sizes=sizes))
    found = pipeline(rl_module=None, batch={}, episodes=episodes)
    assert found.keys() == flat.keys()
    for name in ("rewards", "actions"):
        assert found[name].shape == shape
        np.testing.assert_array_equal(found[name].reshape(-1), flat[name])
    assert found["obs"]["a"].shape == (*shape, 3)
    np.testing.assert_array_equal(found["obs"]["a"].reshape(12, 3), flat["obs"]["a"])


def test_the_axis_of_sequences_is_split():
    space = Box(-9, 9, (3,))
    model = {"use_lstm": True, "lstm_cell_size": 5, "fcnet_hiddens": [4], "max_seq_len": 2}
    module = DefaultLSTMActorCritic(observation_space=space, action_space=ACT, model_config=model)
    pipeline = default_pipeline(space, ACT, advantages=False)
    pipeline.append(BatchAxes(sizes=[-1, 2]))
    with pytest.warns(UserWarning, match="state_out"):
        batch = pipeline(rl_module=module, batch={}, episodes=episodes_of([4, 4, 4], space))
    assert batch["obs"].shape == (3, 2, 2, 3) and batch["seq_lens"].tolist() == [[2, 2]] * 3
    assert all(leaf.shape == (3, 2, 5) for leaf in batch["state_in"].values())


@pytest.mark.parametrize("number", [torch.tensor(2.0), np.array(2.0), np.float32(2.0), 2.0])
def test_a_number_in_the_batch_stays_as_it_is(number):
    module, batch = SimpleNamespace(), {"obs": torch.zeros(6, 4), "scale": number}
    batch = BatchAxes(sizes=[2, -1])(rl_module=module, batch=batch, episodes=[])
    assert batch["obs"].shape == (2, 3, 4) and np.shape(batch["scale"]) == () and float(batch["scale"]) == 2.0


@pytest.mark.parametrize("sizes", [[], [0, 2], [-1, -1], 3, [2.0], "ab"])
def test_wrong_sizes_are_named(sizes):
    with pytest.raises(ConfigError, match=r"BatchAxes\.sizes"):
        BatchAxes(sizes=sizes)


@pytest.mark.parametrize(("sizes", "words"), [([5, -1], "5 or a multiple"), ([2, 3], "axes, 6 or")])
def test_another_number_of_rows_is_named(sizes, words):
    pipeline = default_pipeline(OBS, ACT, advantages=False)
    pipeline.append(BatchAxes(sizes=sizes))
    with pytest.raises(ColumnError, match=rf"{words}[\s\S]*12 rows"):
        pipeline(rl_module=None, batch={}, episodes=episodes_of([4, 4, 4]))


def test_a_loss_over_several_axes_is_that_over_rows():
    space = Box(-9, 9, (3,))
    module = DefaultActorCritic(observation_space=space, action_space=ACT, model_config={"fcnet_hiddens": [4]})
    pipeline = default_pipeline(space, ACT, advantages=False)
    losses = []
    for _ in range(2):
        batch = pipeline(rl_module=module, batch={}, episodes=episodes_of([6, 6], space))
        out = module.forward_train(batch)["action_dist_inputs"]
        dist = module.get_train_action_dist_cls().from_logits(out)
        losses.append(-dist.logp(batch["actions"]).mean().item())
        pipeline.append(BatchAxes(sizes=[2, -1]))
    assert losses[0] == pytest.approx(losses[1])


def test_a_learner_of_sequences_refuses_them():
    model = {"use_lstm": True, "lstm_cell_size": 5, "fcnet_hiddens": [4], "max_seq_len": 5}
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=model).debugging(seed=0)
    config.training(train_batch_size=60, minibatch_size=20, num_epochs=1)
    algo = config.build_algo()
    algo.learner.connector.append(BatchAxes(sizes=[-1, 1]))
    with pytest.raises(ColumnError, match="seq_lens"):
        algo.train()
    algo.stop()
