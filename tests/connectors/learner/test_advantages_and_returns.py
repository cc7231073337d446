"""Advantages, value targets and discounted rewards still to come."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.learner import (
    AddOneTsToEpisodesAndTruncate,
    ComputeReturnsToGo,
    GeneralAdvantageEstimation,
)
from epibatch.connectors.rewards import RewardScaling
from epibatch.core.errors import EpibatchError, PipelineError
from fixture_pieces import played, trained


def reference(rewards, values, terminated, gamma, lambda_):
    """Advantages of one chunk by the double sum of Schulman et al. (2016), equation 16."""
    steps = len(rewards)
    values = [*values[:steps], 0.0 if terminated else values[steps]]
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(steps)]
    return np.array([sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, steps)) for t in range(steps)])


def run(lab, episodes, *, gamma=0.9, lambda_=0.8, per_module=None, standard=True, **module):
    pieces, settings = lab.defaults("learner", ppo=True), {"per_module": per_module, "standardize_advantages": standard}
    pieces[-1] = GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_, **settings)
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(multi=True, **module))
    return {name: np.asarray(column) for name, column in batch["default_policy"].items() if name != "state_in"}


def expected_of(episodes, gamma=0.9, lambda_=0.8):
    parts = [
        reference(e.get_rewards().tolist(), e.get_observations()[:, 0].tolist(), e.is_terminated, gamma, lambda_)
        for e in episodes
    ]
    advantages = np.concatenate(parts)
    targets = advantages + np.concatenate([e.get_observations()[:-1, 0] for e in episodes])
    return advantages, targets


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.8), (1.0, 0.0), (0.0, 1.0), (0.99, 1.0)])
@pytest.mark.parametrize("state", [0, 2])
@pytest.mark.parametrize("standard", [True, False])
def test_equals_the_double_sum(lab, gamma, lambda_, state, standard):
    episodes = [
        lab.episode("a", 5, end="terminated", state=state),
        lab.episode("b", 4, end="truncated", state=state, offset=3),
        lab.episode("c", 1, state=state, offset=5),
        lab.episode("d", 9, state=state, t_started=7, lookback=2),
    ]
    batch = run(lab, episodes, gamma=gamma, lambda_=lambda_, standard=standard, state=state, max_seq_len=4)
    advantages, targets = expected_of(episodes, gamma, lambda_)
    if standard:
        advantages = (advantages - advantages.mean()) / max(1e-4, advantages.std())
    mask = batch["loss_mask"]
    assert mask.sum() == len(targets)
    assert np.allclose(batch["value_targets"][mask], targets, rtol=1e-4, atol=1e-4)
    assert np.allclose(batch["advantages"][mask], advantages, rtol=1e-3, atol=1e-4)
    assert (batch["advantages"][~mask] == 0).all()
    if not state:  # targets of bootstrap rows are their values
        assert batch["value_targets"][~mask].tolist() == batch["obs"][~mask, 0].tolist()


def test_a_module_may_have_its_own_discounts(lab):
    episodes = [lab.episode("a", 5, end="terminated"), lab.episode("b", 4, offset=3)]
    batch = run(lab, episodes, per_module={"default_policy": {"gamma": 0.5}, "another": {"lambda_": 0.1}})
    _, targets = expected_of(episodes, 0.5, 0.8)
    assert np.allclose(batch["value_targets"][batch["loss_mask"]], targets, rtol=1e-4, atol=1e-4)
    pieces = lab.defaults("learner", ppo=True)
    pieces[-1] = GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8, per_module={"default_policy": {"gamma": 0.5}})
    alone = lab.run("learner", pieces, episodes, rl_module=lab.module())
    assert np.allclose(np.asarray(alone["value_targets"]), batch["value_targets"])


def test_equal_advantages_are_not_blown_up(lab):
    observations = [np.zeros(2, np.float32)] * 4
    episode = lab.episode("a", 3, observations=observations, rewards=[1.0, 1.0, 1.0])
    batch = run(lab, [episode], gamma=0.0, lambda_=0.0)
    assert np.allclose(batch["advantages"], 0.0)


def test_no_gradient_flows_into_the_results(lab):
    pieces = lab.defaults("learner", ppo=True)
    batch = lab.run("learner", pieces, [lab.episode("a", 3)], rl_module=lab.module(multi=True))["default_policy"]
    assert not batch["advantages"].requires_grad and not batch["value_targets"].requires_grad
    assert isinstance(batch["advantages"], torch.Tensor)


def test_without_bootstrap_rows_there_is_a_clear_error(lab):
    pieces = [*lab.defaults("learner"), GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8)]
    with pytest.raises(EpibatchError, match=r"AddOneTsToEpisodesAndTruncate|loss_mask"):
        lab.run("learner", pieces, [lab.episode("a", 3)], rl_module=lab.module(multi=True))


@pytest.mark.parametrize("module", [None, "no values"])
def test_a_module_that_estimates_values_is_needed(lab, module):
    found = {
        None: r"found: +none\n.*pipeline\.trace\(episodes, module\)",
        "no values": "str, which has none",
    }
    with pytest.raises(PipelineError, match=found[module]):
        GeneralAdvantageEstimation()(rl_module=module, batch={}, episodes=[lab.episode("a", 2)])
    trace = lab.pipeline("learner", lab.defaults("learner", ppo=True)).trace([lab.episode("a", 2)])
    assert isinstance(trace.error, PipelineError)


@pytest.mark.parametrize(
    ("values", "found", "do"),
    [
        (lambda obs: obs[..., :1], r"\[6, 1\]", "squeeze the last axis"),
        (lambda obs: obs[:-1, 0], r"\[5\]", "values of all rows"),
    ],
)
def test_values_of_another_shape_are_refused_with_the_module_named(lab, values, found, do):
    module = lab.module(multi=True)
    module["default_policy"].compute_values = lambda batch, embeddings=None: values(batch["obs"])
    with pytest.raises(EpibatchError, match=rf"compute_values[\s\S]*shape \[6\][\s\S]*{found}[\s\S]*{do}"):
        lab.run("learner", lab.defaults("learner", ppo=True), [lab.episode("a", 5)], rl_module=module)


def test_rewards_that_are_no_numbers_are_refused(lab):
    episode = lab.episode("a", 5)
    episode.set_rewards(new_data=["good"] * 5)
    with pytest.raises(EpibatchError, match=r"column 'rewards'[\s\S]*one number per row[\s\S]*ndarray of (object|<U)"):
        lab.run("learner", lab.defaults("learner", ppo=True), [episode], rl_module=lab.module(multi=True))


def double_sum(rewards, gamma):
    return [sum(gamma ** (later - t) * rewards[later] for later in range(t, len(rewards))) for t in range(len(rewards))]


@pytest.mark.parametrize("gamma", [0, 0.9, 0.99, 1])
def test_returns_equal_the_double_sum(lab, gamma):
    rng = np.random.default_rng(5)
    episodes = [lab.episode(str(i), n, rewards=rng.normal(size=n).tolist()) for i, n in enumerate((1, 70, 33, 32))]
    episodes.append(lab.episode("chunk", 2, t_started=4, lookback=2))
    columns = lab.columns("learner", [ComputeReturnsToGo(gamma=gamma)], episodes)
    for episode in episodes:
        expected = double_sum(episode.get_rewards(), gamma)
        np.testing.assert_allclose(columns["returns_to_go"][episode.id_,], expected, rtol=1e-12)


@pytest.mark.parametrize("behind", [False, True])
def test_the_bootstrap_rows_add_nothing(lab, behind):
    first, *rest = lab.defaults("learner", ppo=True)[:-1]
    own = [first, ComputeReturnsToGo(gamma=1.0)]
    episodes = [lab.episode("a", 3, end="truncated"), lab.episode("b", 1)]
    batch = lab.run("learner", [*(own if behind else own[::-1]), *rest], episodes, rl_module=lab.module())
    assert batch["returns_to_go"].dtype == torch.float32
    assert batch["returns_to_go"][batch["loss_mask"]].tolist() == [4.5, 4.0, 2.5, 0.5]


@pytest.mark.parametrize(
    ("piece", "settings", "words"),
    [
        *((ComputeReturnsToGo, {"gamma": own}, r"ComputeReturnsToGo\.gamma") for own in (-0.1, 1.5, "0.9")),
        *((GeneralAdvantageEstimation, {"per_module": {"red": own}}, "GeneralAdvantageEstimation, module 'red': gam")
          for own in ({"gamma": 2}, {"gama": 0.5})),
        *((GeneralAdvantageEstimation, own, r"standardize_advantages\n.*\n  found: .*'no'") for own in
          ({"standardize_advantages": "no"}, {"per_module": {"a": {"standardize_advantages": "no"}}})),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(piece, settings, words):
    with pytest.raises(EpibatchError, match=words):
        piece(**settings)


@pytest.mark.parametrize("bootstraps", [False, True])
def test_rewards_that_a_piece_in_front_made_are_summed(bootstraps):
    pieces = [RewardScaling(scale=10.0, loc=1.0), ComputeReturnsToGo(gamma=0.5)]
    batch = trained([AddOneTsToEpisodesAndTruncate()] * bootstraps + pieces, [played([0, 1, 2], [1.0, 3.0])])
    assert batch["returns_to_go"].tolist() == [11 + 0.5 * 31, 31.0, 0.0][: 2 + bootstraps]


class Odd(ColumnTransform):
    """True where a number is odd."""

    columns = "rewards"

    def transform(self, x):
        return x % 2 == 1


class OddRows(Odd):
    def transform(self, x):
        return super().transform(x)[:, None]


@pytest.mark.parametrize("bootstraps", [False, True])
@pytest.mark.parametrize("ends", [Odd, OddRows])
def test_returns_stop_at_ends_that_a_piece_in_front_wrote(ends, bootstraps):
    pieces = [
        ends(to="terminateds"),
        *[AddOneTsToEpisodesAndTruncate()] * bootstraps,
        ComputeReturnsToGo(gamma=0.5),
    ]
    episodes = [played(range(5), [2.0, 1.0, 4.0, 8.0]), played([0, 1], [2.0]), played([0, 1, 2], [3.0, 6.0])]
    batch = trained(pieces, episodes)
    assert [x for x in batch["returns_to_go"].tolist() if x] == [2.5, 1.0, 8.0, 8.0, 2.0, 3.0, 6.0]
