"""Training on sequences that end in any way sees what acting saw; minibatches draw what carries loss."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import random_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.padding import pad, unpad
from epibatch.core.rl_module import default_module_spec
from epibatch.core.sequence_ends import sequence_layout, without_burn_in
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_envs import TurnsEnv
from fixture_episodes import leaves

LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 6}
WITHOUT = [(end, 0) for end in ("pad", "drop", "truncate", "overlap", "continue")]
ENDS = [*WITHOUT, ("pad", 3), ("overlap", 2), ("drop", 1)]


def config_of(cart_pole, end, burn_in, max_seq_len=5):
    config = cart_pole.config("lstm", num_envs=3, max_seq_len=max_seq_len)
    model = {**LSTM, "max_seq_len": max_seq_len, "sequence_end": end, "burn_in": burn_in}
    return config.rl_module(model_config=model)


def pipeline_of(config, runner):
    pipeline = config.build_learner_connector(*runner.spaces["__env_single__"])
    config.extend_learner_connector(pipeline)
    return pipeline


def steps_kept(lengths, end, own):
    """Which steps of all chunks carry loss: the plain loop."""
    kept = []
    for length in lengths:
        whole = length // own * own
        keep = {"drop": whole, "truncate": min(length, own)}.get(end, length)
        kept += [True] * keep + [False] * (length - keep)
    return np.array(kept)


@pytest.mark.parametrize(("end", "burn_in"), ENDS[1:])
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_logits_values_and_advantages_are_those_of_acting(cart_pole, end, burn_in, mode):
    config, plain = config_of(cart_pole, end, burn_in), config_of(cart_pole, "pad", 0)
    runner = cart_pole.runner(config, mode)
    module, padding = runner.module, cart_pole.runner(plain, mode).module
    padding.load_state_dict(module.state_dict())
    for steps in (7, 1, 26, 40):
        chunks = runner.sample(num_timesteps=3 * steps)
        batch = pipeline_of(config, runner)(rl_module=module, batch={}, episodes=chunks)
        right = pipeline_of(plain, runner)(rl_module=padding, batch={}, episodes=chunks)
        counts = [len(chunk) + 1 for chunk in chunks]
        layout = sequence_layout(counts, 5, end=end, burn_in=burn_in, bootstrapped=True)
        layout, whole = without_burn_in(layout, burn_in), sequence_layout(counts, 5)
        real = unpad(right["loss_mask"].numpy(), whole)
        assert batch["loss_mask"].numpy()[layout.loss].sum() == batch["loss_mask"].sum()
        loss = unpad(batch["loss_mask"].numpy(), layout)
        np.testing.assert_array_equal(loss[real], steps_kept(map(len, chunks), end, 5 - burn_in))
        assert not loss[~real].any()

        outputs = module.forward_train(batch)["action_dist_inputs"].detach()
        logp = module.get_train_action_dist_cls().from_logits(outputs).logp(batch["actions"])
        mask = batch["loss_mask"]
        torch.testing.assert_close(logp[mask], batch["action_logp"][mask], rtol=1e-4, atol=1e-4)
        values = unpad(module.compute_values(batch).detach().numpy(), layout)
        expected = unpad(padding.compute_values(right).detach().numpy(), whole)
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4)
        targets = unpad(batch["value_targets"].numpy(), layout)[loss]
        np.testing.assert_allclose(targets, unpad(right["value_targets"].numpy(), whole)[loss], rtol=1e-3, atol=1e-3)
    runner.stop()


CHUNKS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=5)


def chunks_of(cuts, seed):
    """Episodes cut in two where a place is within; observations are nested, states recorded."""
    rng, made = np.random.default_rng(seed), []
    for number, (length, cut) in enumerate(cuts):
        episode = SingleAgentEpisode(
            id_=str(number),
            observations=[{"a": rng.normal(size=2).astype(np.float32), "b": (int(i),)} for i in range(length + 1)],
            actions=list(rng.integers(2, size=length)),
            rewards=list(rng.normal(size=length)),
            extra_model_outputs={
                "state_out": [{"h": rng.random(3, "f4"), "c": np.full(3, i, "f4")} for i in range(length)]
            },
            terminated=bool(rng.integers(2)),
            len_lookback_buffer=0,
        )
        if 0 < cut < length:
            made += [episode[:cut], episode.slice(slice(cut, None), len_lookback_buffer=1)]
        else:
            made.append(episode)
    return made


@given(CHUNKS, st.integers(1, 7), st.sampled_from(ENDS), st.booleans(), st.integers(0, 9))
@settings(max_examples=random_examples(20))
def test_every_leaf_comes_back_bit_by_bit_however_episodes_are_cut(cuts, steps, way, ppo, seed):
    end, burn_in = way[0], min(way[1], steps - 1)
    config = PPOConfig()
    spaces = default_spaces()
    config.rl_module(model_config={**LSTM, "lstm_cell_size": 3, "max_seq_len": steps, "sequence_end": end})
    module = default_module_spec(*spaces, {**config.model_config, "burn_in": burn_in}).build()
    chunks = chunks_of(cuts, seed)
    counts = [len(chunk) + ppo for chunk in chunks]
    layout = sequence_layout(counts, steps, end=end, burn_in=burn_in, bootstrapped=ppo)
    if not layout.num_sequences:
        return
    pipeline = config.build_learner_connector(*spaces)
    if ppo:
        config.extend_learner_connector(pipeline)
    assert isinstance(pipeline, LearnerConnectorPipeline)
    batch = pipeline(rl_module=module, batch={}, episodes=chunks)

    def rows_of(chunk):
        rewards = [chunk.get_rewards(), np.zeros(int(ppo))]
        return [*leaves(chunk.get_observations(slice(0, len(chunk) + ppo))), np.concatenate(rewards)]

    for i, leaf in enumerate([*leaves(batch["obs"]), batch["rewards"]]):
        rows = np.concatenate([rows_of(chunk)[i] for chunk in chunks]).astype(leaf.numpy().dtype)
        assert leaf.numpy().tobytes() == pad(rows, layout).tobytes()
        assert unpad(leaf.numpy(), layout).tobytes() == rows[layout.kept_rows].tobytes()
    for b, (chunk, at) in enumerate(zip(layout.sequence_chunks, layout.offsets)):
        own, t = chunks[chunk], chunks[chunk].t_started + at
        before = np.zeros(3, np.float32)
        if t:
            before = own.get_extra_model_outputs("state_out", int(at) - 1, neg_index_as_lookback=True)["h"]
        np.testing.assert_array_equal(batch["state_in"]["h"][b], before)


def default_spaces():
    box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return gym.spaces.Dict(a=box, b=gym.spaces.Tuple([gym.spaces.Discrete(20)])), gym.spaces.Discrete(2)


MODELS = {
    "packed": {**LSTM, "max_seq_len": 5, "sequence_end": "continue"},
    "burned": {**LSTM, "max_seq_len": 6, "sequence_end": "overlap", "burn_in": 2},
    "plain": {"fcnet_hiddens": [8]},
}


def test_several_modules_with_sequences_of_their_own():
    config = PPOConfig().environment(TurnsEnv, env_config={"lengths": (8, 14)}).debugging(seed=1)
    config.multi_agent(
        policies={name: {"model_config": model} for name, model in MODELS.items()},
        policy_mapping_fn=lambda agent_id, episode, **kwargs: dict(zip("abc", MODELS))[agent_id],
    )
    config.training(train_batch_size=60, minibatch_size=30, num_epochs=2)
    algo = config.build_algo()
    chunks = algo.env_runner.sample(num_timesteps=150)
    assert all(isinstance(chunk, MultiAgentEpisode) for chunk in chunks)
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=chunks, shared_data={})
    rows = {
        agent: [chunk.agent_episodes[agent] for chunk in chunks if agent in chunk.agent_episodes] for agent in "abc"
    }
    for agent, name in zip("abc", MODELS):
        assert int(batch[name]["loss_mask"].sum()) == sum(map(len, rows[agent])) > 12
    assert batch["packed"]["obs"].shape[1] == 5 and batch["packed"]["resets"].any()
    assert batch["burned"]["obs"].shape[1] == 4 and "resets" not in batch["burned"]
    assert batch["plain"]["obs"].ndim == 2
    layout = sequence_layout([len(row) + 1 for row in rows["a"]], 5, end="continue")
    obs = np.concatenate([row.get_observations() for row in rows["a"]])
    assert unpad(batch["packed"]["obs"].numpy(), layout).tobytes() == obs.tobytes()
    before = {name: [leaf.clone() for leaf in algo.learner.module[name].parameters()] for name in MODELS}
    algo.train()
    for name, old in before.items():
        assert not all(torch.equal(one, other) for one, other in zip(old, algo.learner.module[name].parameters()))
    algo.stop()
