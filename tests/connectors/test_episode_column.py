"""Train batches of random episodes, beside the same batches made step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.episodes import SingleAgentEpisode

STATE, STEPS = 3, 4


def random_rows(kind, count, rng):
    if kind == "nested":
        return [{"a": rng.standard_normal(2).astype(np.float32), "b": (np.int8(i),)} for i in range(count)]
    return [rng.standard_normal(2).astype(np.float32) for _ in range(count)]


def random_episode(name, kind, rng, *, grown):
    """A chunk with lookback, built of data or grown step by step."""
    before, length = int(rng.integers(1, 4)), int(rng.integers(1, 14))
    total, started = before + length, int(rng.choice([0, 40]))
    if not started:
        before, total = 0, length
    observations = random_rows(kind, total + 1, rng)
    rewards = [int(r) for r in rng.integers(0, 9, total)] if rng.random() < 0.5 else rng.standard_normal(total).tolist()
    actions = [np.int64(a) for a in rng.integers(0, 2, total)]
    states = [{"h": row} for row in rng.standard_normal((total, STATE)).astype(np.float32)]
    logps = list(rng.standard_normal(total).astype(np.float32))
    end = rng.choice(["terminated", "truncated", "none"])
    if not grown:
        return SingleAgentEpisode(
            id_=name,
            observations=observations,
            actions=actions,
            rewards=rewards,
            extra_model_outputs={"state_out": states, "action_logp": logps},
            t_started=started,
            len_lookback_buffer=before,
            terminated=end == "terminated",
            truncated=end == "truncated",
        )
    episode = SingleAgentEpisode(id_=name)
    episode.add_env_reset(observations[0])
    for t in range(total):
        if t == before and started:
            episode.t_started = started - before
            episode = episode.cut(before)
        episode.add_env_step(
            observations[t + 1],
            actions[t],
            rewards[t],
            terminated=end == "terminated" and t == total - 1,
            truncated=end == "truncated" and t == total - 1,
            extra_model_outputs={"state_out": states[t], "action_logp": logps[t]},
        )
    return episode


def step_by_step(episodes, recurrent, ppo):
    """Lists of rows per column; recurrent ones in sequences filled up with None."""
    columns: dict[str, list] = {}
    states, lens = [], []

    def add(name, value):
        columns.setdefault(name, []).append(value)

    for episode in episodes:
        n = len(episode)
        for t in range(n + ppo):
            extra, at = t == n, min(t, n - 1)
            if recurrent and t % STEPS == 0:
                fresh = episode.t_started == 0 and t == 0
                if fresh:
                    states.append(np.full(STATE, -1.0))
                else:
                    states.append(episode.get_extra_model_outputs("state_out", t - 1, neg_index_as_lookback=True)["h"])
                lens.append(0)
            if recurrent:
                lens[-1] += not extra
            add("obs", episode.get_observations(t))
            add("actions", episode.get_actions(at))
            add("rewards", 0.0 if extra else episode.get_rewards(at))
            add("action_logp", episode.get_extra_model_outputs("action_logp", at))
            add("terminateds", t == n - 1 and episode.is_terminated)
            add("truncateds", t == n - 1 and (not episode.is_terminated if ppo else episode.is_truncated))
            if ppo or recurrent:
                add("loss_mask", not extra)
        while recurrent and len(columns["obs"]) % STEPS:
            for rows in columns.values():
                rows.append(None)
    return columns, states, lens


def leaves(value, path=""):
    if isinstance(value, dict):
        return {k: v for key, own in value.items() for k, v in leaves(own, f"{path}/{key}").items()}
    if isinstance(value, tuple):
        return {k: v for i, own in enumerate(value) for k, v in leaves(own, f"{path}/{i}").items()}
    return {path: value}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["plain", "nested"])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("grown", [False, True])
def test_train_batch(lab, seed, kind, recurrent, ppo, grown):
    rng = np.random.default_rng([seed, ppo, grown])
    episodes = [random_episode(f"e{i}", kind, rng, grown=grown) for i in range(int(rng.integers(1, 6)))]
    pieces = lab.defaults("learner", ppo)
    if ppo:
        pieces.pop()  # advantages are another test's
    module = lab.module(state=STATE if recurrent else 0, max_seq_len=STEPS)
    batch = lab.run("learner", pieces, episodes, rl_module=module)
    expected, states, lens = step_by_step(episodes, recurrent, ppo)
    for name, rows in expected.items():
        found = leaves(batch[name])
        first = leaves(rows[0])
        assert found.keys() == first.keys()
        for path, tensor in found.items():
            if recurrent:
                assert tensor.shape[1] == STEPS
                tensor = tensor.flatten(0, 1)
            assert len(tensor) == len(rows), name
            for own, row in zip(tensor, rows):
                wanted = 0 if row is None else leaves(row)[path]
                np.testing.assert_array_equal(own.numpy(), np.asarray(wanted).astype(own.numpy().dtype))
    assert ("state_in" in batch) is recurrent
    if recurrent:
        np.testing.assert_array_equal(batch["state_in"]["h"].numpy(), np.stack(states))
        assert batch["seq_lens"].tolist() == lens


def test_a_later_write_to_the_episodes_does_not_reach_the_batch(lab):
    episodes = [lab.episode("a", 5), lab.episode("b", 3)]
    pieces = lab.defaults("learner")[:2]

    def overwrite(batch, episodes):
        for episode in episodes:
            episode.set_rewards(new_data=np.full(len(episode), 77.0))
            episode.get_observations()[:] = 77

    batch = lab.run("learner", [*pieces, lab.user(overwrite)], episodes)
    assert batch["rewards"][("a",)][0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert batch["obs"][("b",)][0][:, 0].tolist() == [0, 1, 2]


def test_batches_of_chunks_whose_types_differ_take_the_wider(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3, rewards=[1, 2, 3])]
    pieces = lab.defaults("learner", True)[:-2]
    rewards = lab.run("learner", pieces, episodes[::-1], rl_module=lab.module())["rewards"]
    assert rewards.dtype == np.float64 and rewards.tolist() == [1, 2, 3, 0, 0.5, 1.5, 0]
    assert isinstance(rewards, np.ndarray) and not torch.is_tensor(rewards)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("module", [False, True])
def test_float64_is_halved_where_the_next_piece_would_and_nowhere_else(lab, between, module):
    episodes = [lab.episode("a", 2, rewards=[0.1, 1e-300]), lab.episode("b", 3, rewards=[1, 2**60, 3])]
    seen = []
    pieces = lab.defaults("learner")
    if between:
        pieces.insert(-1, lab.user(lambda batch, episodes: seen.append(batch["rewards"].dtype)))
    keywords = {"rl_module": lab.module()} if module else {}
    for given in (episodes, episodes[:1], episodes[1:]):
        rewards = lab.run("learner", pieces, given, **keywords)["rewards"]
        rows = np.concatenate([one.get_rewards() for one in given])
        expected = rows.astype(np.float32) if module and rows.dtype == np.float64 else rows
        assert np.asarray(rewards).dtype == expected.dtype and rewards.tolist() == expected.tolist()
    assert seen == [np.float64, np.float64, np.int64] * between
