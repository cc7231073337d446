"""Updates of one module, its state, and what a learner refuses."""

from __future__ import annotations

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core import load_state, save_state
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ColumnError,
    ConfigError,
    EpisodeError,
    NonFiniteLossError,
    UnknownNameError,
)
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule
from epibatch.learner import Learner, LearnerSettings, PPOLoss, PPOSettings

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
KEY = "default_policy"


class Connector:
    """Delivers batches drawn from its own generator, whose position is its state."""

    def __init__(self, module_ids=(KEY,), rows: int = 50, seed: int = 0, **columns) -> None:
        self.module_ids, self.rows, self.columns = module_ids, rows, columns
        self.calls: list[dict] = []
        self.seed = seed

    def __call__(self, **kwargs):
        self.calls.append(kwargs)
        self.seed += 1
        return {module_id: {**ppo_batch(self.rows, self.seed), **self.columns} for module_id in self.module_ids}

    def get_state(self):
        return {"seed": self.seed}

    def set_state(self, state):
        self.seed = state["seed"]


def holding(module) -> MultiRLModule:
    multi = MultiRLModule()
    multi.add_module(KEY, module)
    return multi


def serve(batch):
    return lambda **kwargs: {KEY: batch}


def ppo_batch(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    logits, actions = floats(rows, 3), torch.from_numpy(rng.integers(0, 3, rows))
    return {
        "obs": floats(rows, 4),
        "actions": actions,
        "action_dist_inputs": logits,
        "action_logp": torch.log_softmax(logits, -1)[torch.arange(rows), actions],
        "advantages": floats(rows),
        "value_targets": floats(rows),
        "loss_mask": torch.from_numpy(np.arange(rows) % 10 != 9),
    }


def modules(seed: int = 0, ids=(KEY,), **model_config) -> MultiRLModule:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = {"fcnet_hiddens": [8], **model_config}
        spec = RLModuleSpec(observation_space=BOX, action_space=CHOICE, model_config=config)
        return MultiRLModule(rl_module_specs=dict.fromkeys(ids, spec))


def learner(module=None, connector=None, loss=None, **settings) -> Learner:
    options = {"lr": 1e-3, "num_epochs": 3, "minibatch_size": 16, "seed": 7, **settings}
    return Learner(
        module=module or modules(),
        connector=connector or Connector(),
        settings=LearnerSettings(**options),
        loss=loss or PPOLoss(),
        device="cpu",
    )


def parameters(module) -> list[np.ndarray]:
    return [value.detach().numpy().copy() for value in module.parameters()]


def same(one, two) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two))


class Scalar(TorchRLModule):
    """One parameter vector; its loss is whatever a test makes of it."""

    def setup(self) -> None:
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        self.bias = torch.nn.Parameter(torch.tensor([0.5]))

    def _forward_train(self, batch, **kwargs):
        return {"weight": self.weight, "bias": self.bias}

    def get_train_action_dist_cls(self):
        return None


def scalar_learner(loss, batch, **settings) -> tuple[Learner, Scalar]:
    module = Scalar()
    multi = holding(module)
    options = {"num_epochs": 1, "minibatch_size": None, "shuffle": None, "lr": 0.1, **settings}
    return learner(multi, serve(batch), loss, **options), module


def test_update_calls_the_pipeline_as_documented_and_trains():
    connector, module, episodes, metrics = Connector(), modules(), [object(), object()], object()
    before = parameters(module)
    result = learner(module, connector).update(episodes=episodes, metrics=metrics)
    assert connector.calls == [
        {"rl_module": module, "batch": {}, "episodes": episodes, "shared_data": {}, "metrics": metrics}
    ]
    assert not any(np.array_equal(a, b) for a, b in zip(before, parameters(module)))
    assert set(result) == {KEY, "__all_modules__"}
    assert set(result[KEY]) == {
        *("total_loss", "policy_loss", "vf_loss", "vf_loss_unclipped", "entropy", "mean_kl", "grad_norm"),
        *("explained_variance", "num_rows", "num_minibatches", "lr", "kl_coeff"),
    }
    assert result[KEY]["num_rows"] == 45 and result[KEY]["num_minibatches"] == 9
    assert result[KEY]["lr"] == 1e-3 and result[KEY]["kl_coeff"] == 0.2
    overall = result["__all_modules__"]
    assert overall["num_updates"] == 1 and overall["num_gradient_steps"] == 9
    assert overall["connector_s"] >= 0 and overall["update_s"] > 0


def test_a_single_module_is_trained_as_the_only_one_of_several_and_a_plain_one_is_refused():
    results = [learner(module).update(episodes=[1])[KEY] for module in (modules(), modules()[KEY])]
    assert results[0] == results[1]
    with pytest.raises(ConfigError) as refused:
        learner(torch.nn.Linear(4, 3))
    assert refused.value.found.endswith("Linear")


def test_the_loop_equals_a_plain_torch_loop():
    mine, plain = modules(), modules()
    learner(mine, shuffle=None, grad_clip=0.05).update(episodes=[1])
    module = plain[KEY]
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, foreach=False)
    batch = ppo_batch(50, seed=1)
    rows = torch.nonzero(batch["loss_mask"]).flatten()
    for _ in range(3):
        for part in rows.split(16):
            minibatch = {name: value[part] for name, value in batch.items()}
            outputs = module.forward_train(minibatch)
            outputs["vf_preds"] = module.compute_values(minibatch)
            loss, _ = PPOLoss()(minibatch, outputs, module.get_train_action_dist_cls(), {"kl_coeff": 0.2})
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05)
            optimizer.step()
    for a, b in zip(parameters(mine), parameters(plain)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_restored_learner_goes_on_bit_for_bit(tmp_path):
    straight = learner(modules(0), Connector(seed=0))
    straight.update(episodes=[1])
    straight.update(episodes=[1])
    state = load_state(save_state(tmp_path / "state", straight.get_state()))
    expected = [straight.update(episodes=[1]) for _ in range(2)]

    restored = learner(modules(seed=99), Connector(seed=500), seed=123)
    restored.set_state(state)
    found = [restored.update(episodes=[1]) for _ in range(2)]
    assert same(parameters(straight.module), parameters(restored.module))
    for one, two in zip(expected, found):
        assert one[KEY] == two[KEY]
        assert one["__all_modules__"]["num_gradient_steps"] == two["__all_modules__"]["num_gradient_steps"]
    assert expected[-1]["__all_modules__"]["num_updates"] == 4


def test_a_state_is_a_copy():
    source = learner()
    source.update(episodes=[1])
    state = source.get_state()
    before = copy.deepcopy(state)
    source.update(episodes=[1])
    np.testing.assert_equal(state, before)


def test_a_seed_decides_and_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    position = torch.random.get_rng_state()
    one, two, other = (learner(modules(), seed=seed) for seed in (7, 7, 8))
    for each in (one, two, other):
        each.update(episodes=[1])
    assert same(parameters(one.module), parameters(two.module))
    assert not same(parameters(one.module), parameters(other.module))
    assert torch.equal(position, torch.random.get_rng_state())


def test_metrics_are_means_over_rows():
    def mean_x(batch, outputs, dist):
        value = batch["x"].mean()
        return value + 0 * outputs["weight"].sum(), {"x": value.detach()}

    each, _ = scalar_learner(mean_x, {"x": torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0])}, minibatch_size=3)
    result = each.update(episodes=[1])[KEY]
    assert result["x"] == pytest.approx(36 / 5)
    assert result["num_rows"] == 5 and "explained_variance" not in result


@pytest.mark.parametrize(
    ("by", "bound", "expected"),
    [  # gradients: weight (3, 4), bias (12); global norm 13
        ("global_norm", 6.5, [[1.5, 2.0], [6.0]]),
        ("global_norm", 20.0, [[3.0, 4.0], [12.0]]),
        ("norm", 10.0, [[3.0, 4.0], [10.0]]),
        ("norm", 1.0, [[0.6, 0.8], [1.0]]),
        ("value", 3.5, [[3.0, 3.5], [3.5]]),
        ("value", None, [[3.0, 4.0], [12.0]]),
    ],
)
def test_gradient_clipping(by, bound, expected):
    def loss(batch, outputs, dist):
        return (outputs["weight"] * torch.tensor([3.0, 4.0])).sum() + 12 * outputs["bias"].sum(), {}

    each, module = scalar_learner(loss, {"x": torch.zeros(1)}, grad_clip=bound, grad_clip_by=by)
    result = each.update(episodes=[1])[KEY]
    np.testing.assert_allclose(module.weight.grad, expected[0], rtol=1e-5)
    np.testing.assert_allclose(module.bias.grad, expected[1], rtol=1e-5)
    assert result["grad_norm"] == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda b, o, d: (o["weight"].sum() * float("nan"), {}), "total_loss=nan"),
        (lambda b, o, d: (o["weight"].sum(), {"kl": torch.tensor(float("inf"))}), "found:    kl=inf"),
        (lambda b, o, d: ((o["weight"] - o["weight"].detach()).sum().abs().sqrt(), {}), "found:    grad_norm=nan"),
    ],
)
def test_a_loss_that_is_not_finite_is_named_and_not_applied(loss, message):
    each, module = scalar_learner(loss, {"x": torch.zeros(1)})
    with pytest.raises(NonFiniteLossError, match=f"module '{KEY}'[\\s\\S]*{message}"):
        each.update(episodes=[1])
    assert module.weight.tolist() == [1.0, -2.0]


def test_kl_coefficient_is_adapted_between_updates():
    each = learner(loss=PPOLoss(PPOSettings(kl_target=1e-9)))
    coefficients = [each.update(episodes=[1])[KEY]["kl_coeff"] for _ in range(3)]
    assert coefficients == pytest.approx([0.2, 0.3, 0.45])
    state = each.get_state()
    assert state["coefficients"] == {KEY: {"kl_coeff": pytest.approx(0.675)}}


def test_explained_variance_of_perfect_and_of_constant_predictions():
    class Predictor(Scalar):
        def compute_values(self, batch, embeddings=None):
            return batch["prediction"]

    def loss(batch, outputs, dist):
        return outputs["weight"].sum() + outputs["vf_preds"].sum() * 0, {}

    targets = torch.tensor([1.0, 2.0, 4.0, 7.0])
    for prediction, expected in ((targets, 1.0), (torch.full((4,), 3.0), 0.0), (targets + 5, 1.0)):
        batch = {"value_targets": targets, "prediction": prediction}
        each = learner(holding(Predictor()), serve(batch), loss)
        assert each.update(episodes=[1])[KEY]["explained_variance"] == pytest.approx(expected)
    batch = {"value_targets": torch.ones(4), "prediction": targets}
    each = learner(holding(Predictor()), serve(batch), loss)
    assert each.update(episodes=[1])[KEY]["explained_variance"] == 0.0


def recurrent_batch(sequences: int = 6, steps: int = 5) -> dict[str, object]:
    flat = ppo_batch(sequences * steps)
    batch: dict[str, object] = {name: value.reshape(sequences, steps, *value.shape[1:]) for name, value in flat.items()}
    lens = torch.tensor([5, 3, 5, 2, 5, 1])
    batch["loss_mask"] = torch.arange(steps) < lens[:, None]
    batch["seq_lens"] = lens
    batch["state_in"] = {"h": torch.zeros(sequences, 1, 8), "c": torch.zeros(sequences, 1, 8)}
    return batch


def test_recurrent_module_and_padding_does_not_matter():
    config = {"use_lstm": True, "max_seq_len": 5, "lstm_cell_size": 8}
    results, found = [], []
    for filler in (0.0, 1e6):
        batch = recurrent_batch()
        batch["advantages"][~batch["loss_mask"]] = filler
        batch["value_targets"][~batch["loss_mask"]] = filler
        module = modules(**config)
        batch["state_in"] = {
            key: torch.zeros(6, *state.shape) for key, state in module[KEY].get_initial_state().items()
        }
        each = learner(module, serve(batch), minibatch_size=10)
        results.append(each.update(episodes=[1])[KEY])
        found.append(parameters(module))
    assert results[0] == results[1] and same(*found)
    assert results[0]["num_rows"] == 21 and 6 <= results[0]["num_minibatches"] <= 9


@pytest.mark.parametrize(
    ("reads", "padded", "warns"),
    [((), True, True), (("loss_mask",), True, False), (("seq_lens",), True, False), ((), False, False)],
)
def test_a_loss_that_learns_from_padding_is_warned_of_once(reads, padded, warns):
    def loss(batch, outputs, distribution_class):
        for name in reads:
            batch.get(name)
        return outputs["action_dist_inputs"].square().mean(), {}

    batch = recurrent_batch()
    if not padded:
        batch["loss_mask"][:] = True
    module = modules(use_lstm=True, max_seq_len=5, lstm_cell_size=8)
    batch["state_in"] = {key: torch.zeros(6, *state.shape) for key, state in module[KEY].get_initial_state().items()}
    each = learner(module, serve(batch), loss, minibatch_size=10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            each.update(episodes=[1])
    assert ["did not read 'loss_mask'" in str(each.message) for each in caught] == [True] * warns


@pytest.mark.parametrize(
    ("connector", "episodes", "error", "message"),
    [
        (Connector(), [], EpisodeError, "at least one episode"),
        (lambda **kwargs: {}, [1], BatchLayoutError, "at least one module"),
        (lambda **kwargs: None, [1], BatchLayoutError, "found:    NoneType"),
        (lambda **kwargs: {"obs": torch.zeros(2)}, [1], BatchLayoutError, r"columns \['obs'\]"),
        (Connector(("default_polcy",)), [1], UnknownNameError, "did you mean 'default_policy'"),
        (lambda **kwargs: {KEY: {"obs": torch.zeros(2, 4)}}, [1], ColumnError, "column 'actions' of the train batch"),
    ],
)
def test_errors_of_an_update(connector, episodes, error, message):
    with pytest.raises(error, match=message):
        learner(connector=connector).update(episodes=episodes)


ADAM = {"step": np.float32(1), "exp_avg": np.zeros(2), "exp_avg_sq": np.zeros(2)}
AT = {"red": (1.0, -1.0), "blue": (0.5, 2.0)}


def batches(points, *names):
    return {name: points.batch(name, 6 + len(name)) for name in names}


def restored_learner(points, *names, **options):
    at = {name: AT.get(name, (9.0, 9.0)) for name in names}
    return points.learner(points.modules(**at), batches(points, *names), **options)


def test_states_from_before_and_after_a_module_was_added(points):
    source = restored_learner(points, "red")
    before = source.get_state()
    source.add_module("blue", points.spec(*AT["blue"]))
    source._learner_connector = lambda **kwargs: batches(points, *AT)
    source.update(episodes=[1])
    after = source.get_state()

    target = restored_learner(points, "red")
    with pytest.raises(CheckpointError, match=r"'blue' too[\s\S]*add 'blue' first with add_module"):
        target.set_state(after)
    target.add_module("blue", points.spec(0.0, 0.0))
    target.set_state(after)
    np.testing.assert_equal(target.get_state(), after)

    with pytest.raises(CheckpointError, match=r"none of 'blue'[\s\S]*remove 'blue' first with remove_module"):
        target.set_state(before)
    np.testing.assert_equal(target.get_state(), after)
    target.remove_module("blue")
    target.set_state(before)
    np.testing.assert_equal(target.get_state(), before)
    assert points.where(target.module) == {"red": [1.0, -1.0]}


def test_a_state_without_an_optimiser_starts_that_one_anew(points):
    """A module that was not trained when the state was taken has nothing from later updates in its optimiser."""
    source = restored_learner(points, *AT, multi_agent={"policies_to_train": ["red"]})
    source.update(episodes=[1])
    state = source.get_state()
    source.policies_to_train = None
    source.update(episodes=[1])
    assert set(source.get_state()["optimizers"]) == {"red", "blue"}
    source.set_state(state)
    source.update(episodes=[1])
    fresh = restored_learner(points, *AT, multi_agent={"policies_to_train": ["red"]})
    fresh.update(episodes=[1])
    fresh.policies_to_train = None
    fresh.update(episodes=[1])
    np.testing.assert_equal(source.get_state(), fresh.get_state())


def damage(state, part, module_id, value):
    return {**state, part: {**state[part], module_id: value}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {name: own for name, own in state.items() if name != "generators"}, "no generators"),
        *((lambda state, part=part: {**state, part: [1]}, part) for part in ("module", "coefficients", "generators")),
        (lambda state: {**state, "optimizers": [1]}, "optimizers"),
        (lambda state: {**state, "optimizers": {"other": {}}}, "an optimiser of 'other'"),
        (lambda state: damage(state, "module", "blue", {"at": np.zeros(3)}), r"'blue':[\s\S]*shape \(3,\), not \(2,\)"),
        (lambda state: damage(state, "module", "blue", {"to": np.zeros(2)}), "at is missing"),
        (lambda state: damage(state, "optimizers", "blue", {"weight": {}}), "expected: values for"),
        (
            lambda state: damage(state, "optimizers", "blue", {"at": {**ADAM, "exp_avg": np.zeros((1, 1))}}),
            r"in module 'blue':[\s\S]*'at'[\s\S]*\['exp_avg'\]\n  expected: floats of shape",
        ),
        (lambda state: damage(state, "coefficients", "blue", {"kl": 0.5}), r"coefficients of 'blue'\n.*keys: none"),
        (lambda state: damage(state, "coefficients", "blue", 5), "coefficients"),
        (lambda state: damage(state, "generators", "blue", np.zeros(3, np.uint8)), "the order of rows of 'blue'"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_taken_over(points, change, message):
    source, target = restored_learner(points, *AT), restored_learner(points, *AT)
    source.update(episodes=[1])
    before = target.get_state()
    with pytest.raises(CheckpointError, match=message):
        target.set_state(change(source.get_state()))
    np.testing.assert_equal(target.get_state(), before)
    target.update(episodes=[1])
    source_state = source.get_state()
    for module_id in AT:
        np.testing.assert_equal(target.get_state()["module"][module_id], source_state["module"][module_id])
