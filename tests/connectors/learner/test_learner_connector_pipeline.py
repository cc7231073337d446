"""From episodes to a train batch: the default order as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import EpibatchError

TYPES = {
    "obs": torch.float32,
    "actions": torch.int64,
    "rewards": torch.float32,
    "terminateds": torch.bool,
    "truncateds": torch.bool,
    "action_logp": torch.float32,
    "loss_mask": torch.bool,
    "advantages": torch.float32,
    "value_targets": torch.float32,
    "seq_lens": torch.int64,
}


def run(lab, episodes, *, ppo=False, state=0, front=(), **keywords):
    pieces = [*front, *lab.defaults("learner", ppo)]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(state=state, multi=True), **keywords)
    assert list(batch) == ["default_policy"]
    return batch["default_policy"]


def two_chunks(lab, state=0):
    return [
        lab.episode("a", 5, end="terminated", state=state),
        lab.episode("b", 3, t_started=2, lookback=1, state=state, offset=100),
    ]


def test_stateless_batch(lab):
    batch = run(lab, two_chunks(lab))
    assert {name: column.tolist() for name, column in batch.items()} == {
        "obs": [[t, t + 10] for t in (0, 1, 2, 3, 4, 102, 103, 104)],
        "actions": [0, 1, 0, 1, 0, 0, 1, 0],
        "rewards": [t + 0.5 for t in (0, 1, 2, 3, 4, 102, 103, 104)],
        "terminateds": [False] * 4 + [True] + [False] * 3,
        "truncateds": [False] * 8,
        "action_logp": [-t for t in (0, 1, 2, 3, 4, 102, 103, 104)],
    }


def test_recurrent_batch(lab):
    batch = run(lab, two_chunks(lab, 2), state=2)
    assert batch["seq_lens"].tolist() == [4, 1, 3]
    assert batch["rewards"].tolist() == [[0.5, 1.5, 2.5, 3.5], [4.5, 0, 0, 0], [102.5, 103.5, 104.5, 0]]
    assert batch["loss_mask"].tolist() == [[True] * 4, [True] + [False] * 3, [True] * 3 + [False]]
    assert batch["state_in"]["h"].tolist() == [[-1.0, -1.0], [3.25, 3.25], [101.25, 101.25]]
    assert batch["obs"].shape == (3, 4, 2)


@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("state", [0, 2])
def test_types_and_columns(lab, state, ppo):
    batch = run(lab, two_chunks(lab, state), state=state, ppo=ppo)
    expected = {"obs", "actions", "rewards", "terminateds", "truncateds", "action_logp"}
    expected |= {"loss_mask", "advantages", "value_targets"} if ppo else set()
    expected |= {"seq_lens", "loss_mask", "state_in"} if state else set()
    assert set(batch) == expected
    for name in expected - {"state_in"}:
        assert batch[name].dtype == TYPES[name], name
        assert len(batch[name]) == len(batch["obs"]), name


def test_running_twice_gives_the_same_batch(lab):
    episodes = two_chunks(lab, 2)
    first, second = (run(lab, episodes, state=2, ppo=True) for _ in range(2))
    for name in set(first) - {"state_in"}:
        assert torch.equal(first[name], second[name]), name


def test_user_columns_pre_empt_the_defaults(lab):
    def mine(batch, episodes):
        for episode in episodes:
            lab.user.add_n_batch_items(batch, "rewards", np.full(len(episode), 7.0), len(episode), episode)

    batch = run(lab, two_chunks(lab), front=[lab.user(mine)])
    assert batch["rewards"].tolist() == [7.0] * 8


def test_a_piece_with_one_row_per_episode_is_told_what_is_missing(lab):
    def stacking(batch, episodes):
        for episode in episodes:
            lab.user.add_batch_item(batch, "obs", np.zeros((2, 2), np.float32), episode)

    with pytest.raises(EpibatchError, match="obs") as raised:
        run(lab, two_chunks(lab), front=[lab.user(stacking)])
    message = str(raised.value)
    assert "'a'" in message
    assert "expected: 5" in message
    assert "found:    1" in message


def test_zero_length_episodes_are_named(lab):
    with pytest.raises(EpibatchError, match="empty_one"):
        run(lab, [lab.episode("a", 2), lab.episode("empty_one", 0, numpy=False)])


def test_no_episodes_are_an_error(lab):
    with pytest.raises(EpibatchError, match="at least one episode"):
        run(lab, [])


def test_an_empty_pipeline_keeps_its_spaces(lab):
    pipeline = LearnerConnectorPipeline(lab.obs_space, lab.act_space, connectors=None)
    assert (pipeline.observation_space, pipeline.action_space) == (lab.obs_space, lab.act_space)
