"""What an iteration learns from: as many samples as it takes, in order, with none lost and none twice."""

from __future__ import annotations

import random
import sys
from functools import partial

import numpy as np
import pytest
from fake_actors import FakeActors

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.algorithm import TrainBatches
from epibatch.core.errors import EpibatchWarning, MissingExtraError, RunnerError
from epibatch.env_runner import EnvRunnerGroup
from epibatch.episodes import SingleAgentEpisode


def chunks(number):
    """A chunk with so many steps, or none."""
    columns = {"observations": np.arange(number + 1), "actions": np.arange(number), "rewards": np.ones(number)}
    return [SingleAgentEpisode(**columns, len_lookback_buffer=0)] if number else []


class Gives:
    """Runners whose samples have given numbers of steps; None: one is lost, an error: it is raised."""

    def __init__(self, *counts):
        self._counts = iter(counts)
        self.restarts = 0
        self.asked = []

    def sample(self, num_timesteps=None):
        self.asked.append(num_timesteps)
        count = next(self._counts)
        if isinstance(count, Exception):
            raise count
        self.restarts += count is None
        return chunks(count or 0)

    def fault_report(self):
        return {"num_env_runner_restarts": self.restarts}


def config(wanted=5, **env_runners):
    return PPOConfig().environment("CartPole-v1").training(train_batch_size=wanted).env_runners(**env_runners)


def lengths(episodes):
    return [len(episode) for episode in episodes]


@pytest.mark.parametrize(("counts", "taken"), [((5,), 1), ((4, 1), 2), ((2, 2, 9, 9), 3)])
def test_as_many_samples_as_it_takes(counts, taken):
    group = Gives(*counts)
    assert lengths(TrainBatches(group, config()).sample()) == list(counts[:taken])
    assert group.asked == [None] * taken


@pytest.mark.parametrize("counts", [(0, 0), (3, 0)])
def test_a_sample_without_steps(counts):
    with pytest.raises(RunnerError, match=rf"found: +{counts[0]}, and a sample without any"):
        TrainBatches(Gives(*counts), config()).sample()


def test_processes_that_are_lost_are_no_sample_without_steps():
    group = Gives(2, None, None, 3)
    assert lengths(TrainBatches(group, config(num_env_runners=2)).sample()) == [2, 3]
    assert group.asked == [None, 3, 3, 3]  # the rest, not another whole batch


@pytest.mark.parametrize("settings", [{"rollout_fragment_length": 2}, {"batch_mode": "complete_episodes"}])
def test_fragments_and_whole_episodes_stay_as_long_as_they_are(settings):
    group = Gives(2, 2, 2)
    assert lengths(TrainBatches(group, config(num_env_runners=2, **settings)).sample()) == [2, 2, 2]
    assert group.asked == [None] * 3


def test_what_was_sampled_before_a_failure_is_in_the_next_batch():
    batches = TrainBatches(Gives(2, RuntimeError("an environment failed"), 3, 5, 9), config())
    with pytest.raises(RuntimeError, match="an environment failed"):
        batches.sample()
    assert lengths(batches.sample()) == [2, 3]
    assert lengths(batches.sample()) == [5]
    batches.forget()
    assert lengths(batches.sample()) == [9]


class Runners:
    """Runners that sample meanwhile: each answer says whose it is, and how many updates its weights had."""

    def __init__(self, batch_sizes, order):
        self._sizes = batch_sizes
        self._order = iter(order)  # the index of the runner that answers next
        self.updates = 0
        self._running = {}
        self.acted_with = []

    def request(self, at_most):
        assert at_most == len(self._sizes) - len(self._running)
        for index in self._sizes:
            self._running.setdefault(index, self.updates)

    def ready(self, timeout=None):
        if timeout == 0:  # as if none had answered yet
            return []
        index = next(self._order)
        self.acted_with.append((index, self._running.pop(index)))
        return [(index, chunks(self._sizes[index]))]

    def num_in_flight_async_reqs(self):
        return len(self._running)

    def fault_report(self):
        return {}


def test_the_next_batch_is_one_update_older_and_in_the_order_of_runners():
    group = Runners({1: 3, 2: 2, 3: 2}, order=(3, 1, 2, 2, 3, 1, 1, 2, 3))
    batches = TrainBatches(group, config(6, num_env_runners=3, sample_while_learning=True))
    for _ in range(3):
        assert lengths(batches.sample()) == [3, 2, 2]
        assert batches.is_late == (group.updates > 0)
        batches.sample_ahead()
        group.updates += 1
    assert [updates for _, updates in group.acted_with] == [0, 0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("settings", [
    {"max_requests_in_flight_per_env_runner": 3},
    {"max_requests_in_flight_per_env_runner": 3, "rollout_fragment_length": 4},
    {"max_requests_in_flight_per_env_runner": 2, "batch_mode": "complete_episodes"},
])  # fmt: skip
def test_no_step_is_older_than_one_update(settings):
    chosen = config(32, num_env_runners=2, sample_while_learning=True, **settings).debugging(seed=1)
    group = EnvRunnerGroup(config=chosen, make_actors=partial(FakeActors, order=random.Random(0)))
    batches, oldest = TrainBatches(group, chosen), []
    for updates in range(6):
        episodes = batches.sample()
        assert sum(lengths(episodes)) >= 32
        oldest.append(max(updates - min(e.get_extra_model_outputs("weights_seq_no")) for e in episodes))
        batches.sample_ahead()
        group.local_env_runner.weights_updated()
    group.stop()
    assert oldest == [0, 1, 1, 1, 1, 1]


def test_without_the_setting_nothing_is_sampled_ahead():
    group = Gives(5, 5)
    batches = TrainBatches(group, config(num_env_runners=2))
    batches.sample()
    batches.sample_ahead()
    assert group.asked == [None]


@pytest.mark.parametrize("settings", [{"env_runners": {"num_env_runners": 1}}, {"learners": {"num_learners": 1}}])
def test_other_processes_need_ray(monkeypatch, settings):
    for name in ("ray", "ray.cloudpickle"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'epibatch\[ray\]'"):
        PPOConfig.from_dict({"environment": {"env": "CartPole-v1"}, **settings}).build_algo()


def test_sampling_ahead_without_processes_warns():
    made = PPOConfig().environment("CartPole-v1").env_runners(sample_while_learning=True)
    with pytest.warns(
        EpibatchWarning, match=r"sample_while_learning\n[\s\S]*num_env_runners=0[\s\S]*num_env_runners=2"
    ):
        made.build_algo().stop()
