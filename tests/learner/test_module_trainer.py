"""One module's updates: by themselves, whatever other modules there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def slow_adam(at, batches, lr):
    """Adam (Kingma and Ba 2015, algorithm 1) on mean squared distances, entry by entry."""
    mean, square = np.zeros(2), np.zeros(2)
    at = np.array(at)
    for step, rows in enumerate(batches, 1):
        gradient = 2 * (at - rows.mean(0))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        at = at - lr * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return at


def minibatches(rows, size, epochs):
    return [rows[start : start + size] for _ in range(epochs) for start in range(0, len(rows), size)]


def test_each_module_is_stepped_with_its_own_settings(points):
    """Against Adam by hand: learning rate, minibatch size and number of epochs of each module."""
    batches = {"red": points.batch("red", 10), "blue": points.batch("blue", 7, seed=1)}
    module = points.modules(red=(1.0, -1.0), blue=(0.5, 2.0))
    own = {"blue": {"lr": 0.02, "minibatch_size": 3, "num_epochs": 3}}
    learner = points.learner(module, batches, multi_agent={"overrides_per_module": own}, shuffle=None)
    results = learner.update(episodes=[1])
    red = slow_adam((1.0, -1.0), minibatches(batches["red"]["x"].numpy(), 4, 2), 0.1)
    blue = slow_adam((0.5, 2.0), minibatches(batches["blue"]["x"].numpy(), 3, 3), 0.02)
    np.testing.assert_allclose(points.where(module)["red"], red, rtol=1e-9)
    np.testing.assert_allclose(points.where(module)["blue"], blue, rtol=1e-9)
    counts = {
        name: (own["num_rows"], own["num_minibatches"], own["lr"]) for name, own in results.items() if "lr" in own
    }
    assert counts == {"red": (10, 6, 0.1), "blue": (7, 9, 0.02)}
    assert results["__all_modules__"]["num_gradient_steps"] == 15
    assert results["__all_modules__"]["num_rows"] == 17


def test_gradients_are_clipped_as_each_modules_settings_say(points):
    """A step of plain Adam does not tell how long the gradient was; the second moment does."""
    batches = {name: {"x": torch.tensor([[3.0, 4.0]], dtype=torch.float64)} for name in ("red", "blue", "green")}
    module = points.modules(red=(0.0, 0.0), blue=(0.0, 0.0), green=(0.0, 0.0))
    own = {"blue": {"grad_clip": 1.0}, "green": {"grad_clip": 5.0, "grad_clip_by": "value"}}
    learner = points.learner(module, batches, multi_agent={"overrides_per_module": own}, num_epochs=1)
    results = learner.update(episodes=[1])
    squares = {name: values["at"]["exp_avg_sq"] for name, values in learner.get_state()["optimizers"].items()}
    for name, gradient in {"red": (-6.0, -8.0), "blue": (-0.6, -0.8), "green": (-5.0, -5.0)}.items():
        np.testing.assert_allclose(squares[name], 0.001 * np.square(gradient), rtol=1e-6)
        assert results[name]["grad_norm"] == pytest.approx(10.0)


@pytest.mark.parametrize("order", [("red", "blue"), ("blue", "red"), ("green", "blue", "red")])
def test_updated_together_is_updated_alone(points, order):
    """Bit by bit over three updates, optimisers and minibatches included."""
    at = {"red": (1.0, -1.0), "blue": (0.5, 2.0), "green": (3.0, 3.0)}
    rows = {"red": 11, "blue": 6, "green": 23}

    def run(names):
        loss = points.Distances()
        module = points.modules(**{name: at[name] for name in names})
        learner = points.learner(module, {name: points.batch(name, rows[name]) for name in names}, loss)
        for _ in range(3):
            learner.update(episodes=[1])
        return learner.get_state(), loss

    together, seen = run(order)
    for name in order:
        alone, own = run([name])
        assert seen.of(name) == own.of(name)
        for part in ("module", "optimizers", "generators", "coefficients"):
            np.testing.assert_equal(together[part][name], alone[part][name])
    assert seen.of("red") != seen.of("blue")


def test_a_batch_shorter_than_a_minibatch_is_seen_once_per_epoch(points):
    loss = points.Distances()
    module = points.modules(few=(0.0, 0.0), many=(0.0, 0.0))
    batches = {"few": points.batch("few", 3), "many": points.batch("many", 9)}
    points.learner(module, batches, loss, shuffle=None).update(episodes=[1])
    assert loss.of("few") == [[0, 1, 2]] * 2
    assert loss.of("many") == [[0, 1, 2, 3], [4, 5, 6, 7], [8]] * 2


def test_the_order_of_rows_depends_on_seed_and_module_alone(points):
    def order(seed, module_id):
        module = points.modules(**{module_id: (0.0, 0.0)})
        loss = points.Distances()
        batch = points.batch(module_id, 20)
        points.learner(module, {module_id: batch}, loss, seed=seed, minibatch_size=None, num_epochs=1).update(
            episodes=[1]
        )
        return [int(row) for row in loss.of(module_id)[0]]

    assert order(7, "red") == order(7, "red")
    assert len({tuple(order(seed, name)) for seed in (7, 8) for name in ("red", "blue", "default_policy")}) == 6
    assert order(7, "default_policy") == torch.randperm(20, generator=torch.Generator().manual_seed(7)).tolist()
    assert order(None, "red") != order(None, "red")


def test_value_metrics_are_each_modules_own(points):
    class Predictor(points.Module):
        def compute_values(self, batch, embeddings=None):
            return batch["prediction"] + self.at.sum() * 0

    module = points.modules(red=(0.0, 0.0), blue=(0.0, 0.0))
    batches = {}
    for name, prediction in (("red", [1.0, 2.0, 4.0, 7.0]), ("blue", [3.0, 3.0, 3.0, 3.0])):
        module.add_module(name, Predictor(model_config={"at": [0.0, 0.0]}), override=True)
        batches[name] = {
            **points.batch(name, 4),
            "prediction": torch.tensor(prediction),
            "value_targets": torch.tensor([1.0, 2.0, 4.0, 7.0]),
        }
    results = points.learner(module, batches).update(episodes=[1])
    assert results["red"]["explained_variance"] == pytest.approx(1.0)
    assert results["blue"]["explained_variance"] == pytest.approx(0.0)
