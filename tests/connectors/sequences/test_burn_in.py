"""States behind rows that are there for them alone, against stepping through these rows by hand."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.connectors.sequences import BurnIn
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.padding import unpad
from epibatch.core.sequence_ends import sequence_layout, without_burn_in

OBS, ACT = gym.spaces.Box(-9, 9, (4,), np.float32), gym.spaces.Discrete(2)


def recorded_before(episode, row, start):
    """The recorded state before a row; `start` where the episode begins."""
    if row == 0:
        return start
    return {name: torch.as_tensor(leaf) for name, leaf in episode.get_extra_model_outputs("state_out", row - 1).items()}


@pytest.mark.parametrize("end", ["pad", "drop", "overlap"])
@pytest.mark.parametrize(("steps", "burn_in"), [(4, 1), (4, 3), (20, 5)])
@pytest.mark.parametrize("ppo", [False, True])
def test_states_equal_a_manual_pass_with_the_weights_of_now(played, steps, burn_in, end, ppo):
    options = {"max_seq_len": steps, "burn_in": burn_in, "sequence_end": end}
    episodes = played.episodes(played.module(seed=0), [41, 3, 8, 1, 20])
    module = played.module(seed=1, **options)  # other weights than those that acted
    batch = played.batch(module, episodes, burn_in=True, ppo=ppo)
    counts = [len(episode) + ppo for episode in episodes]
    layout = sequence_layout(counts, steps, end=end, burn_in=burn_in, bootstrapped=ppo)
    assert batch["obs"].shape[:2] == (layout.num_sequences, steps - burn_in)
    for b, (chunk, row, burned) in enumerate(zip(layout.sequence_chunks, layout.offsets, layout.burn_in)):
        episode = episodes[chunk]
        state = recorded_before(episode, row, module.get_initial_state())
        if burned:
            obs = episode.get_observations(slice(int(row), int(row + burned)))
            state = played.states(module, obs, state)[-1]
        for name in ("h", "c"):
            np.testing.assert_allclose(batch["state_in"][name][b], state[name], rtol=1e-4, atol=1e-6)
    assert not batch["state_in"]["h"].requires_grad
    assert layout.burn_in.max() == burn_in


@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("end", ["pad", "overlap"])
def test_all_columns_come_back_row_by_row(played, end, ppo):
    module = played.module(burn_in=2, sequence_end=end)
    episodes = played.episodes(module, [9, 1, 4])
    batch = played.batch(module, episodes, burn_in=True, ppo=ppo)
    plain = played.batch(played.module(), episodes, ppo=ppo)
    counts = [len(episode) + ppo for episode in episodes]
    own = without_burn_in(sequence_layout(counts, 4, end=end, burn_in=2, bootstrapped=ppo), 2)
    pad = sequence_layout(counts, 4, bootstrapped=ppo)
    for name in ("obs", "actions", "rewards", "terminateds", "action_logp", "loss_mask"):
        right = unpad(plain[name].numpy(), pad)
        found = unpad(batch[name].numpy(), own)
        assert found.tobytes() == right.tobytes(), name
    if ppo:
        # The recorded states are those of these weights, so burned-in values and advantages are the same.
        for name in ("value_targets", "advantages"):
            found, right = unpad(batch[name].numpy(), own), unpad(plain[name].numpy(), pad)
            np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
    carried = batch["loss_mask"].sum()
    assert carried == sum(map(len, episodes))


def test_states_of_next_observations_are_burned_in_with_these(played):
    module = played.module(burn_in=2)
    episodes = played.episodes(played.module(seed=4), [7])
    batch = played.batch(module, episodes, AddNextObservationsFromEpisodesToTrainBatch(), burn_in=True)
    obs = episodes[0].get_observations()
    state = recorded_before(episodes[0], 3, None)  # before the observation behind row 2, from which 2 rows are run
    expected = played.states(module, obs[3:5], state)[-1]
    layout = sequence_layout([7], 4, burn_in=2)
    assert layout.offsets.tolist() == [0, 0, 2, 4]
    np.testing.assert_allclose(batch["next_state_in"]["h"][2], expected["h"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(batch["new_obs"][2], obs[5:7])


def test_without_the_piece_rows_in_front_stay_and_carry_no_loss(played):
    module = played.module(burn_in=2)
    batch = played.batch(module, played.episodes(module, [6]))
    assert batch["obs"].shape == (3, 4, 3)
    front, behind = [True, True, False, False], [False, False, True, True]
    assert batch["loss_mask"].tolist() == [front, behind, behind]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (lambda obs: {"action_dist_inputs": obs}, "state_out"),
        (lambda obs: {"state_out": dict.fromkeys("hc", obs)}, r"state_out of shapes \[\[2, 5\], \[2, 5\]\]"),
    ],
)
def test_a_module_that_gives_no_state_is_named(played, outputs, words):
    module = played.module(burn_in=2)
    episodes = played.episodes(module, [6])
    module._forward_train = lambda batch, **kwargs: outputs(batch["obs"])
    with pytest.raises(ColumnError, match=words):
        played.batch(module, episodes, burn_in=True)


def test_sequences_of_somebody_elses_are_refused(played):
    module = played.module(burn_in=2)
    episodes = played.episodes(module, [6])
    batch = played.batch(module, episodes)
    fewer = {name: leaf[:2] if torch.is_tensor(leaf) else leaf for name, leaf in batch.items()}
    with pytest.raises(ColumnError, match="the pipeline that makes the sequences"):
        BurnIn()(rl_module=module, batch=fewer, episodes=episodes)
    with pytest.raises(ColumnError, match="loss_mask"):
        BurnIn()(rl_module=module, batch={"obs": batch["obs"], "seq_lens": batch["seq_lens"]}, episodes=episodes)


MODEL = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4], "max_seq_len": 6, "burn_in": 2}


def test_a_module_that_joins_later_is_burned_in_too():
    config = PPOConfig().environment("CartPole-v1").multi_agent(policies=["plain", "other"])
    config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "plain")
    pipeline = config.build_learner_connector(*(gym.spaces.Dict(a=space) for space in (OBS, ACT)))
    assert "burn_in" not in pipeline.names
    other = {"other": {"model_config": MODEL}, "plain": {}}
    changed = config.copy().multi_agent(policies=other)
    for _ in range(2):  # it is put there once
        changed.update_modules(pipeline)
    assert pipeline.names[-2:] == ["numpy_to_tensor", "burn_in"]


@pytest.mark.parametrize(
    ("model", "words"),
    [({"burn_in": 6}, "max_seq_len - 1 = 5"), ({"sequence_end": "continue"}, "sequence_end 'continue'")],
)
def test_a_config_says_what_does_not_fit(model, words):
    with pytest.raises(ConfigError, match=words):
        PPOConfig().environment("CartPole-v1").rl_module(model_config={**MODEL, **model}).build_algo()
