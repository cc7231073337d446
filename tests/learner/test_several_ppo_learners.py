"""PPO on several learners, against one module that is trained by a loop over the union of their minibatches."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fixture_cases import slow, slow_but
from fixture_together import learners_in_threads, together

from epibatch.algorithms import PPOConfig
from epibatch.connectors import Piece
from epibatch.connectors.rewards import CountBasedReward, NormalizeReward
from epibatch.core.errors import FirstUpdateError, OtherLearnerError
from epibatch.learner import Learner, PPOLoss
from fixture_envs import TurnsEnv

KEY = "default_policy"
LSTM = {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 7}


@dataclass(frozen=True)
class Recording(PPOLoss):
    """PPO's loss, which keeps the minibatches."""

    seen: list[Any] = field(default_factory=list)

    def __call__(self, batch, outputs, distribution_class, coefficients):
        self.seen.append(dict(batch))
        return super().__call__(batch, outputs, distribution_class, coefficients)


class Guests(TurnsEnv):
    """Agent b comes to some episodes only."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.here = ["a", "b"] if self.np_random.random() < 0.5 else ["a"]
        return self._observe(), {}


class Setting:
    """An algorithm, whose episodes and parts all learners get."""

    def __init__(self, count, model_config=None, pieces=(), several=False, **training):
        options = {"train_batch_size": 300, "minibatch_size": 40, "num_epochs": 2, "lr": 0.01, **training}
        config = PPOConfig().environment("CartPole-v1").training(**options).debugging(seed=0)
        config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=25)
        config.rl_module(model_config={"fcnet_hiddens": [8], **(model_config or {})})
        if several:
            config.environment(lambda env_config: Guests({"agents": ["a", "b"]}))
            config.multi_agent(policies=["a", "b"], policy_mapping_fn=lambda agent_id, *args, **kwargs: agent_id)
        if pieces:
            config.learners(learner_connector=lambda *_: [make() for make in pieces])
        self.algorithm = config.build_algo()
        self.parts = self.algorithm.learner_group.learner.parts()
        self.settings = self.parts["loss"].settings
        self.losses = [Recording(settings=self.settings) for _ in range(count)]
        self.members = [self.learner(loss, learners) for loss, learners in zip(self.losses, learners_in_threads(count))]

    def learner(self, loss, learners=None):
        own = {name: copy.deepcopy(self.parts[name]) for name in ("module", "connector")}
        return Learner(**{**self.parts, **own, "loss": loss, "check_first_update": "off"}, learners=learners)

    def episodes(self, steps=300):
        """Chunks for each learner: largest shares first, of different size."""
        chunks = list(self.algorithm.env_runner.sample(num_timesteps=steps))
        shares = [[] for _ in self.members]
        for i, chunk in enumerate(chunks):
            shares[i % len(shares) if i % 5 else 0].append(chunk)
        return shares

    def update(self, shares):
        for loss in self.losses:
            loss.seen.clear()

        def update_of(learner, episodes):
            return lambda: learner.update(episodes=episodes)

        results = together([update_of(learner, own) for learner, own in zip(self.members, shares)])
        assert all(isinstance(result, dict) for result in results), results
        return results


def union(parts):
    """The rows of several minibatches; sequences are padded to the longest."""
    if isinstance(parts[0], dict):
        return {name: union([part[name] for part in parts]) for name in parts[0]}
    most = max(part.shape[1] for part in parts) if parts[0].ndim > 1 else 0
    wide = [
        torch.cat([part, part.new_zeros(len(part), most - part.shape[1], *part.shape[2:])], 1) if most else part
        for part in parts
    ]
    return torch.cat(wide)


def train_by_hand(module, optimizer, unions, settings, kl_coeff, bound=None):
    """Take a step for each minibatch until target_kl ends them; return the last metrics and rows of each."""
    metrics = []
    for batch in unions:
        outputs = dict(module.forward_train(batch))
        outputs["vf_preds"] = module.compute_values(batch)
        loss, own = PPOLoss(settings)(batch, outputs, module.get_train_action_dist_cls(), {"kl_coeff": kl_coeff})
        optimizer.zero_grad()
        loss.backward()
        if bound is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), bound)
        rows = int(batch["loss_mask"].sum())
        metrics.append(({name: float(value) for name, value in own.items()}, rows))
        if settings.target_kl is not None and metrics[-1][0]["approx_kl"] > 1.5 * settings.target_kl:
            break
        optimizer.step()
    return metrics


CASES = {
    "stateless": {},
    "three": {"count": 3},
    "clipped": {"grad_clip": 0.3, "count": 3},
    "in each minibatch": {"standardize_advantages": "minibatch"},
    "not standardised": {"standardize_advantages": False, "use_kl_loss": False},
    "target": {"target_kl": 0.002, "lr": 0.5, "count": 3},
    "lstm": {"model_config": LSTM},
    "lstm, in each minibatch": {"model_config": LSTM, "standardize_advantages": "minibatch", "count": 3},
    "schedules": {"lr": [[0, 0.1], [1000, 0.001]], "clip_param": [[0, 0.3], [500, 0.1]]},
}


def far(left, right):
    """The distance of two modules' weights, relative to their size."""
    pairs = [(one.detach().double(), two.detach().double()) for one, two in zip(left.parameters(), right.parameters())]
    gap = sum(float((one - two).square().sum()) for one, two in pairs)
    return (gap / sum(float(one.square().sum()) for one, _ in pairs)) ** 0.5


def mean_of(metrics, name):
    return sum(values[name] * rows for values, rows in metrics) / sum(rows for _, rows in metrics)


@pytest.mark.parametrize("case", slow_but(["stateless", "clipped"], CASES))
def test_updates_equal_those_of_a_loop_over_the_union_of_minibatches(case):
    options = {"count": 2, "optimizer": "sgd", "lr": 0.1, **CASES[case]}
    setting = Setting(**options)
    alone = copy.deepcopy(setting.members[0].module[KEY])
    optimizer = torch.optim.SGD(alone.parameters(), lr=1.0)
    steps, kl_coeff, ended = 0, setting.settings.kl_coeff, []
    for _ in range(3):
        shares = setting.episodes()
        results = setting.update(shares)
        unions = [union(parts) for parts in zip(*(loss.seen for loss in setting.losses), strict=True)]
        optimizer.param_groups[0]["lr"] = value_at(options["lr"], steps)
        changes = {"clip_param": value_at(options["clip_param"], steps)} if "clip_param" in options else {}
        settings = setting.settings.with_changes(**changes)
        metrics = train_by_hand(alone, optimizer, unions, settings, kl_coeff, options.get("grad_clip"))
        for learner in setting.members:
            assert far(learner.module[KEY], alone) < 1e-6
        own = results[0][KEY]
        per_epoch = -(-max(sum(map(len, share)) for share in shares) // 40)
        ended.append(len(unions) < 2 * per_epoch)
        assert len(metrics) == len(unions) == own["num_minibatches"], "they end where the loop ends"
        for name in metrics[0][0]:
            assert own[name] == pytest.approx(mean_of(metrics, name), rel=1e-4, abs=1e-6)
        assert own["kl_coeff"] == kl_coeff
        if settings.use_kl_loss:
            mean_kl = mean_of(metrics[per_epoch:] or metrics, "mean_kl")  # of the last epoch
            kl_coeff *= 1.5 if mean_kl > 2 * settings.kl_target else 0.5 if mean_kl < settings.kl_target / 2 else 1
        steps += sum(len(episode) for share in shares for episode in share)
        assert results[1]["__all_modules__"]["num_env_steps_trained_lifetime"] == steps
    assert any(ended) is (case == "target")
    for learner in setting.members[1:]:
        np.testing.assert_equal(learner.get_state(), setting.members[0].get_state())
    setting.algorithm.stop()


def value_at(schedule, steps):
    return float(np.interp(steps, *zip(*schedule))) if isinstance(schedule, list) else schedule


def table_of(batches):
    """The numbers of all rows of several batches, in an order of their own."""
    names = ("obs", "action_logp", "value_targets", "advantages")
    rows = np.concatenate(
        [np.concatenate([batch[n].reshape(len(batch[n]), -1) for n in names], 1) for batch in batches]
    )
    return rows[np.lexsort(rows.T[:4])]


def test_advantages_and_explained_variance_are_of_all_rows():
    setting = Setting(3, minibatch_size=None, num_epochs=1, lr=1e-9)
    shares = setting.episodes()
    alone = setting.learner(loss := Recording(settings=setting.settings))
    expected = alone.update(episodes=[episode for share in shares for episode in share])[KEY]
    results = setting.update(shares)
    actual, rows = table_of([own.seen[0] for own in setting.losses]), table_of(loss.seen)
    np.testing.assert_allclose(actual, rows, rtol=1e-5, atol=1e-6)
    assert len(rows) == sum(len(episode) for share in shares for episode in share)
    assert abs(actual[:, -1].mean()) < 1e-6 and actual[:, -1].std() == pytest.approx(1.0)
    assert results[0][KEY] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    setting.algorithm.stop()


@pytest.mark.parametrize("network", [{}, slow(LSTM)], ids=["stateless", "lstm"])
def test_agents_that_are_missing_on_a_learner_are_learned_about_as_on_one(network):
    """Against one learner that has all episodes, whose whole batch is one minibatch."""
    setting = Setting(2, network, several=True, minibatch_size=None, num_epochs=1, optimizer="sgd", lr=0.1)
    alone = setting.learner(Recording(settings=setting.settings))
    for _ in range(3):
        shares = [[], []]
        for episode in setting.algorithm.env_runner.sample(num_timesteps=100):
            shares["b" in episode.agent_ids].append(episode)
        assert all(shares)
        expected = alone.update(episodes=[*shares[0], *shares[1]])
        results = setting.update(shares)
        assert {key: sum(key in episode.agent_ids for episode in shares[0][:1]) for key in "ab"} == {"a": 1, "b": 0}
        for key in "ab":
            assert results[0][key] == results[1][key] == pytest.approx(expected[key], rel=1e-4, abs=1e-5)
            for learner in setting.members:
                assert far(learner.module[key], alone.module[key]) < 1e-6
    setting.algorithm.stop()


class Mask(Piece):
    """Takes the loss from all rows while it is closed."""

    pipelines, input_layouts, reads, writes = ("learner",), ("tensors",), ("loss_mask",), ("loss_mask",)
    closed = False

    def run(self, columns, group):
        return {**columns, "loss_mask": columns["loss_mask"] & (not self.closed)}


@pytest.mark.parametrize("standardize", ["batch", slow("minibatch"), slow(False)])
def test_columns_that_are_not_read_are_left_out_on_learners_that_had_rows(standardize):
    setting = Setting(2, standardize_advantages=standardize)
    changes = {"columns": "auto", "loss": setting.parts["loss"]}
    masks = [Mask() for _ in setting.members]
    for learner, mask in zip(setting.members, masks):
        learner.connector.append(mask)
    setting.members = [Learner(**{**own.parts(), **changes}, learners=own.learners) for own in setting.members]
    shares = setting.episodes()
    setting.update([[*shares[0], *shares[1]], []])
    masks[1].closed = True
    setting.update(shares)
    masks[1].closed = False
    setting.update(shares)
    uses = [learner.column_use[KEY] for learner in setting.members]
    assert uses[0].left_out == uses[1].left_out and "obs" in uses[1].read and uses[1].left_out
    setting.algorithm.stop()


def statistics_of(state, name):
    """Synchronised statistics of one piece, flat; nothing has come since."""
    own = state["connector"][name]["modules"][KEY]
    assert not np.any(own["since"].get("count", 0)) and not len(own["since"].get("numbers", ()))
    return {key: np.asarray(value, np.float64) for key, value in own["synchronised"].items()}


def test_an_error_of_the_first_update_check_of_one_learner_is_raised_on_all():
    setting = Setting(2)
    shares = setting.episodes()
    other = PPOConfig().environment("CartPole-v1").debugging(seed=5).rl_module(model_config={"fcnet_hiddens": [8]})
    stranger = other.build_algo()
    shares[0] = list(stranger.env_runner.sample(num_timesteps=100))  # recorded with other weights
    changes = {"check_first_update": "error", "loss": setting.parts["loss"]}
    members = [Learner(**{**own.parts(), **changes}, learners=own.learners) for own in setting.members]
    before = copy.deepcopy(members[1].module[KEY])
    first, second = together([partial(own.update, episodes=share) for own, share in zip(members, shares)])
    assert type(first) is FirstUpdateError and type(second) is OtherLearnerError
    assert far(members[1].module[KEY], before) == 0.0
    setting.algorithm.stop(), stranger.stop()


@pytest.mark.parametrize("gamma", [None, slow(0.9)])
def test_statistics_of_pieces_are_those_of_one_learner_that_saw_all(gamma):
    pieces = [lambda: NormalizeReward(gamma=gamma), lambda: CountBasedReward(columns="actions", add=False)]
    setting = Setting(3, pieces=pieces, lr=1e-9)
    alone = setting.learner(Recording(settings=setting.settings))
    for _ in range(3):
        parts = zip(*(setting.episodes(60) for _ in range(3)))  # chunks of one episode are on several learners
        shares = [list(itertools.chain(*own)) for own in parts]
        alone.update(episodes=[episode for share in shares for episode in share])
        setting.update(shares)
        states = [learner.get_state() for learner in setting.members]
        for state in states[1:]:
            np.testing.assert_equal(state["connector"], states[0]["connector"])
        connector = alone.connector
        merged = {"connector": connector.merge_states([connector.get_state()])}
        for name in ("normalize_reward", "count_based_reward"):
            expected, actual = statistics_of(merged, name), statistics_of(states[0], name)
            assert expected.keys() == actual.keys() and max(map(np.size, expected.values()))
            for key, values in expected.items():
                np.testing.assert_allclose(actual[key], values, rtol=1e-10)
    setting.algorithm.stop()
