"""DQN and SAC, written with public names on a list of chunks, against loops in plain torch."""

from __future__ import annotations

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_dqn import DQNConfig, EpsilonGreedy
from fixture_sac import SACConfig

from epibatch.algorithms import Algorithm, Policy
from epibatch.core.rl_module import DefaultQNetwork, DefaultSoftActorCritic
from epibatch.env_runner import make_multi_agent
from epibatch.learner import Learner, LearnerSettings

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
SMALL = {"fcnet_hiddens": [8], "fcnet_activation": "tanh"}
NAMES = {DQNConfig: ("CartPole-v1", DefaultQNetwork), SACConfig: ("Pendulum-v1", DefaultSoftActorCritic)}
KINDS = pytest.mark.parametrize("kind", NAMES, ids=["dqn", "sac"])


def rows(space, count=24):
    """Random rows of a batch, a quarter of which end their episode."""
    random = np.random.default_rng(0)
    numbers = {name: random.uniform(-1, 1, (count, 3)) for name in ("obs", "new_obs")}
    batch = {**numbers, "rewards": random.normal(size=count)}
    batch = {name: torch.tensor(values, dtype=torch.float32) for name, values in batch.items()}
    actions = random.integers(3, size=count) if space.shape == () else random.uniform(-0.9, 0.9, (count, 2))
    batch["actions"] = torch.tensor(actions, dtype=torch.int64 if space.shape == () else torch.float32)
    return {**batch, "terminateds": torch.tensor(random.random(count) < 0.25)}


def learner(kind, space, settings=None, **training):
    """A learner with the rule of a config, and a small network."""
    torch.manual_seed(0)
    config = kind().training(**training)
    module = NAMES[kind][1](observation_space=BOX, action_space=space, model_config=SMALL)
    settings = LearnerSettings(**{"lr": config.lr, "minibatch_size": 8, "shuffle": None, "seed": 1, **(settings or {})})
    return Learner(module=module, connector=None, settings=settings, loss=kind.rule(config.settings.training))


def parts(batch):
    """Minibatches of 8 rows in their order."""
    return [{name: column[i : i + 8] for name, column in batch.items()} for i in range(0, 24, 8)]


def assert_same_weights(left, right):
    for name, value in left.state_dict().items():
        torch.testing.assert_close(value, right.state_dict()[name], rtol=0, atol=1e-6, msg=name)


def own_of(made):
    return made.get_state()["rules"]["default_policy"]["own"]


def test_steps_of_dqn_are_those_of_a_loop():
    made = learner(DQNConfig, gym.spaces.Discrete(3), lr=0.01, gamma=0.9, target_update_every=2)
    net, batch = copy.deepcopy(made.module["default_policy"]), rows(gym.spaces.Discrete(3))
    target, optimizer, errors = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=0.01), []
    for step, part in enumerate(parts(batch), 1):
        with torch.no_grad():
            best = net.forward_train({"obs": part["new_obs"]})["action_dist_inputs"].argmax(1)
            after = target.forward_train({"obs": part["new_obs"]})["action_dist_inputs"][range(8), best]
        goals = part["rewards"] + 0.9 * torch.where(part["terminateds"], 0.0, after)
        values = net.forward_train({"obs": part["obs"]})["action_dist_inputs"][range(8), part["actions"]]
        size = (values - goals).abs()
        optimizer.zero_grad()
        torch.where(size < 1, size.square() / 2, size - 0.5).mean().backward()
        optimizer.step()
        errors.append((values - goals).detach())
        if step == 2:
            target = copy.deepcopy(net)
    results = made.update(batch={"default_policy": batch}, num_env_steps=5)
    assert results["__all_modules__"]["num_env_steps_trained_lifetime"] == 5
    assert_same_weights(made.module["default_policy"], net)
    for name, value in target.state_dict().items():
        np.testing.assert_allclose(own_of(made)[name], value, atol=1e-6)
    torch.testing.assert_close(made.row_outputs["default_policy"]["td_error"], torch.cat(errors), rtol=0, atol=1e-6)


def sampled(net, obs):
    """Actions of a squashed Gaussian, and their log-probabilities."""
    mean, log_std = net.forward_train({"obs": obs})["action_dist_inputs"].chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    raw = normal.rsample()
    squashed = 2 * (math.log(2) - raw - torch.nn.functional.softplus(-2 * raw))
    return raw.tanh(), (normal.log_prob(raw) - squashed).sum(-1)


def test_steps_of_sac_are_those_of_a_loop():
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    made = learner(SACConfig, space, lr=0.01, actor_lr=0.02, alpha_lr=0.03, gamma=0.9, tau=0.25, initial_alpha=0.5)
    net, batch = copy.deepcopy(made.module["default_policy"]), rows(space)
    targets, log_alpha = copy.deepcopy(net), torch.tensor(math.log(0.5), requires_grad=True)
    groups = [(list(net.q.parameters()), 0.01), (list(net.pi.parameters()), 0.02), ([log_alpha], 0.03)]
    optimizers, errors = [torch.optim.Adam(group, lr=lr) for group, lr in groups], []
    torch.manual_seed(7)
    made.update(batch={"default_policy": batch})
    torch.manual_seed(7)
    for part in parts(batch):
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            actions, logp = sampled(net, part["new_obs"])
            after = torch.min(*(q(part["new_obs"], actions) for q in targets.q)) - alpha * logp
        goals = part["rewards"] + 0.9 * torch.where(part["terminateds"], 0.0, after)
        misses = [q(part["obs"], part["actions"]) - goals for q in net.q]
        actions, logp = sampled(net, part["obs"])
        value = torch.min(*(q(part["obs"], actions) for q in net.q))
        losses = (
            sum(miss.square().mean() for miss in misses),
            (alpha * logp - value).mean(),
            -log_alpha * (logp.detach().mean() - 2),
        )
        gradients = [torch.autograd.grad(loss, group, retain_graph=True) for loss, (group, _) in zip(losses, groups)]
        for optimizer, (group, _), gradient in zip(optimizers, groups, gradients):
            for parameter, entry in zip(group, gradient):
                parameter.grad = entry
            optimizer.step()
        for old, new in zip(targets.q.parameters(), net.q.parameters()):
            old.data += 0.25 * (new.data - old.data)
        errors.append(sum(miss.detach().abs() for miss in misses) / 2)
    assert_same_weights(made.module["default_policy"], net)
    kept = own_of(made)
    assert kept["log_alpha"] == pytest.approx(log_alpha.item(), abs=1e-6)
    for name, value in targets.q.state_dict().items():
        np.testing.assert_allclose(kept[f"target.q.{name}"], value, atol=1e-6)
    torch.testing.assert_close(made.row_outputs["default_policy"]["td_error"], torch.cat(errors), rtol=0, atol=1e-6)


def test_errors_of_rows_are_in_the_order_of_the_rows_after_shuffling():
    space, still = gym.spaces.Discrete(3), {"lr": 0.0, "shuffle": "epoch", "num_epochs": 2}
    made, batch = learner(DQNConfig, space, still, gamma=0.0), rows(space)
    made.update(batch={"default_policy": batch})
    values = made.module["default_policy"].compute_q_values(batch, batch["actions"])[0].detach()
    errors = made.row_outputs["default_policy"]["td_error"]
    torch.testing.assert_close(errors, values - batch["rewards"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("explore", [True, False])
def test_epsilon_greedy_is_a_distribution_over_legal_actions(explore):
    values = torch.tensor([[3.0, 1.0, 2.0, -math.inf], [0.0, 5.0, 1.0, 2.0]])
    piece = EpsilonGreedy(last=0.2, num_steps=4)
    piece.set_state({"steps": 2})  # half of the way from 1 to 0.2
    written = piece(batch={"action_dist_inputs": values.clone()}, episodes=[None] * 2, explore=explore)
    expected = torch.tensor([[0.6, 0.2, 0.2, 0.0], [0.15, 0.55, 0.15, 0.15]])  # epsilon is 0.6
    result = written["action_dist_inputs"]
    if explore:
        torch.testing.assert_close(result.softmax(-1), expected)
    else:
        assert torch.equal(result, values)
    assert piece.get_state() == {"steps": 4 if explore else 2}


def small(kind, **training):
    """A config that learns from its first steps on."""
    amounts = {"steps_per_round": 20, "train_batch_size": 64, "minibatch_size": 16, "num_steps_before_learning": 0}
    config = kind().environment(NAMES[kind][0]).training(**{**amounts, **training})
    return config.rl_module(model_config=SMALL).debugging(seed=4)


@KINDS
def test_a_restored_run_goes_on_equal_to_the_bit(kind, tmp_path):
    algo = small(kind).build_algo()
    for _ in range(3):
        algo.train()
    algo.save_to_path(tmp_path, end_episodes=True)
    results = [algo.train()["learners"]["default_policy"] for _ in range(2)]
    state = algo.get_state()
    algo.stop()
    resumed = Algorithm.from_checkpoint(tmp_path)
    assert [resumed.train()["learners"]["default_policy"] for _ in range(2)] == results
    left, right = state["learner"], resumed.get_state()["learner"]
    torch.testing.assert_close(left, right, rtol=0, atol=0)
    policy = Policy.from_checkpoint(tmp_path, config=small(kind))
    assert type(policy.module) is NAMES[kind][1]
    resumed.stop()


def test_modules_have_their_own_learning_rate_and_share_of_the_target():
    env, own = make_multi_agent("CartPole-v1"), {"lr": 0.02, "tau": 1.0, "target_update_every": 1}
    config = small(DQNConfig, lr=0.01, tau=0.0).environment(env, env_config={"num_agents": 2})
    config.multi_agent(policies=["0", "1"], policy_mapping_fn=lambda agent_id, *_, **__: str(agent_id))
    config.multi_agent(algorithm_config_overrides_per_module={"1": own})
    algo = config.build_algo()
    first = copy.deepcopy(algo.get_module("0").state_dict())
    results = algo.train()["learners"]
    assert (results["0"]["lr"], results["1"]["lr"]) == (0.01, 0.02)
    kept = algo.get_state()["learner"]["rules"]
    for name, value in first.items():
        np.testing.assert_array_equal(kept["0"]["own"][name], value)  # a share of 0 keeps
    for name, value in algo.get_module("1").state_dict().items():
        np.testing.assert_array_equal(kept["1"]["own"][name], value)  # a share of 1 copies
    algo.stop()


def test_the_rows_that_are_drawn_are_steps_of_the_environment():
    algo = small(SACConfig).build_algo()
    algo.train()
    batch = algo.learner.connector(episodes=algo.draw(30, 3), batch={}, rl_module=algo.learner.module)
    rows = {name: column.numpy() for name, column in batch["default_policy"].items() if name in ("obs", "new_obs")}
    velocity, force = rows["obs"][:, 2], 2 * batch["default_policy"]["actions"].numpy()[:, 0].clip(-1, 1)
    speed = np.clip(velocity + (15 * rows["obs"][:, 1] + 3 * force) * 0.05, -8, 8)  # Pendulum-v1's equation
    np.testing.assert_allclose(rows["new_obs"][:, 2], speed, atol=1e-5)
    algo.stop()
