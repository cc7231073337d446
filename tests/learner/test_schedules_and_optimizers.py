"""Schedules of settings, optimisers, and losses in a config."""

from __future__ import annotations

import copy
import sys
import types

import numpy as np
import pytest
import torch
from fixture_cases import slow

from epibatch.algorithms import register_algorithm
from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchWarning
from epibatch.learner import LearnerSettings, PPOLoss, PPOSettings

POINTS = [[0, 1.0], [10, 0.5], [20, 0.5], [40, 0.0]]


class Steps(list):
    """Stands for episodes of so many environment steps together."""

    def __init__(self, *lengths: int) -> None:
        super().__init__(range(length) for length in lengths)


def config(**training) -> PPOConfig:
    settings = {"train_batch_size": 40, "minibatch_size": 20, "num_epochs": 2, **training}
    return PPOConfig().environment("CartPole-v1").debugging(seed=0).training(**settings)


def from_path(loss: str) -> str:
    """A config file that names its loss."""
    return config().to_yaml().replace("training:\n", f"training:\n  loss: {loss}\n")


def learned(algo) -> dict[str, float]:
    results = algo.train()["learners"]["default_policy"]
    algo.stop()
    return results


# ------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(("steps", "value"), [(0, 1.0), (5, 0.75), (10, 0.5), (15, 0.5), (30, 0.25), (99, 0.0)])
def test_a_schedule_goes_in_straight_lines_from_point_to_point_and_stays_at_the_last(steps, value):
    loss = PPOLoss(PPOSettings(entropy_coeff=POINTS))
    assert loss.scheduled_coefficients(steps) == {"entropy_coeff": pytest.approx(value)}


def test_the_learning_rate_follows_the_steps_of_the_updates_before(points):
    learner = points.learner(points.modules(a=(0, 0)), {"a": points.batch("a", 4)}, lr=[[0, 0.4], [10, 0.2]])
    rates = [learner.update(episodes=Steps(3, 2))["a"]["lr"] for _ in range(4)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.2])


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr": [[0, 0.0], [10, 0.0]]}, {"lr": 0.0, "desired_kl": 0.01}])
def test_a_learning_rate_of_0_changes_no_weight(tmp_path, options):
    algo = config(**options).build_algo()
    before = copy.deepcopy(algo.get_module().state_dict())
    results = [algo.train()]
    algo.save_to_path(tmp_path)
    again = config(**options).build_algo()
    again.restore_from_path(tmp_path)
    results += [one.train() for one in (algo, again)]
    assert [result["learners"]["default_policy"]["lr"] for result in results] == [0.0] * 3
    for one in (algo, again):
        assert all(torch.equal(before[name], value) for name, value in one.get_module().state_dict().items())
        one.stop()


def test_a_state_without_a_count_of_steps_begins_the_schedule(points):
    learner = points.learner(points.modules(a=(0, 0)), {"a": points.batch("a", 4)}, lr=[[0, 0.4], [10, 0.2]])
    state = learner.get_state()
    del state["num_env_steps"]
    learner.set_state(state)
    assert learner.update(episodes=Steps(5))["a"]["lr"] == pytest.approx(0.4)


def test_scheduled_coefficients_are_those_of_the_loss():
    """One of RLlib's forms, through a whole training: the results say what was used."""
    algo = config(lr=[[0, 1e-3], [80, 1e-4]], entropy_coeff=[(0, 0.1), (80, 0.0)], clip_param=0.2).build_algo()
    results = [algo.train()["learners"]["default_policy"] for _ in range(3)]
    algo.stop()
    assert [each["lr"] for each in results] == pytest.approx([1e-3, 5.5e-4, 1e-4])
    assert [each["entropy_coeff"] for each in results] == pytest.approx([0.1, 0.05, 0.0])
    assert "clip_param" not in results[0]


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ([[1, 0.1]], "steps that increase"),
        ([[0, 0.1], [0, 0.2]], "steps that increase"),
        ([[0, 0.1], [5.5, 0.2]], "steps that increase"),
        ([[0, 0.1, 3]], "steps that increase"),
        ([], "steps that increase"),
        ([[0, 0.1], [9, -1.0]], "greater than or equal to 0"),
        (lambda progress: progress, "expected a number, or a schedule"),
        ([[0, "0.1"]], "a valid number"),
    ],
)
def test_wrong_schedules_are_refused(schedule, text):
    with pytest.raises(ConfigError) as error:
        config(lr=schedule)
    assert "training.lr" in error.value.found and text in error.value.found


def test_a_loss_by_hand_needs_the_value_of_a_schedule():
    loss = PPOLoss(PPOSettings(clip_param=[[0, 0.3], [9, 0.1]]))
    with pytest.raises(ConfigError) as error:
        loss({}, {}, None, loss.initial_coefficients())
    assert error.value.where == "ppo_loss, clip_param" and "scheduled_coefficients" in error.value.do


# ------------------------------------------------------------------------------------------- optimisers


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
        ({"optimizer": "adamw", "weight_decay": 0.3, "eps": 1e-3}, None),
        ({"optimizer": torch.optim.RMSprop, "momentum": 0.5}, lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5)),
        ("torch.optim:Adamax", lambda p: torch.optim.Adamax(p, lr=0.1)),
        (lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ],
)
def test_steps_are_those_of_torchs_optimiser(points, choice, made):
    """The same gradients, given to the optimiser by hand."""
    batch = points.batch("a", 6)
    learner = points.learner(
        points.modules(a=(3, -2)), {"a": batch}, minibatch_size=None, num_epochs=4, optimizer=choice
    )
    learner.update(episodes=Steps(1))
    at = torch.nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    made = made or (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3, eps=1e-3))
    optimizer = made([at])
    for _ in range(4):
        at.grad = 2 * (at.detach() - batch["x"].mean(0))
        optimizer.step()
    assert points.where(learner.module)["a"] == pytest.approx(at.tolist(), rel=1e-9)


@pytest.mark.parametrize("lr", [0.1, [[0, 0.4], [40, 0.1]]], ids=["", "schedule"])
@pytest.mark.parametrize(
    "choice",
    [
        "adam",
        "radam",
        "rmsprop",
        "sgd",
        {"optimizer": "sgd", "momentum": 0.9},
        {"optimizer": "adam", "amsgrad": True},
        torch.optim.Adafactor,  # with values of other shapes than its parameters
    ],
)
def test_a_restored_optimiser_goes_on_bit_for_bit(points, choice, lr):
    def learner():
        return points.learner(points.modules(a=(3, -2)), {"a": points.batch("a", 12)}, optimizer=choice, lr=lr)

    whole, first, second = learner(), learner(), learner()
    for one in (whole, first):
        one.update(episodes=Steps(7))
    second.set_state(first.get_state())
    assert second.update(episodes=Steps(7))["a"] == whole.update(episodes=Steps(7))["a"]
    assert points.where(second.module) == points.where(whole.module)


def test_the_state_of_another_optimiser_is_refused(points):
    def learner(choice):
        return points.learner(points.modules(a=(3, -2)), {"a": points.batch("a", 12)}, optimizer=choice)

    adam, sgd = learner("adam"), learner({"optimizer": "sgd", "momentum": 0.9})
    adam.update(episodes=Steps(1))
    before = points.where(sgd.module)
    with pytest.raises(CheckpointError, match="optimiser state of 'at'"):
        sgd.set_state(adam.get_state())
    assert points.where(sgd.module) == before


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("adm", "did you mean 'adam'"),
        ("adamW", "did you mean 'adamw'"),
        ({"optimizer": "sgd", "momentun": 0.9}, r"optimizer\.momentun: .*did you mean 'momentum'"),
        ({"optimizer": lambda parameters, lr, own=1: None, "won": 2}, r"optimizer\.won: .*did you mean 'own'"),
        ({"optimizer": "adam", "lr": 0.1}, "is the setting lr"),
        ({"weight_decay": 0.1}, "expected a name"),
        (3, "expected a name"),
    ],
)
def test_wrong_choices_are_refused(choice, text):
    with pytest.raises(ConfigError, match=text):
        LearnerSettings(optimizer=choice)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"optimizer": "sgd", "momentum": -1}, "keywords that SGD takes"),
        (lambda p, lr: None, "a torch.optim.Optimizer"),
    ],
)
def test_what_torch_does_not_take_is_named(points, choice, expected):
    with pytest.raises(ConfigError) as error:
        points.learner(points.modules(a=(0, 0)), {}, optimizer=choice)
    assert error.value.expected == expected


# ------------------------------------------------------------------------------------------- the loss


class Watched(PPOLoss):
    def __call__(self, *arguments):
        loss, metrics = super().__call__(*arguments)
        return loss, {**metrics, "single": loss.detach(), "clip": self.settings.clip_param}


def plain_loss(batch, outputs, distribution_class):
    return outputs["vf_preds"].square().mean(), {"rows": float(len(batch["obs"]))}


class Fixed(PPOLoss):
    """A subclass may write its constructor."""

    def __init__(self):
        super().__init__(PPOSettings(clip_param=0.05))


class Static(PPOLoss):
    @staticmethod
    def __call__(batch, outputs, distribution_class, coefficients):
        return outputs["vf_preds"].mean(), {"rows": 1.0, "mean_kl": 0.0}


class OfClass(PPOLoss):
    @classmethod
    def __call__(cls, batch, outputs, distribution_class, coefficients):
        return outputs["vf_preds"].mean(), {"rows": 1.0, "mean_kl": 0.0}


@pytest.mark.parametrize(
    "given",
    [
        Watched,
        *map(slow, (Watched(PPOSettings(clip_param=0.4)), plain_loss, Fixed, Static, Static(), OfClass())),
        OfClass,
    ],
)
def test_a_loss_stands_in_a_config_and_in_a_file_by_its_import_path(given, monkeypatch):
    own = types.ModuleType("own_losses")
    own.chosen = given
    monkeypatch.setitem(sys.modules, "own_losses", own)
    text = from_path("own_losses:chosen")
    with pytest.raises(ConfigError, match="allow_imports=True"):
        PPOConfig.from_yaml(text)
    for made in (PPOConfig.from_yaml(text, allow_imports=True), config(loss=given)):
        algo = made.build_algo()
        loss, results = algo.learner.loss_of("default_policy"), learned(algo)
        if given is plain_loss or {given, type(given)} & {Static, OfClass}:
            assert results["rows"] > 0
            continue
        expected = {Watched: 0.3, Fixed: 0.05}.get(given, 0.4)
        assert loss.settings.clip_param == expected
        assert given is Fixed or (results["single"] == pytest.approx(results["total_loss"]))


def test_a_module_can_have_a_loss_and_an_optimiser_of_its_own():
    from epibatch.env_runner.multi_agent_env import make_multi_agent

    base = config().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    base.multi_agent(
        policies={"0": {"config": {"loss": Watched, "optimizer": "sgd"}}, "1": None},
        policy_mapping_fn=lambda agent, episode, **_: str(agent),
    )
    algo = base.build_algo()
    results = algo.train()["learners"]
    state = algo.learner.get_state()["optimizers"]
    algo.stop()
    assert "single" in results["0"] and "single" not in results["1"]
    assert not any(state["0"].values()) and all("exp_avg" in own for own in state["1"].values())


def test_a_loss_that_is_not_there_is_named():
    with pytest.raises(
        ConfigError, match=r"training\.loss \(line \d+, column \d+\): expected the loss no_such_module:loss; found M"
    ):
        PPOConfig.from_yaml(from_path("no_such_module:loss"), allow_imports=True)
    with pytest.raises(ConfigError, match=r"training\.loss: expected a Loss"):
        config(loss="my_loss")


class Forgetful(PPOLoss):
    def __call__(self, batch, outputs, distribution_class):
        raise AssertionError("never called")


def two_arguments(batch, outputs):
    raise AssertionError("never called")


TAKES = r"\(batch, outputs, distribution_class{}\) -> \(loss, metrics\)[\s\S]*too many positional arguments"


@pytest.mark.parametrize(
    ("loss", "more"), [(two_arguments, ""), (Forgetful, ", coefficients"), (Forgetful(), ", coefficients")]
)
def test_a_loss_of_other_arguments_is_named_with_the_other_settings(points, monkeypatch, loss, more):
    own = types.ModuleType("own_losses")
    own.chosen = loss
    monkeypatch.setitem(sys.modules, "own_losses", own)
    with pytest.raises(ConfigError, match=r"training\.loss: expected \w+" + TAKES.format(more)):
        config(loss=loss)
    with pytest.raises(ConfigError, match=r"training\.loss \(line \d+[\s\S]*" + TAKES.format(more)):
        PPOConfig.from_yaml(from_path("own_losses:chosen"), allow_imports=True)
    with pytest.raises(ConfigError, match=TAKES.format(more)):
        points.learner(points.modules(a=(0, 0)), {}, loss=loss)


def test_a_key_that_outputs_lack_is_named_with_those_there_are():
    algo = config(loss=lambda batch, outputs, distribution_class: outputs["obs"].mean()).build_algo()
    with pytest.raises(KeyError) as caught:
        algo.train()
    algo.stop()
    note = "If `outputs` was meant: it has no column 'obs' at this place. Its columns: "
    assert f"{note}action_dist_inputs, vf_preds." in str(caught.value)


def test_an_update_ends_before_the_step_that_goes_too_far():
    """Steps are counted by the metric itself: the last minibatch is the only one above 1.5 x target_kl."""
    far = config(lr=0.05, target_kl=1e-3, num_epochs=9).build_algo()
    results = far.train()["learners"]
    far.stop()
    assert results["default_policy"]["num_minibatches"] == results["__all_modules__"]["num_gradient_steps"] + 1 < 18
    near = learned(config(lr=1e-9, target_kl=1e-3).build_algo())
    assert near["num_minibatches"] == 4 and near["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert "approx_kl" not in learned(config().build_algo())


def test_advantages_are_standardized_in_each_minibatch_as_asked():
    seen: dict[str, list[np.ndarray]] = {"batch": [], "minibatch": [], "none": []}

    def watching(name):
        class Watching(PPOLoss):
            def __call__(self, batch, *others):
                seen[name].append(batch["advantages"].numpy().astype(np.float64))
                return super().__call__(batch, *others)

        return Watching

    totals = {}
    for name, choice in {"batch": "batch", "minibatch": "minibatch", "none": False}.items():
        options = {"num_epochs": 1, "lr": 1e-12, "standardize_advantages": choice, "use_kl_loss": False}
        totals[name] = learned(config(loss=watching(name), **options).build_algo())["policy_loss"]
    together = np.concatenate(seen["batch"])
    assert together.mean() == pytest.approx(0, abs=1e-5) and together.std() == pytest.approx(1, abs=1e-4)
    raw = np.concatenate(seen["none"])
    assert np.concatenate(seen["minibatch"]) == pytest.approx(raw)  # the pipeline leaves them; the loss scales them
    assert abs(raw.mean()) > 0.1
    # at a ratio of 1 the policy loss is minus the mean advantage, which is 0 after standardizing
    assert totals["none"] == pytest.approx(-raw.mean(), rel=1e-3)
    assert totals["minibatch"] == pytest.approx(0, abs=1e-5)


# ------------------------------------------------------------------------------------------- corners


def test_a_schedule_may_go_to_0_and_count_steps_as_files_write_them():
    settings = LearnerSettings(lr=[[0, 1e-3], [1e6, 0.0], [np.int64(2_000_000), 0]])
    assert settings.lr == [[0, 1e-3], [1_000_000, 0.0], [2_000_000, 0.0]]
    assert type(settings.lr[1][0]) is int


def test_groups_of_parameters_keep_their_share_of_the_learning_rate(points):
    def slow(parameters, lr):
        return torch.optim.SGD([{"params": parameters, "lr": lr * 0.1}], lr=lr)

    batch = points.batch("a", 6)
    options = {"minibatch_size": None, "num_epochs": 1, "optimizer": slow}
    learner = points.learner(points.modules(a=(3, -2)), {"a": batch}, **options)
    learner.update(episodes=Steps(1))
    expected = torch.tensor([3.0, -2.0]) - 0.1 * 0.1 * 2 * (torch.tensor([3.0, -2.0]) - batch["x"].mean(0))
    assert points.where(learner.module)["a"] == pytest.approx(expected.tolist())


def test_a_loss_without_the_settings_that_were_set_is_named():
    with pytest.warns(UserWarning, match="settings target_kl, standardize_advantages"):
        config(loss=plain_loss, target_kl=0.1, standardize_advantages="minibatch").build_algo().stop()
    per_module = {"default_policy": {"standardize_advantages": False}}
    quiet = config(loss=plain_loss).rl_module(algorithm_config_overrides_per_module=per_module)
    assert learned(quiet.build_algo())["num_minibatches"] == 4


class WithoutSettings(PPOLoss):
    def __init__(self):
        super().__init__()


@pytest.mark.parametrize("loss", [WithoutSettings, PPOLoss(), PPOLoss(PPOSettings(clip_param=0.2))])
def test_a_loss_that_was_made_without_the_settings_of_the_config_is_named(loss):
    with pytest.warns(EpibatchWarning) as caught:
        config(loss=loss, clip_param=0.1, use_kl_loss=True).build_algo().stop()
    (warning,) = caught
    assert warning.message.where == "settings clip_param"
    assert (loss if isinstance(loss, type) else type(loss)).__name__ in warning.message.found
    config(loss=loss).build_algo().stop()  # nothing was set


def test_the_settings_of_a_subclass_of_the_training_reach_the_loss():
    class MoreTraining(PPOConfig.training_model):
        """Set a weight too."""

        weight: float = 0.5
        """Weight of nothing."""

    class Weighted(PPOLoss):
        def __call__(self, *args):
            loss, metrics = super().__call__(*args)
            names = ("weight", "clip_param", "gamma")
            return loss, {**metrics, **{f"of_{name}": torch.tensor(getattr(self.settings, name)) for name in names}}

    @register_algorithm("ppo_with_a_weight")
    class WeightedConfig(PPOConfig):
        training_model, rule = MoreTraining, Weighted

    algo = WeightedConfig().environment("CartPole-v1").training(train_batch_size=40, weight=0.25, gamma=0.75)
    results = learned(algo.build_algo())
    assert [results[f"of_{name}"] for name in ("weight", "clip_param", "gamma")] == pytest.approx([0.25, 0.3, 0.75])


def test_target_kl_needs_the_metric():
    class Silent(PPOLoss):
        def __call__(self, batch, outputs, *others):
            return outputs["vf_preds"].square().mean(), {"mean_kl": torch.zeros(())}

    algo = config(loss=Silent, target_kl=0.1).build_algo()
    with pytest.raises(ConfigError, match="target_kl with the loss Silent"):
        algo.train()
    algo.stop()
