"""States that a runner carries through its episodes, against a loop that calls the module step by step."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.structs import flatten, flatten_like

FRAGMENTS = (1, 6, 15, 1, 24, 30)  # in vector steps


def whole_episodes(chunks):
    """Chunks of the same episode put together."""
    by_id = {}
    for chunk in chunks:
        if chunk.id_ in by_id:
            by_id[chunk.id_].concat_episode(chunk)
        else:
            by_id[chunk.id_] = chunk.slice(slice(None))
    return list(by_id.values())


def same_state(found, expected, exact):
    leaves, form = flatten(expected)
    for own, wanted in zip(flatten_like(form, found), leaves):
        assert own.shape == tuple(wanted.shape)
        assert np.dtype(own.dtype) == wanted.numpy().dtype
        if exact:
            np.testing.assert_array_equal(own, wanted.numpy())
        else:
            np.testing.assert_allclose(own, wanted.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize(("kind", "num_envs"), [("lstm", 1), ("lstm", 3), ("gru", 1), ("window", 3), ("exact", 3)])
def test_states_and_outputs_are_those_of_a_loop_by_hand(cart_pole, by_hand, mode, kind, num_envs):
    config = cart_pole.config(kind, num_envs=num_envs, max_seq_len=5)
    runner = cart_pole.runner(config, mode)
    chunks = [chunk for steps in FRAGMENTS for chunk in runner.sample(num_timesteps=steps * num_envs, explore=False)]
    found = whole_episodes(chunks)
    assert len({chunk.id_ for chunk in chunks}) < len(chunks) and any(chunk.t_started for chunk in chunks)
    loops = [by_hand(runner.module, number) for number in range(num_envs)]
    # Rows of a batch of one are computed as the loop computes them: bit by bit. Larger batches round differently.
    exact = kind == "exact" or num_envs == 1
    played = 0
    for loop in loops:
        while True:
            expected = loop.episode()
            own = [episode for episode in found if np.array_equal(episode.get_observations(0), expected.obs[0])]
            if not own:
                break
            (episode,), steps = own, len(own[0])
            assert steps <= len(expected.actions) and episode.is_done == (steps == len(expected.actions))
            assert episode.get_actions().tolist() == expected.actions[:steps]
            np.testing.assert_array_equal(episode.get_observations(), expected.obs[: steps + 1])
            for t in range(steps):
                same_state(episode.get_extra_model_outputs("state_out", t), expected.states[t], exact)
                logits = episode.get_extra_model_outputs("action_dist_inputs", t)
                np.testing.assert_allclose(logits, expected.logits[t].numpy(), rtol=0 if exact else 1e-6, atol=1e-6)
            played += steps
        loop.env.close()
    assert played == sum(map(len, chunks)) >= sum(FRAGMENTS) * num_envs
    runner.stop()
