"""Update rules with several losses, a target network and a learned coefficient, against loops written by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from fixture_together import learners_in_threads, together

from epibatch.core.errors import CheckpointError, ConfigError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, TorchRLModule, ValueFunctionAPI
from epibatch.learner import (
    Group,
    Learner,
    LearnerSettings,
    Losses,
    MultiAgentSettings,
    UpdateRule,
    frozen_copy,
    polyak,
)


class TwoNets(TorchRLModule):
    """A critic and an actor, each linear, of three numbers."""

    def setup(self):
        self.critic, self.actor = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.actor(batch["obs"])}


class Rule(UpdateRule):
    """A critic with a target, an actor that follows the critic every second step, and a temperature."""

    row_outputs = ("error",)
    tau, delay = 0.25, 2

    def make_own(self, module):
        own = torch.nn.Module()
        own.target = frozen_copy(module.critic)
        own.log_alpha = torch.nn.Parameter(torch.tensor(0.5))
        own.register_buffer("calls", torch.tensor(0))
        return own

    def groups(self, module, own):
        critic = Group(module.critic, lr=[[0, 0.1], [100, 0.0]])
        actor = Group(module, without=[module.critic], optimizer="sgd", grad_clip=0.01)
        return {"critic": critic, "actor": actor, "alpha": Group(own.log_alpha, lr=0.01)}

    def losses(self, batch, module, own, coefficients):
        goals = batch["rewards"] + 0.9 * own.target(batch["obs"])[:, 0]
        errors = module.critic(batch["obs"])[:, 0] - goals
        losses = {"critic": errors.square().mean(), "alpha": (own.log_alpha - 1).square()}
        if int(own.calls) % self.delay == 0:
            losses["actor"] = (module.actor(batch["obs"])[:, 0] - module.critic(batch["obs"])[:, 0]).square().mean()
        return Losses(losses, {"error_mean": errors.detach().mean()}, {"error": errors.detach()})

    def after_step(self, module, own, num_steps):
        own.calls += 1
        polyak(own.target, module.critic, self.tau)


def module(seed=0):
    torch.manual_seed(seed)
    return TwoNets(observation_space=None, action_space=None, model_config={})


def rows(count, first=0):
    random = np.random.default_rng(first)
    obs, rewards = random.normal(size=(count, 3)), random.normal(size=count)
    return {"obs": torch.tensor(obs, dtype=torch.float32), "rewards": torch.tensor(rewards, dtype=torch.float32)}


def learner(rule=None, modules=None, learners=None, multi_agent=None, **settings):
    options = {"lr": 0.05, "minibatch_size": 8, "num_epochs": 2, "seed": 3, **settings}
    rule, modules = rule or Rule(), modules or module()
    settings = LearnerSettings(**options)
    return Learner(
        module=modules, connector=None, settings=settings, loss=rule, learners=learners, multi_agent=multi_agent
    )


def update(made, batch, **options):
    return made.update(batch={"default_policy": batch}, **options)["default_policy"]


def weights(made):
    return {name: value.detach().clone() for name, value in made.module["default_policy"].named_parameters()}


def flat(state, path=""):
    if isinstance(state, dict):
        return {name: leaf for key, part in state.items() for name, leaf in flat(part, f"{path}/{key}").items()}
    return {path: state}


def assert_same(left, right, **tolerance):
    left, right = flat(left), flat(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_allclose(value, right[name], err_msg=name, **tolerance or {"rtol": 0})


def test_each_loss_moves_its_own_group_with_its_own_optimizer():
    made = learner(shuffle=None)
    nets, batch = copy.deepcopy(made.module["default_policy"]), rows(24)
    target, log_alpha = copy.deepcopy(nets.critic), torch.tensor(0.5, requires_grad=True)
    critic, alpha = torch.optim.Adam(nets.critic.parameters(), lr=0.1), torch.optim.Adam([log_alpha], lr=0.01)
    errors, norms = torch.full((24,), torch.nan), []
    for step in range(6):
        part = slice(8 * (step % 3), 8 * (step % 3) + 8)
        obs = batch["obs"][part]
        error = nets.critic(obs)[:, 0] - batch["rewards"][part] - 0.9 * target(obs)[:, 0].detach()
        distance = (nets.actor(obs)[:, 0] - nets.critic(obs)[:, 0].detach()).square().mean()
        of_critic = torch.autograd.grad(error.square().mean(), list(nets.critic.parameters()))
        of_actor = torch.autograd.grad(distance, list(nets.actor.parameters()))
        (of_alpha,) = torch.autograd.grad((log_alpha - 1).square(), log_alpha)
        errors[part] = error.detach()
        for parameter, gradient in zip([*nets.critic.parameters(), log_alpha], [*of_critic, of_alpha]):
            parameter.grad = gradient
        critic.step()
        alpha.step()
        gradients = [*of_critic, of_alpha]
        if step % 2 == 0:
            norm = torch.cat([gradient.flatten() for gradient in of_actor]).norm()
            for parameter, gradient in zip(nets.actor.parameters(), of_actor):
                parameter.data -= 0.05 * gradient * min(1.0, 0.01 / (float(norm) + 1e-6))
            gradients += of_actor
        norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
        for old, new in zip(target.parameters(), nets.critic.parameters()):
            old.data += 0.25 * (new.data - old.data)
    results = update(made, batch)
    assert_same(weights(made), {key: value.detach() for key, value in nets.named_parameters()}, atol=1e-6)
    kept = made.get_state()["rules"]["default_policy"]
    assert kept["num_steps"] == 6
    expected = {"target.weight": target.weight.detach(), "target.bias": target.bias.detach()}
    assert_same(kept["own"], {"log_alpha": log_alpha.detach(), **expected, "calls": 6}, atol=1e-6)
    assert_same(made.row_outputs["default_policy"], {"error": errors}, atol=1e-6)
    assert results["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert (results["lr"], results["critic_lr"], results["alpha_lr"]) == (0.05, 0.1, 0.01)
    assert {"critic_loss", "actor_loss", "alpha_loss", "error_mean"} <= results.keys()


def test_schedules_of_groups_count_the_steps_that_are_given():
    made = learner()
    rates = [update(made, rows(16), num_env_steps=25)["critic_lr"] for _ in range(4)]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert made.get_state()["num_env_steps"] == 100


def test_values_of_rows_are_in_the_order_of_the_batch_after_shuffling():
    class Rewards(Rule):
        def losses(self, batch, *others):
            return Losses(super().losses(batch, *others).losses, rows={"error": batch["rewards"]})

    made, batch = learner(Rewards()), rows(21)
    batch["loss_mask"] = torch.arange(21) % 5 != 0
    update(made, batch)
    expected = torch.where(batch["loss_mask"], batch["rewards"], torch.nan)
    assert_same(made.row_outputs["default_policy"], {"error": expected})


def test_a_restored_learner_goes_on_equal_to_the_bit():
    left, right = learner(), learner(modules=module(seed=5))
    for first in range(3):
        update(left, rows(16, first))
    right.set_state(left.get_state())
    for made in (left, right):
        update(made, rows(20, 9))
    assert_same(left.get_state(), right.get_state())


def test_a_state_without_the_rules_part_makes_it_from_the_module():
    left, right = learner(), learner(modules=module(seed=5))
    state = left.get_state()
    del state["rules"]
    right.set_state(state)
    assert_same(right.get_state()["rules"], left.get_state()["rules"])


def test_a_state_of_another_rule_is_refused_and_nothing_changes():
    made = learner()
    state = made.get_state()
    del state["rules"]["default_policy"]["own"]["log_alpha"]
    before = made.get_state()
    with pytest.raises(CheckpointError) as raised:
        made.set_state(state)
    assert "update rule keeps for 'default_policy'" in raised.value.where
    assert_same(made.get_state(), before)


def test_what_is_kept_follows_weights_that_are_set_from_outside():
    made = learner()
    update(made, rows(16))
    moments = made.get_state()["optimizers"]
    made.module["default_policy"].load_state_dict(module(seed=7).state_dict())
    made.renew_own("default_policy")
    critic = {f"target.{name}": value for name, value in module(seed=7).critic.state_dict().items()}
    kept = made.get_state()["rules"]["default_policy"]
    assert_same({name: kept["own"][name] for name in critic}, critic)
    assert kept["num_steps"] == 0
    assert_same(made.get_state()["optimizers"], moments)
    with pytest.raises(UnknownNameError):
        made.renew_own("other")


@pytest.mark.parametrize("sizes", [(12, 12), (20, 4), (24, 0)])
def test_learners_together_are_one_learner_with_all_rows(sizes):
    members = [learner(learners=each, minibatch_size=None) for each in learners_in_threads(2)]
    alone, batch = learner(minibatch_size=None), rows(24)
    shares = [{name: column[: sizes[0]] for name, column in batch.items()}]
    shares.append({name: column[sizes[0] :] for name, column in batch.items()})
    for _ in range(3):
        results = together([lambda m=m, s=s: update_share(m, s) for m, s in zip(members, shares)])
        expected = update(alone, batch, num_env_steps=0)
    assert results[0]["error_mean"] == pytest.approx(expected["error_mean"], abs=1e-6)
    parts = ["module", "rules", "optimizers"]
    states = [{part: each.get_state()[part] for part in parts} for each in (*members, alone)]
    assert_same(states[0], states[1])
    assert_same(states[0], states[2], rtol=1e-5, atol=1e-6)
    own = [each.row_outputs.get("default_policy", {}).get("error", torch.zeros(0)) for each in members]
    assert_same({"error": torch.cat(own)}, alone.row_outputs["default_policy"], rtol=1e-5, atol=1e-6)


def update_share(made, share):
    return made.update(batch={"default_policy": share} if len(share["obs"]) else {}, num_env_steps=0)["default_policy"]


class TwoTaus(Rule):
    """A rule with a setting that modules may have their own values of."""

    def __init__(self, settings=None):
        super().__init__(settings)

    def after_step(self, module, own, num_steps):
        polyak(own.target, module.critic, self.settings.lr)


def test_modules_have_their_own_settings_and_targets_and_come_and_go():
    modules = MultiRLModule()
    for seed, name in enumerate(["red", "blue"]):
        modules.add_module(name, module(seed))
    own = MultiAgentSettings(overrides_per_module={"blue": {"lr": 1.0}})
    made = learner(TwoTaus(LearnerSettings(lr=0.5)), modules, multi_agent=own)
    made.update(batch={"red": rows(8), "blue": rows(8)})
    kept = made.get_state()["rules"]
    target, source = kept["blue"]["own"]["target.weight"], made.module["blue"].critic.weight
    assert np.array_equal(target, source.detach())  # a share of 1 copies
    assert not np.array_equal(kept["red"]["own"]["target.weight"], made.module["red"].critic.weight.detach())
    made.add_module("green", module(3))
    made.remove_module("red")
    made.update(batch={"blue": rows(8), "green": rows(8)})
    assert {key: part["num_steps"] for key, part in made.get_state()["rules"].items()} == {"blue": 4, "green": 2}


def rule(**attributes):
    return type("Wrong", (Rule,), attributes)()


WRONG = {
    "a parameter in two groups": (
        {"groups": lambda self, module, own: {"critic": Group(module), "actor": Group(module.actor, own.log_alpha)}},
        "each trainable parameter",
        "actor.weight in critic and actor",
    ),
    "a parameter in none": (
        {"groups": lambda self, module, own: {"critic": Group(module)}},
        "each trainable parameter",
        "own.log_alpha in none",
    ),
    "a parameter of another module": (
        {"groups": lambda self, module, own: {"critic": Group(module, own, torch.nn.Linear(1, 1))}},
        "each trainable parameter",
        "a parameter of another module",
    ),
    "an interface that the module lacks": (
        {"needs": (ValueFunctionAPI,)},
        "a module with the methods of ValueFunctionAPI",
        "none, in TwoNets",
    ),
    "something kept that is no module": (
        {"make_own": lambda self, module: {"target": module}},
        "an nn.Module, or None",
        "dict",
    ),
    "a setting that does not exist": (
        {"groups": lambda self, module, own: {"critic": Group(module, own, learning_rate=1)}},
        "",
        "learning_rate",
    ),
}


@pytest.mark.parametrize(("attributes", "expected", "found"), WRONG.values(), ids=WRONG)
def test_rules_that_do_not_fit_are_refused_when_the_learner_is_built(attributes, expected, found):
    with pytest.raises(ConfigError) as raised:
        learner(rule(**attributes))
    assert expected in raised.value.expected and found in str(raised.value)


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (lambda module: None, "NoneType"),
        (lambda module: {"critic": module.critic.weight.sum()}, "dict"),
        (lambda module: Losses({"crtic": module.critic.weight.sum()}), "crtic"),
        (lambda module: Losses({"critic": module.actor.weight.sum()}), "no gradient"),
        (lambda module: Losses({"critic": module.critic.weight.sum()}, rows={"eror": torch.zeros(8)}), "eror"),
    ],
)
def test_losses_that_do_not_fit_the_groups_are_named(result, found):
    made = learner(rule(losses=lambda self, batch, module, own, coefficients: result(module)))
    with pytest.raises(ConfigError) as raised:
        update(made, rows(8))
    assert found in str(raised.value)


def test_a_column_that_a_rule_misses_is_told_with_those_that_are_there():
    made = learner(rule(losses=lambda self, batch, *others: batch["reward"]))
    with pytest.raises(KeyError) as raised:
        update(made, rows(8))
    assert "Its columns: obs, rewards" in str(raised.value)


def test_recurrent_batches_give_a_value_per_step_or_sequence():
    class Recurrent(Rule):
        def losses(self, batch, module, own, coefficients):
            mask = batch["loss_mask"]
            errors = module.critic(batch["obs"])[..., 0]
            actor = module.actor(batch["obs"])[..., 0][mask].square().mean() + (own.log_alpha - 1).square()
            return Losses(
                {"critic": errors[mask].square().mean(), "actor": actor}, rows={"error": batch["obs"][..., 0]}
            )

    made = learner(Recurrent())
    obs = torch.randn(6, 4, 3)
    mask = torch.arange(4) < torch.tensor([4, 2, 3, 1, 4, 2])[:, None]
    update(made, {"obs": obs, "loss_mask": mask, "seq_lens": mask.sum(1)})
    assert_same(made.row_outputs["default_policy"], {"error": obs[..., 0]})
