"""Sequences of a train batch, against stepping through every episode by hand with the module that acted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

GAMMA, LAMBDA = 0.9, 0.8
FRAGMENTS = (7, 1, 26, 2, 40)  # in vector steps; an episode has 13 at most


class Stepper:
    """Every episode seen so far, put through the module one observation at a time from its very start."""

    def __init__(self, step, module):
        self.step, self.module, self.observations = step, module, {}

    def of(self, chunk):
        """Logits and values of the chunk's own observations, the last one included; both [len(chunk) + 1, ...]."""
        whole = [*self.observations.get(chunk.id_, [])[: chunk.t_started], *chunk.get_observations()]
        self.observations[chunk.id_] = whole
        state, logits, values = self.module.get_initial_state(), [], []
        for obs in whole:
            row, value, state = self.step(self.module, obs, state)
            logits.append(row)
            values.append(value)
        return torch.stack(logits[chunk.t_started :]), np.array(values[chunk.t_started :])


def slow_advantages(rewards, values, terminated):
    """Generalized advantage estimation from its definition, in double precision."""
    values = [*values[:-1], 0.0 if terminated else values[-1]]
    deltas = [reward + GAMMA * after - now for reward, now, after in zip(rewards, values, values[1:])]
    return [sum((GAMMA * LAMBDA) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def rows_of(column, chunks, max_seq_len):
    """A padded column [B, T, ...] as one array per chunk, bootstrap row last; what is padding must be zero."""
    start = 0
    for chunk in chunks:
        count = -(-(len(chunk) + 1) // max_seq_len)
        rows = column[start : start + count].flatten(0, 1)
        yield rows[: len(chunk) + 1]
        start += count
    assert start == len(column)


CASES = [
    *itertools.product(["lstm"], ["NEXT_STEP"], [1, 13, 20]),
    *itertools.product(["lstm"], ["NEXT_STEP", "SAME_STEP", "DISABLED"], [4]),
    *(("gru", "SAME_STEP", 5), ("window", "NEXT_STEP", 3), ("window", "DISABLED", 20), ("exact", "SAME_STEP", 1)),
]


@pytest.mark.parametrize(("kind", "mode", "max_seq_len"), CASES)
def test_training_sees_what_acting_saw(cart_pole, step, kind, mode, max_seq_len):
    config = cart_pole.config(kind, num_envs=3, max_seq_len=max_seq_len).training(gamma=GAMMA, lambda_=LAMBDA)
    runner = cart_pole.runner(config, mode)
    module = runner.module
    pipeline = config.build_learner_connector(*runner.spaces["__env_single__"])
    config.extend_learner_connector(pipeline)
    stepper, lengths = Stepper(step, module), []
    for steps in FRAGMENTS:
        chunks = runner.sample(num_timesteps=3 * steps)
        batch = pipeline(rl_module=module, batch={}, episodes=chunks)
        outputs, values = module.forward_train(batch), module.compute_values(batch)
        logp = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"]).logp(batch["actions"])
        mask = batch["loss_mask"]
        assert int(mask.sum()) == int(batch["seq_lens"].sum()) == sum(map(len, chunks))
        torch.testing.assert_close(logp[mask], batch["action_logp"][mask], rtol=1e-5, atol=1e-5)

        columns = (outputs["action_dist_inputs"].detach(), values.detach(), batch["value_targets"], batch["advantages"])
        rows = zip(*(rows_of(column, chunks, max_seq_len) for column in columns))
        expected, found = [], []
        for chunk, (logits, own_values, targets, advantages) in zip(chunks, rows):
            right_logits, right_values = stepper.of(chunk)
            torch.testing.assert_close(logits, right_logits, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(own_values, right_values, rtol=1e-5, atol=1e-5)
            expected += slow_advantages(chunk.get_rewards().tolist(), right_values.tolist(), chunk.is_terminated)
            np.testing.assert_allclose(targets[:-1], right_values[:-1] + expected[-len(chunk) :], rtol=1e-4, atol=1e-4)
            found += advantages[:-1].tolist()
            lengths.append(len(chunk))
        expected = (np.array(expected) - np.mean(expected)) / np.std(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert 1 in lengths and max(lengths) > 4  # some chunks have one step, some several sequences
    runner.stop()
