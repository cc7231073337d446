"""V-trace against a loop in plain Python, over chunks of any lengths and ends, recurrent ones included."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from epibatch.connectors.learner import GeneralAdvantageEstimation, VTrace, default_pipeline
from epibatch.core import KEPT_BY_RULES
from epibatch.core.errors import ColumnError, ConfigError, PipelineError
from epibatch.core.rl_module import DefaultActorCritic
from epibatch.episodes import SingleAgentEpisode

BOX, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3, start=1)
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
LENGTHS = st.one_of(st.integers(1, 6), st.sampled_from([31, 32, 33, 64, 70]))
CHUNKS = st.lists(st.tuples(LENGTHS, st.sampled_from(["", "term", "trunc"])), min_size=1, max_size=5)


def network(seed, **options):
    torch.manual_seed(seed)
    net = DefaultActorCritic(
        observation_space=BOX, action_space=ACTIONS, model_config={"fcnet_hiddens": [5], **options}
    )
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.7
    return net


def chunk(rng, steps, end, with_state):
    """A chunk with observations, rewards and outputs at random."""
    outputs = {"action_logp": np.log(rng.uniform(0.05, 1.0, steps)).astype(np.float32)}
    if with_state:
        outputs["state_out"] = {name: rng.normal(size=(steps, 4)).astype(np.float32) for name in ("h", "c")}
    return SingleAgentEpisode(
        observations=rng.uniform(-1, 1, (steps + 1, 3)).astype(np.float32), actions=rng.integers(1, 4, steps),
        rewards=rng.normal(size=steps), extra_model_outputs=outputs, terminated=end == "term",
        truncated=end == "trunc", len_lookback_buffer=0,
    )  # fmt: skip


def outputs_of(net, episode):
    """Values of all observations and log-probabilities of all actions, step by step."""
    obs, actions = episode.get_observations(), episode.get_actions()
    states = episode.get_extra_model_outputs("state_out") if net.is_stateful() else None
    state = {name: torch.zeros(1, 4) for name in ("h", "c")}
    values, logps = [], []
    for t in range(len(episode) + 1):
        batch = {"obs": torch.tensor(obs[t])[None]}
        if states is not None:
            if t and t % LSTM["max_seq_len"] == 0:  # the next sequence begins with what was recorded
                state = {name: torch.tensor(leaf[t - 1])[None] for name, leaf in states.items()}
            batch = {"obs": batch["obs"][None], "state_in": state}
        with torch.no_grad():
            made = net.forward_train(batch)
            values.append(float(net.compute_values(batch).reshape(())))
        state = made.get("state_out", state)
        if t < len(episode):
            logps.append(float(made["action_dist_inputs"].reshape(-1).log_softmax(-1)[int(actions[t]) - 1]))
    return values, logps


def loop(episode, values, logps, gamma, rho_bar, pg_bar):
    """Equations 1 and 4 of Espeholt et al. (2018), from the last step to the first."""
    rewards, recorded = episode.get_rewards().tolist(), episode.get_extra_model_outputs("action_logp").tolist()
    after = 0.0 if episode.is_terminated else values[-1]
    target, advantages, targets = after, [], []
    for t in reversed(range(len(episode))):
        ratio = math.exp(logps[t] - recorded[t])
        advantages.append(min(pg_bar, ratio) * (rewards[t] + gamma * target - values[t]))
        error = min(rho_bar, ratio) * (rewards[t] + gamma * after - values[t])
        target = values[t] + error + gamma * min(1.0, ratio) * (target - after)
        after = values[t]
        targets.append(target)
    return advantages[::-1], targets[::-1]


def made(net, episodes, piece, **shared_data):
    pipeline = default_pipeline(BOX, ACTIONS, advantages=True)
    pipeline.remove("GeneralAdvantageEstimation")
    pipeline.append(piece)
    return pipeline(rl_module=net, batch={}, episodes=episodes, shared_data=dict(shared_data))


@settings(deadline=None, max_examples=60)
@given(
    CHUNKS, st.booleans(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.5, 1.0, 3.0, math.inf]),
    st.sampled_from([0.7, 1.0, math.inf]), st.integers(0, 2**31),
)  # fmt: skip
def test_vtrace_is_that_of_a_slow_loop(chunks, recurrent, gamma, rho, pg, seed):
    rng, net = np.random.default_rng(seed), network(seed, **(LSTM if recurrent else {}))
    episodes = [chunk(rng, steps, end, recurrent) for steps, end in chunks]
    batch = made(net, episodes, VTrace(gamma=gamma, clip_rho_threshold=rho, clip_pg_rho_threshold=pg))
    expected = [loop(episode, *outputs_of(net, episode), gamma, rho, pg) for episode in episodes]
    mask = batch["loss_mask"]
    for name, parts in zip(("advantages", "value_targets"), zip(*expected)):
        numbers = np.concatenate(parts)
        scale = max(1.0, np.abs(numbers).max())
        np.testing.assert_allclose(batch[name][mask] / scale, numbers / scale, rtol=0, atol=1e-6)
        assert not batch[name].requires_grad
    assert not batch["advantages"][~mask].any()


def test_with_the_policy_that_acted_it_is_the_advantage_of_whole_returns():
    rng, net = np.random.default_rng(0), network(0)
    episodes = [chunk(rng, steps, end, False) for steps, end in ((5, "term"), (40, ""), (3, "trunc"))]
    for episode in episodes:
        episode.set_extra_model_outputs(key="action_logp", new_data=np.array(outputs_of(net, episode)[1], np.float32))
    whole = made(net, episodes, GeneralAdvantageEstimation(gamma=0.9, lambda_=1.0, standardize_advantages=False))
    corrected = made(net, episodes, VTrace(gamma=0.9))
    for name in ("advantages", "value_targets"):
        torch.testing.assert_close(corrected[name], whole[name], rtol=1e-5, atol=1e-5)


def test_the_target_is_what_the_rule_keeps():
    rng, net, target = np.random.default_rng(0), network(0), network(1)
    episodes = [chunk(rng, 6, "", False)]
    piece = VTrace(gamma=0.9, target="target", per_module={"default_policy": {"clip_rho_threshold": 2.0}})
    batch = made(net, episodes, piece, **{KEPT_BY_RULES: {"default_policy": nn.ModuleDict({"target": target})}})
    values, logps = outputs_of(net, episodes[0])[0], outputs_of(target, episodes[0])[1]
    advantages, targets = loop(episodes[0], values, logps, 0.9, 2.0, 1.0)
    np.testing.assert_allclose(batch["advantages"][:-1], advantages, atol=1e-5)
    np.testing.assert_allclose(batch["value_targets"][:-1], targets, atol=1e-5)
    alone = made(net, episodes, piece)
    torch.testing.assert_close(
        alone["value_targets"], made(net, episodes, VTrace(gamma=0.9, clip_rho_threshold=2.0))["value_targets"]
    )
    with pytest.raises(ConfigError, match=r"target of module 'default_policy'[\s\S]*'target'; it keeps critic"):
        made(net, episodes, piece, **{KEPT_BY_RULES: {"default_policy": nn.ModuleDict({"critic": target})}})


class WithoutPolicy(nn.Linear):
    def compute_values(self, batch, embeddings=None):
        return self(batch["obs"]).squeeze(-1)


def test_wrong_inputs_are_named():
    rng, net = np.random.default_rng(0), network(0)
    episode = chunk(rng, 3, "", False)
    plain = SingleAgentEpisode(
        observations=episode.get_observations(), actions=[1, 1, 1], rewards=[0.0] * 3, len_lookback_buffer=0
    )
    with pytest.raises(ColumnError, match=r"VTrace[\s\S]*'action_logp'[\s\S]*episodes that the module acted in"):
        made(net, [plain], VTrace())
    with pytest.raises(PipelineError, match=r"a module with forward_train, which gives action_dist_inputs"):
        made(WithoutPolicy(3, 1), [episode], VTrace())
    episode.set_extra_model_outputs(key="action_logp", new_data=np.array([0.0, np.nan, 0.0], np.float32))
    with pytest.raises(ColumnError, match=r"column 'action_logp'[\s\S]*step 1[\s\S]*nan"):
        made(net, [episode], VTrace())
    for wrong in ({"gamma": 2.0}, {"clip_rho_threshold": -1.0}, {"per_module": {"a": {"clip_pg_rho_threshold": -1.0}}}):
        with pytest.raises(ConfigError, match=next(iter(wrong)) if "per_module" not in wrong else "clip_pg"):
            VTrace(**wrong)
    with pytest.raises(ConfigError, match=r"module 'a'[\s\S]*lambda_"):
        VTrace(per_module={"a": {"lambda_": 1.0}})
