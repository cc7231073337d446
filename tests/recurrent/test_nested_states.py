"""States of any nesting and dtype: stored, batched, saved and trained with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.core import load_state, save_state
from epibatch.core.structs import flatten, flatten_like, map_struct
from epibatch.episodes import SingleAgentEpisode

KINDS = ["gru", "window", "exact"]


def shapes_and_types(struct):
    return map_struct(lambda leaf: (tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")), struct)


@pytest.fixture
def sampled(cart_pole):
    runners = []

    def make(kind, max_seq_len=4, num_envs=2):
        config = cart_pole.config(kind, num_envs=num_envs, max_seq_len=max_seq_len)
        runners.append(cart_pole.runner(config, "NEXT_STEP"))
        pipeline = config.build_learner_connector(*runners[-1].spaces["__env_single__"])
        chunks = [chunk for _ in range(3) for chunk in runners[-1].sample(num_timesteps=15)]
        return runners[-1].module, pipeline, chunks

    yield make
    for runner in runners:
        runner.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_and_batches_keep_structure_shapes_and_types(sampled, kind):
    module, pipeline, chunks = sampled(kind)
    expected = shapes_and_types(module.get_initial_state())
    batch = pipeline(rl_module=module, batch={}, episodes=chunks)
    assert shapes_and_types(map_struct(lambda leaf: leaf[0], batch["state_in"])) == expected
    for chunk in chunks:
        state = chunk.get_extra_model_outputs("state_out", -1)
        assert shapes_and_types(map_struct(np.asarray, state)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_state_in_is_what_was_recorded_before_each_sequence(sampled, kind):
    module, pipeline, chunks = sampled(kind, max_seq_len=4)
    batch = pipeline(rl_module=module, batch={}, episodes=chunks)
    initial, form = flatten(module.get_initial_state())
    row = fresh = 0
    for chunk in chunks:
        for start in range(0, len(chunk), 4):
            expected = initial
            if chunk.t_started + start > 0:
                before = chunk.get_extra_model_outputs("state_out", start - 1, neg_index_as_lookback=True)
                expected = flatten_like(form, before)
            for leaf, wanted in zip(flatten_like(form, batch["state_in"]), expected):
                np.testing.assert_array_equal(leaf[row], np.asarray(wanted))
            fresh += expected is initial
            row += 1
    assert row == len(batch["seq_lens"]) > fresh > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_saved_with_its_states(sampled, tmp_path, kind):
    module, pipeline, chunks = sampled(kind)
    copies = []
    for number, chunk in enumerate(chunks):
        state = load_state(save_state(tmp_path / str(number), chunk.get_state()))
        copies.append(SingleAgentEpisode.from_state(state))
    one, other = (pipeline(rl_module=module, batch={}, episodes=episodes) for episodes in (chunks, copies))
    assert shapes_and_types(one["state_in"]) == shapes_and_types(other["state_in"])
    for a, b in zip(flatten(one)[0], flatten(other)[0]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["lstm", *KINDS])
def test_a_restored_run_goes_on_bit_for_bit(cart_pole, tmp_path, kind):
    def weights(algorithm):
        return [value.clone() for value in algorithm.get_module().state_dict().values()]

    config = cart_pole.config(kind, num_envs=2, max_seq_len=5)
    config.training(train_batch_size=60, minibatch_size=20, num_epochs=2, lr=1e-2)
    straight = config.build_algo()
    start = weights(straight)
    straight.train()
    straight.save_to_path(tmp_path / "saved", end_episodes=True)
    straight.train()
    restored = config.build_algo()
    restored.restore_from_path(tmp_path / "saved")
    restored.train()
    assert all(torch.equal(a, b) for a, b in zip(weights(straight), weights(restored)))
    assert not any(torch.equal(a, b) for a, b in zip(start, weights(straight)))
    straight.stop()
    restored.stop()


def test_a_float64_state_becomes_float32_like_every_column(cart_pole):
    config = cart_pole.config("exact", num_envs=2, max_seq_len=4)
    runner = cart_pole.runner(config, "NEXT_STEP")
    state = runner.module.get_initial_state()
    state["parts"][1]["sum"] = state["parts"][1]["sum"].double()
    runner.module.get_initial_state = lambda: state
    chunk = runner.sample(num_timesteps=10)[0]
    assert chunk.get_extra_model_outputs("state_out", 0)["parts"][1]["sum"].dtype == np.float32
    runner.stop()
