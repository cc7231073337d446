"""MARWIL, CQL and IQL: losses against loops, gradients, and what they learn from data that BC cannot."""

from __future__ import annotations

import math
import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow_but

from epibatch.algorithms import (
    Algorithm,
    BCConfig,
    CQLConfig,
    DQNConfig,
    IQLConfig,
    MARWILConfig,
    Policy,
    SACConfig,
)
from epibatch.core.errors import ConfigError, EpibatchError
from epibatch.core.rl_module import DefaultImplicitQ, DefaultQNetwork, DefaultSoftActorCritic, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3)
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
SPACES = pytest.mark.parametrize("space", [CHOICE, ACTIONS], ids=["discrete", "continuous"])
SMALL = {"fcnet_hiddens": [8]}


def transitions(space, seed=0, count=12):
    torch.manual_seed(seed)
    actions = torch.randint(3, (count,)) if space is CHOICE else torch.rand(count, 2) * 1.8 - 0.9
    return {
        "obs": torch.rand(count, 4),
        "new_obs": torch.rand(count, 4),
        "actions": actions,
        "rewards": torch.randn(count),
        "terminateds": torch.rand(count) < 0.3,
        "discounts": torch.full((count,), 0.9),
        "n_step": torch.ones(count, dtype=torch.int64),
    }


def made_with(config, kind, space):
    """A rule, a module, and what the rule keeps for it, with targets that differ from the module."""
    torch.manual_seed(1)
    net, other = (kind(observation_space=BOX, action_space=space, model_config=SMALL) for _ in range(2))
    rule = config.rule(config.settings.training)
    own = rule.make_own(net)
    own.get_submodule("target").load_state_dict(other.state_dict())
    return rule, net, own


# ---------------------------------------------------------------------------------------------- losses


@SPACES
def test_the_losses_of_iql_are_those_of_a_loop_over_rows(space):
    rule, net, own = made_with(IQLConfig().training(beta=2.0, expectile=0.8), DefaultImplicitQ, space)
    batch = transitions(space)
    made = rule.losses(batch, net, own, {})
    with torch.no_grad():
        critics, targets = (part.compute_q_values(batch, batch["actions"]) for part in (net, own["target"]))
        values, after = (net.compute_values({"obs": batch[name]}) for name in ("obs", "new_obs"))
        logits = net.forward_train(batch)["action_dist_inputs"]
        logp = net.get_train_action_dist_cls().from_logits(logits).logp(batch["actions"])
    critic = value = actor = 0.0
    for row in range(12):
        goal = float(batch["rewards"][row]) + 0.9 * float(after[row]) * (not batch["terminateds"][row])
        critic += sum((float(critics[k, row]) - goal) ** 2 for k in range(2)) / 2 / 12
        advantage = min(float(targets[0, row]), float(targets[1, row])) - float(values[row])
        value += (0.8 if advantage > 0 else 0.2) * advantage**2 / 12
        actor -= min(math.exp(2.0 * advantage), 100.0) * float(logp[row]) / 12
    assert made.losses["critic"].item() == pytest.approx(critic, rel=1e-5)
    assert made.losses["actor"].item() == pytest.approx(value + actor, rel=1e-5)
    assert made.metrics["vf_loss"].item() == pytest.approx(value, rel=1e-5)


def test_the_loss_of_marwil_is_that_of_a_loop_over_rows_with_loss():
    training = {"beta": 1.5, "vf_coeff": 0.7, "moving_average_sqd_adv_norm_start": 2.0}
    config = MARWILConfig().training(**training, moving_average_sqd_adv_norm_update_rate=0.25)
    rule = config.rule(config.settings.training)
    net = RLModuleSpec(observation_space=BOX, action_space=CHOICE, model_config=SMALL).build()
    batch = {**transitions(CHOICE), "value_targets": torch.randn(12) * 3, "loss_mask": torch.rand(12) < 0.7}
    before = rule.initial_coefficients()
    made = rule.losses(batch, net, None, before)
    with torch.no_grad():
        values = net.compute_values(batch)
        logp = net.forward_train(batch)["action_dist_inputs"].log_softmax(-1)
    rows = [row for row in range(12) if batch["loss_mask"][row]]
    advantages = [float(batch["value_targets"][row]) - float(values[row]) for row in rows]
    squares = sum(advantage**2 for advantage in advantages) / len(rows)
    norm = 2.0 + 0.25 * (squares - 2.0)
    policy = 0.0
    for row, advantage in zip(rows, advantages):
        weight = math.exp(1.5 * advantage / math.sqrt(norm))
        policy -= weight * float(logp[row, int(batch["actions"][row])]) / len(rows)
    assert made.losses["total"].item() == pytest.approx(policy + 0.7 * squares / 2, rel=1e-4)
    (after,) = rule.adapt(before, {name: float(value) for name, value in made.metrics.items()}).values()
    assert after == pytest.approx(norm, rel=1e-5)


def lowered(values, actions, temperature=1.0):
    """How much higher the soft maximum over each row's values is than the chosen one, on average."""
    rows = [
        temperature * math.log(sum(math.exp(float(value) / temperature) for value in row)) - float(row[int(action)])
        for row, action in zip(values, actions)
    ]
    return sum(rows) / len(rows)


def test_cql_of_discrete_actions_lowers_the_soft_maximum_over_all_of_them():
    settings = {"min_q_weight": 0.0, "bc_iters": 0, "temperature": 0.5}
    rule, net, own = made_with(CQLConfig().training(**settings), DefaultSoftActorCritic, CHOICE)
    batch = transitions(CHOICE)
    without = rule.losses(batch, net, own, {}).losses["critic"].item()
    made = rule.with_settings(min_q_weight=2.0).losses(batch, net, own, {})
    values = net.compute_q_values(batch).detach()
    expected = 2.0 * sum(lowered(values[k], batch["actions"], 0.5) for k in range(2)) / 2
    assert made.losses["critic"].item() - without == pytest.approx(expected, rel=1e-4)
    assert made.metrics["cql_loss"].item() == pytest.approx(expected, rel=1e-5)


def test_cql_of_continuous_actions_lowers_the_soft_maximum_over_all_of_them():
    """Drawn actions weighted by their densities are as the integral over the box, on a grid here."""
    rule, net, own = made_with(
        CQLConfig().training(min_q_weight=0.0, bc_iters=0, num_actions=2000), DefaultSoftActorCritic, ACTIONS
    )
    batch = transitions(ACTIONS, count=3)
    torch.manual_seed(2)
    made = rule.with_settings(min_q_weight=1.0).losses(batch, net, own, {})
    axis = torch.linspace(-0.99, 0.99, 100)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        every = [net.compute_q_values({"obs": row.expand(len(grid), 4)}, grid) for row in batch["obs"]]
        chosen = net.compute_q_values(batch, batch["actions"])
    integrals = torch.stack([values.exp().mean(-1) * 4 for values in every], -1)
    expected = (integrals.log() + math.log(3 * 2000) - chosen).mean().item()  # a sum over 3 x 2000 draws
    assert made.metrics["cql_loss"].item() == pytest.approx(expected, abs=0.05)


def test_the_lagrangian_weight_rises_while_more_than_the_threshold_is_lowered():
    config = CQLConfig().training(lagrangian=True, lagrangian_thresh=0.1, min_q_weight=2.0, bc_iters=0)
    rule, net, own = made_with(config, DefaultSoftActorCritic, CHOICE)
    batch = transitions(CHOICE)
    own.log_alpha_prime.data.fill_(math.log(3.0))
    made = rule.losses(batch, net, own, {})
    values = net.compute_q_values(batch).detach()
    gap = 2.0 * sum(lowered(values[k], batch["actions"]) for k in range(2)) / 2 - 0.1
    assert gap > 0
    assert made.metrics["cql_loss"].item() == pytest.approx(3.0 * gap, rel=1e-5)
    (gradient,) = torch.autograd.grad(made.losses["alpha_prime"], own.log_alpha_prime)
    assert gradient.item() == pytest.approx(-3.0 * gap, rel=1e-5)  # a step against it raises the weight


@pytest.mark.parametrize("num_atoms", [1, 5])
def test_dqn_with_min_q_weight_is_discrete_cql(num_atoms):
    config = DQNConfig().training(num_atoms=num_atoms, v_min=-2.0, v_max=2.0)
    torch.manual_seed(1)
    options = {**SMALL, "num_atoms": num_atoms, "v_min": -2.0, "v_max": 2.0}
    net = DefaultQNetwork(observation_space=BOX, action_space=CHOICE, model_config=options)
    rule, batch = config.rule(config.settings.training), transitions(CHOICE)
    own = rule.make_own(net)
    without = rule.losses(batch, net, own, {}).losses["total"].item()
    made = rule.with_settings(min_q_weight=1.5).losses(batch, net, own, {}).losses["total"].item()
    expected = 1.5 * lowered(net.compute_q_values(batch)[0].detach(), batch["actions"])
    assert made - without == pytest.approx(expected, rel=1e-4)


# ------------------------------------------------------------------------------------------- gradients


@SPACES
@pytest.mark.parametrize("config", [CQLConfig().training(bc_iters=0), CQLConfig(), IQLConfig()])
def test_each_loss_moves_its_own_networks_only(config, space):
    kind = DefaultImplicitQ if isinstance(config, IQLConfig) else DefaultSoftActorCritic
    rule, net, own = made_with(config, kind, space)
    made = rule.losses(transitions(space), net, own, {})
    for loss in made.losses.values():
        assert not any(parameter.requires_grad for parameter in own.get_submodule("target").parameters())
        assert torch.isfinite(loss)
    critics, policy = list(net.critic.parameters()), list(net.pi.parameters())
    of_critic = torch.autograd.grad(made.losses["critic"], policy, retain_graph=True, allow_unused=True)
    assert all(gradient is None for gradient in of_critic)
    of_actor = torch.autograd.grad(made.losses["actor"], policy, retain_graph=True, allow_unused=True)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in of_actor)
    if kind is DefaultImplicitQ:  # the value function learns from targets, and the policy from constant weights
        assert all(
            gradient is None
            for gradient in torch.autograd.grad(made.losses["actor"], critics, retain_graph=True, allow_unused=True)
        )
        value = list(net.vf.parameters())
        total = torch.autograd.grad(made.losses["actor"], value, retain_graph=True)
        advantages = own["target"].compute_q_values(transitions(space), transitions(space)["actions"]).amin(
            0
        ) - net.compute_values(transitions(space))
        sides = torch.where(advantages > 0, 0.7, 0.3)
        torch.testing.assert_close(torch.autograd.grad((sides * advantages.square()).mean(), value), total)


# ------------------------------------------------------------------------------------------------ data


def chain(moves, length=5, episode_id=None):
    """An episode of a chain of states: 1 goes right, 0 back to the start; the last state pays 1 and ends."""
    states, rewards, state = [0], [], 0
    for move in moves:
        state = state + 1 if move else 0
        states.append(state)
        rewards.append(float(state == length - 1))
        if state == length - 1:
            break
    one_hot = np.eye(length, dtype=np.float32)[states]
    done = state == length - 1
    return SingleAgentEpisode(
        id_=episode_id, observations=list(one_hot), actions=list(moves)[: len(rewards)], rewards=rewards,
        terminated=done, truncated=not done, len_lookback_buffer=0,
    )  # fmt: skip


def chains(count=60, seed=0, right=0.4):
    """Episodes of mostly bad moves: BC goes back more often than not."""
    random = np.random.default_rng(seed)
    return [chain((random.random(20) < right).astype(int).tolist()) for _ in range(count)]


QUICK = {"train_batch_size": 64, "lr": 3e-3, "gamma": 0.9}


def small(config, **training):
    return config.training(**{**QUICK, **training}).rl_module(model_config={"fcnet_hiddens": [32]})


class ShortCQL(CQLConfig):
    min_env_steps_per_iteration = 0


class ShortIQL(IQLConfig):
    min_env_steps_per_iteration = 0


OFFLINE = {
    "marwil": lambda: small(
        MARWILConfig(), beta=3.0, train_batch_size=600, lr=1e-2, moving_average_sqd_adv_norm_start=0.1
    ),
    "cql": lambda: small(ShortCQL(), bc_iters=0, min_q_weight=0.05, initial_alpha=0.01, actor_lr=3e-3, critic_lr=3e-3),
    "cql of dqn": lambda: small(DQNConfig(), min_q_weight=0.03, target_network_update_freq=20),
    "iql": lambda: small(ShortIQL(), expectile=0.8, beta=10.0, tau=0.05),
}


def right_everywhere(algo):
    """True if the best action in each state of the chain before its end is to go right."""
    actions, _ = algo.act(np.eye(5, dtype=np.float32)[:4])
    return list(actions) == [1, 1, 1, 1]


def trained(config, data, iterations, seed=0):
    algo = config.offline_data(input_=data).debugging(seed=seed).build_algo()
    for _ in range(iterations):
        algo.results = algo.train()
    return algo


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("name", slow_but(["iql"], OFFLINE))
def test_what_bc_gets_wrong_on_mixed_data_is_learned(name, seed):
    data = chains(seed=seed)
    states = np.eye(5, dtype=np.float32)[:4]
    clone = trained(small(BCConfig(), train_batch_size=600, lr=1e-2), data, 20, seed)
    assert list(clone.act(states)[0]).count(0) >= 3
    algo = trained(OFFLINE[name](), data, 15, seed)
    assert algo.act(states)[0].tolist() == [1, 1, 1, 1]


@pytest.mark.slow
def test_values_of_data_are_those_of_the_best_policy():
    states = {"obs": torch.eye(5)[:4]}
    best = torch.tensor([0.9**3, 0.9**2, 0.9, 1.0])
    algo = trained(small(DQNConfig(), target_network_update_freq=20), chains(), 30)
    values = algo.get_module().compute_q_values(states)[0]
    torch.testing.assert_close(values[:, 1], best, rtol=0, atol=0.05)
    torch.testing.assert_close(values[:, 0], best[:1].expand(4) * 0.9, rtol=0, atol=0.05)  # back to the start
    algo = trained(small(ShortIQL(), expectile=0.99, tau=0.1), chains(), 30)
    torch.testing.assert_close(algo.get_module().compute_values(states), best, rtol=0, atol=0.1)


@pytest.mark.parametrize("terminated", [True, False])
def test_marwil_learns_returns_of_whole_episodes_and_the_value_after_truncated_ones(terminated):
    rewards, gamma = [1.0, 2.0, 4.0], 0.5
    one_hot = np.eye(4, dtype=np.float32)
    episode = SingleAgentEpisode(
        observations=list(one_hot), actions=[0, 0, 1], rewards=rewards, terminated=terminated,
        truncated=not terminated, len_lookback_buffer=0,
    )  # fmt: skip
    algo = small(MARWILConfig(), gamma=gamma, train_batch_size=3).offline_data(input_=[episode]).build_algo()
    batch = algo.learner.make_batch([episode])["default_policy"]
    after = 0.0 if terminated else algo.get_module().compute_values({"obs": torch.eye(4)[3:]}).item()
    expected = []
    for reward in reversed(rewards):
        after = reward + gamma * after
        expected.insert(0, after)
    np.testing.assert_allclose(batch["value_targets"][batch["loss_mask"]], expected, rtol=1e-5)


# ------------------------------------------------------------------------------------------ what is drawn


def numbered(lengths, **flags):
    """Episodes whose observations are numbers of their own, in order; each reward is the number acted on."""
    episodes, first = [], 0
    for length in lengths:
        observations = np.arange(first, first + length + 1, dtype=np.float32)[:, None]
        episodes.append(
            SingleAgentEpisode(
                observations=list(observations), actions=[0] * length, rewards=observations[:-1, 0].tolist(),
                observation_space=gym.spaces.Box(0, 1e6, (1,), np.float32), action_space=gym.spaces.Discrete(2),
                len_lookback_buffer=0, **flags,
            )
        )  # fmt: skip
        first += length + 1
    return episodes


def drawn_rows(config, draws=1):
    """The columns of the first batches of a config's source, as it learns from them."""
    algo = config.debugging(seed=0).build_algo()
    source = config.make_source(algo.env_runner_group)
    batches = [algo.learner.make_batch(source.sample())["default_policy"] for _ in range(draws)]
    algo.stop()
    return {name: np.concatenate([batch[name].numpy() for batch in batches]) for name in batches[0]}, source


@pytest.mark.parametrize("flags", [{"terminated": True}, {"truncated": True}, {}], ids=["ends", "cuts", "no flag"])
@pytest.mark.parametrize("config", [IQLConfig, CQLConfig, DQNConfig, SACConfig])
def test_every_step_of_the_data_is_drawn_equally_often_with_what_follows_it(config, flags):
    lengths = [1, 5, 2, 40, 7]
    rows, source = drawn_rows(config().offline_data(input_=numbered(lengths, **flags)), draws=2)
    assert len(rows["obs"]) == source.num_env_steps * 2
    obs, after = rows["obs"][:, 0].astype(int), rows["new_obs"][:, 0].astype(int)
    np.testing.assert_array_equal(after, obs + 1)
    np.testing.assert_array_equal(rows["rewards"], obs)
    ends = np.cumsum([length + 1 for length in lengths]) - 2  # the last step of each
    np.testing.assert_array_equal(rows["terminateds"], np.isin(obs, ends) & bool(flags.get("terminated")))
    counts = np.bincount(obs, minlength=60)
    assert (counts[ends + 1] == 0).all()
    share = np.delete(counts, ends + 1) / len(obs)
    np.testing.assert_allclose(share, 1 / 55, atol=5 * math.sqrt(1 / 55 / len(obs)))


def test_parts_of_one_episode_are_joined_so_that_sums_of_steps_go_on():
    (whole,) = numbered([12], terminated=True)
    parts = [whole[:5], whole[5:9], whole[9:]]
    rows, _ = drawn_rows(IQLConfig().offline_data(input_=parts).training(n_step=3, gamma=0.5))
    for number, reward, after, count in zip(rows["obs"], rows["rewards"], rows["new_obs"], rows["n_step"]):
        first = int(number[0])
        steps = min(3, 12 - first)
        assert count == steps and after[0] == first + steps
        assert reward == pytest.approx(sum(0.5**k * (first + k) for k in range(steps)))


def test_more_data_than_the_capacity_is_kept_whole():
    config = small(ShortIQL()).offline_data(input_=numbered([300] * 4, truncated=True))
    buffer = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 500}
    algo = config.training(replay_buffer_config=buffer, num_steps_sampled_before_learning_starts=0).build_algo()
    assert algo.train()["replay_buffer"]["num_env_steps_stored"] == 1200
    assert algo.train()["num_env_steps_sampled_lifetime"] == 2 * 32 * 64


def test_a_recurrent_network_learns_from_sequences_of_data_without_states():
    model = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 6, "fcnet_hiddens": [8]}
    config = DQNConfig().offline_data(input_=chains()).rl_module(model_config=model)
    algo = config.training(train_batch_size=60, min_q_weight=0.1, n_step=2, burn_in_len=2).build_algo()
    with pytest.warns(match="state_out"):
        results = algo.train()
    assert results["num_env_steps_sampled_lifetime"] >= 1000
    assert math.isfinite(results["learners"]["default_policy"]["total_loss"])


def test_agents_learn_from_their_own_steps():
    data = []
    for number in range(12):
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode, **kwargs: agent)
        episode.add_env_reset(observations={"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)})
        for step in range(1, 9):
            seen = {"a": np.full(1, step, np.float32), "b": np.full(1, -step, np.float32)}
            ends = {"__all__": step == 8 and number % 2 == 0}
            episode.add_env_step(
                seen, {"a": step % 2, "b": 0 if step % 2 else 1}, {"a": 1.0, "b": 0.0}, terminateds=ends
            )
        data.append(episode.to_numpy())
    config = DQNConfig().offline_data(input_=data).multi_agent(policies=["a", "b"], policy_mapping_fn={"*": "a"})
    config.training(gamma=0.0, lr=0.01, target_network_update_freq=20)
    algo = config.rl_module(model_config={"fcnet_hiddens": [16]}).debugging(seed=0).build_algo()
    for _ in range(5):
        results = algo.train()
    assert results["replay_buffer"]["num_env_steps_stored"] == 96
    for module, value in {"a": 1.0, "b": 0.0}.items():
        assert results["learners"][module]["qf_mean"] == pytest.approx(value, abs=0.1)
    with pytest.raises(ConfigError, match="several agents, with an environment"):
        config.environment(lambda: None).make_source(algo.env_runner_group)


# ---------------------------------------------------------------------------------------------- online


def falling(count=40, seed=0):
    """Episodes of random actions in CartPole."""
    env, random, episodes = gym.make("CartPole-v1"), np.random.default_rng(seed), []
    for _ in range(count):
        observation, _ = env.reset(seed=int(random.integers(2**31)))
        episode, done = SingleAgentEpisode(observations=[observation], len_lookback_buffer=0), False
        while not done:
            action = int(random.integers(2))
            observation, reward, done, _, _ = env.step(action)
            episode.add_env_step(observation, action, reward, terminated=done)
        episodes.append(episode.to_numpy())
    return episodes


@pytest.mark.parametrize("kind", ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"])
def test_with_an_environment_half_of_each_batch_is_recorded_and_the_data_is_never_overwritten(kind):
    data = falling()
    steps = sum(map(len, data))
    config = DQNConfig().environment("CartPole-v1").offline_data(input_=data)
    config.training(replay_buffer_config={"type": kind, "capacity": 300}, train_batch_size=32)
    config.training(num_steps_sampled_before_learning_starts=steps + 100, training_intensity=1)
    algo = config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(seed=0).build_algo()
    source = config.make_source(algo.env_runner_group)
    known = {tuple(row) for episode in data for row in episode.get_observations()[:-1].tolist()}
    sampled = 0
    while not len(drawn := source.sample()):
        sampled += source.num_env_steps
    assert 100 <= sampled + source.num_env_steps <= 164, "recorded steps count for the start"
    rows = [tuple(row) in known for row in algo.learner.make_batch(drawn)["default_policy"]["obs"].tolist()]
    assert np.mean(rows) == pytest.approx(0.5, abs=0.01)
    while sampled < 500:
        source.sample()
        sampled += source.num_env_steps
    stored = source.get_metrics()["replay_buffer"]["num_env_steps_stored"]
    assert steps + 250 <= stored <= steps + 300
    algo.stop()


def test_enough_data_ends_the_random_actions_before_they_begin():
    config = SACConfig().environment("CartPole-v1").offline_data(input_=falling(100))
    algo = config.training(train_batch_size=8, num_steps_sampled_before_learning_starts=500).build_algo()
    assert len(config.make_source(algo.env_runner_group).sample())
    algo.stop()


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("Acrobot-v1", r"input_, observations(.|\n)*have: \(6,\)(.|\n)*found: *\(4,\) in episode"),
        ("MountainCarContinuous-v0", r"input_, observations(.|\n)*have: \(2,\)"),
    ],
)
def test_data_of_another_environment_than_the_sampled_one_is_refused(env, text):
    config = SACConfig().environment(env).offline_data(input_=falling(5)).training(train_batch_size=8)
    with pytest.raises(ConfigError, match=text):
        config.build_algo()


@pytest.mark.parametrize(
    ("config", "scale", "settings", "do"),
    [
        (BCConfig, 2.0, {}, r"normalize_actions=False, clip_actions=True\) if"),
        (MARWILConfig, 1.8, {}, r"normalize_actions=False, clip_actions=True\) if"),
        (CQLConfig, 2.0, {}, "^convert .*normalize_action,"),
        (CQLConfig, 2.0, {"normalize_actions": False}, "^convert .*normalize_action,"),
        (BCConfig, 1.0, {}, None),
        (CQLConfig, 1.0, {}, None),
        (BCConfig, 2.0, {"normalize_actions": False}, None),
        (BCConfig, 1.8, {"recorded": True}, None),
        (BCConfig, 3.5, {}, None),  # as a Gaussian's: the environment would not have taken them
    ],
)
def test_recorded_actions_of_another_scale_are_warned_of_once(config, scale, settings, do):
    random, settings = np.random.default_rng(0), dict(settings)
    outputs = {"actions_for_env": np.zeros((40, 1), np.float32)} if settings.pop("recorded", False) else {}
    episodes = [
        SingleAgentEpisode(
            extra_model_outputs=outputs,
            observations=random.normal(size=(41, 3)).astype(np.float32),
            actions=scale * np.linspace(-1, 1, 40, dtype=np.float32)[:, None],
            rewards=random.normal(size=40),
            truncated=True,
            len_lookback_buffer=0,
        )
        for _ in range(3)
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config().environment("Pendulum-v1", **settings).offline_data(input_=episodes).build_algo().stop()
    assert len(caught) == (do is not None)
    for warning in caught:
        message = warning.message
        assert message.where == "offline_data.input_, column 'actions'" and message.expected.startswith("-1 to 1")
        assert message.found.startswith(f"-{scale:.3g} to {scale:.3g}, ") and re.search(do, message.do)


def test_a_subclass_of_an_algorithm_for_data_may_sample():
    class Online(ShortIQL):
        offline = False

    config = small(Online(), train_batch_size=8, num_steps_sampled_before_learning_starts=0)
    algo = config.environment("CartPole-v1").offline_data(input_=falling(5)).build_algo()
    assert algo.train()["num_env_steps_sampled_lifetime"] == 16
    assert algo.train()["learners"]["default_policy"]["num_rows"] == 16 * 8
    assert IQLConfig().environment("CartPole-v1").offline_data(input_=falling(5)).samples is False


def test_a_run_from_data_alone_goes_on_with_an_environment(tmp_path):
    data = falling()
    config = SACConfig().offline_data(input_=data).training(train_batch_size=16, training_intensity=1)
    algo = config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(seed=0).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "saved")
    online = config.copy().environment("CartPole-v1")
    with pytest.warns(match="restoring a replay buffer"):
        resumed = Algorithm.from_checkpoint(tmp_path / "saved", config=online)
    for left, right in zip(algo.get_module().parameters(), resumed.get_module().parameters()):
        assert torch.equal(left, right)
    results = resumed.train()
    assert results["env_runners"]["num_episodes"] > 0
    assert results["replay_buffer"]["num_env_steps_stored"] > sum(map(len, data))
    resumed.stop()


# --------------------------------------------------------------------------------------------- held out


def held_out_ids(config):
    """The ids of the episodes that `RecordedEpisodes` never draws."""
    algo = config.build_algo()
    source = config.make_source(algo.env_runner_group)
    drawn = {episode.id_ for _ in range(10) for episode in source.sample()}
    return {episode.id_ for episode in config.input_} - drawn


def test_the_loss_of_held_out_episodes_is_reported_and_changes_nothing():
    data = chains(20)
    config = small(BCConfig(), train_batch_size=100).offline_data(input_=data, held_out=0.25).debugging(seed=0)
    ids = held_out_ids(config)
    assert len(ids) == 5
    algo = config.evaluation(offline_evaluation_interval=2).build_algo()
    assert "offline_evaluation" not in algo.train()
    results = algo.train()["offline_evaluation"]["default_policy"]
    held = [episode for episode in data if episode.id_ in ids]
    total = steps = 0
    for episode in held:
        for number in range(len(episode)):
            obs = torch.from_numpy(episode.get_observations(number))[None]
            logits = algo.get_module().forward_inference({"obs": obs})["action_dist_inputs"][0]
            total -= float(logits.log_softmax(-1)[int(episode.get_actions(number))])
            steps += 1
    assert results["policy_loss"] == pytest.approx(total / steps, rel=1e-4)
    assert results["num_rows"] == steps
    other = config.copy().evaluation(offline_evaluation_interval=1000).build_algo()
    other.train(), other.train()
    for left, right in zip(algo.get_module().parameters(), other.get_module().parameters()):
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", OFFLINE)
def test_each_algorithm_reports_its_losses_of_held_out_episodes(name):
    algo = trained(OFFLINE[name]().offline_data(held_out=0.2), chains(20), 1)
    held, learned = (algo.results[key]["default_policy"] for key in ("offline_evaluation", "learners"))
    losses = {key for key in learned if key.endswith("_loss")}
    assert losses and losses <= held.keys()
    assert all(math.isfinite(held[key]) for key in losses)


# -------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", OFFLINE)
def test_a_resumed_run_equals_one_that_went_on_to_the_bit(name, tmp_path):
    config = OFFLINE[name]()
    if name != "marwil":
        config.training(store_buffer_in_checkpoints=True)
    algo = trained(config, chains(20), 2)
    algo.save_to_path(tmp_path / "saved")
    resumed = Algorithm.from_checkpoint(tmp_path / "saved", config=config)
    algo.train(), resumed.train()
    for left, right in zip(algo.get_module().parameters(), resumed.get_module().parameters()):
        assert torch.equal(left, right)
    observation = np.eye(5, dtype=np.float32)[0]
    resumed.save_to_path(tmp_path / "saved")
    assert Policy.from_checkpoint(tmp_path / "saved").act(observation)[0] == algo.act(observation)[0]


def test_a_resumed_run_without_its_buffer_draws_on_without_a_warning(tmp_path):
    algo = trained(small(ShortIQL()), chains(20), 1)
    algo.save_to_path(tmp_path / "saved")
    resumed = Algorithm.from_checkpoint(tmp_path / "saved", config=algo.config)
    assert resumed.train()["training_iteration"] == 2
    assert resumed.get_module().training == algo.get_module().training


# ----------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda data: CQLConfig().environment("CartPole-v1").build_algo(), "recorded episodes"),
        (lambda data: IQLConfig().build_algo(), "recorded episodes"),
        (lambda data: MARWILConfig().build_algo(), "recorded episodes"),
        (lambda data: IQLConfig().offline_data(input_=data).env_runners(num_env_runners=1).build_algo(), "expected 0"),
        (lambda data: BCConfig().offline_data(input_=data[:1], held_out=0.5).build_algo(), "held_out"),
        (lambda data: BCConfig().offline_data(input_=data, held_out=1.0).build_algo(), "held_out"),
        (lambda data: BCConfig().offline_data(held_out=1.5), "held_out"),
        (lambda data: IQLConfig().training(expectile=1.5), "expectile"),
        (lambda data: CQLConfig().training(num_actions=0), "num_actions"),
        (lambda data: MARWILConfig().training(beta=-1.0), "beta"),
    ],
)
def test_what_cannot_work_is_a_named_error(use, text):
    with pytest.raises(EpibatchError, match=text):
        use(chains(4))


@pytest.mark.parametrize("kind", [MARWILConfig, CQLConfig, IQLConfig])
def test_settings_are_equal_after_a_file(kind):
    config = kind().environment("Pendulum-v1").training(gamma=0.9).offline_data(held_out=0.1)
    again = kind.from_yaml(config.to_yaml())
    assert again.to_dict() == config.to_dict() and again.held_out == 0.1
